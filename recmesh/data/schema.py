"""Kinds of columns, and whether they can feed what a specification asks of them."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import pyarrow as pa

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.spec.dataset import DatasetSpec, Feature, SourceSpec

Kind = Literal["int", "float", "string", "bool", "null", "list<int>", "list<float>", "list<string>", "other"]

_INFERRED = ("csv", "tsv", "jsonl", "tfrecord")
"""Formats whose column types are guessed from the start of a file, and may be declared."""

_SCALARS: tuple[Kind, ...] = ("int", "float", "string", "bool", "null")
_IDS: tuple[Kind, ...] = ("int", "string", "bool", "null")
NUMBERS: tuple[Kind, ...] = ("int", "float", "bool", "null")
_ANY: tuple[Kind, ...] = get_args(Kind)


ARROW_TYPES: Mapping[str, Any] = {
    "int": pa.int64(), "float": pa.float64(), "string": pa.string(), "list<int>": pa.list_(pa.int64()),
    "list<float>": pa.list_(pa.float64()), "list<string>": pa.list_(pa.string()),
}
"""Of the types that a specification may declare."""


def kind_of(type_: Any) -> Kind:
    """What an Arrow type means here; dictionaries are what they encode."""
    if pa.types.is_dictionary(type_):
        return kind_of(type_.value_type)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        inner = kind_of(type_.value_type)
        return _LISTS.get(inner, "other")
    if pa.types.is_integer(type_):
        return "int"
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "float"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return "string"
    if pa.types.is_boolean(type_):
        return "bool"
    return "null" if pa.types.is_null(type_) else "other"


_LISTS: Mapping[Kind, Kind] = {"int": "list<int>", "float": "list<float>", "string": "list<string>"}


def needed_columns(spec: DatasetSpec) -> list[str]:
    """Every column that the specification reads, once, in a fixed order."""
    names = [*spec.label_columns, *([spec.weight] if spec.weight else []), *(each.column for each in spec.where)]
    for feature in spec.features:
        names.extend(feature.source_columns)
        if feature.weights:
            names.append(feature.weights)
    return list(dict.fromkeys(names))


def types_are_enough(declared: Mapping[str, object], spec: SourceSpec) -> bool:
    """Whether a file whose start cannot be read, as it holds bad records, can be read all the same."""
    return spec.bad_records is not None and all(column in declared for column in needed_columns(spec))


def check_columns(spec: DatasetSpec, kinds: Mapping[str, Kind], *, where: str) -> None:
    """InvalidArgument with one violation per field whose column is missing or of a kind that cannot serve."""
    found: list[Violation] = []
    for index, column in enumerate(spec.label_columns):
        path = f"data.labels.{index}" if spec.labels else "data.label"
        found.extend(_check(path, column, kinds, NUMBERS, "targets are numbers"))
    if spec.weight:
        found.extend(_check("data.weight", spec.weight, kinds, NUMBERS, "weights are numbers"))
    for index, condition in enumerate(spec.where):
        is_text = isinstance(condition.value if condition.op != "in" else condition.values[0], str)
        allowed, why = (("string", "null"), "the value is a text") if is_text else (NUMBERS, "the value is a number")
        found.extend(_check(f"data.where.{index}.column", condition.column, kinds, allowed, why))
    for feature in spec.features:
        found.extend(_check_feature(feature, kinds))
    if found:
        raise InvalidArgument(f"the columns of {where} do not fit the dataset", violations=found)


def _check_feature(feature: Feature, kinds: Mapping[str, Kind]) -> list[Violation]:
    field = "columns" if feature.columns else "column" if feature.column else ""
    path = f"data.features.{feature.name}.{field}".rstrip(".")
    allowed, why = _wanted(feature)
    found = [fault for column in feature.source_columns for fault in _check(path, column, kinds, allowed, why)]
    if feature.weights:
        path = f"data.features.{feature.name}.weights"
        allowed = ("list<int>", "list<float>", *_SCALARS)
        found += _check(path, feature.weights, kinds, allowed, "weights are one number per id")
    return found


def _wanted(feature: Feature) -> tuple[tuple[Kind, ...], str]:
    """Kinds of columns that can feed the feature, and why only these."""
    if feature.function is not None:
        return _ANY, ""
    if feature.kind == "dense":
        return NUMBERS, "dense features are numbers"
    if feature.boundaries:
        return (*NUMBERS, "list<int>", "list<float>"), "boundaries are for numbers"
    if feature.kind == "single":
        return _IDS, "a single id is an integer or a string"
    return ("list<int>", "list<string>", *_IDS), "ids are lists of integers or strings, or text to be split"


def _check(
    path: str, column: str, kinds: Mapping[str, Kind], allowed: tuple[Kind, ...], why: str
) -> list[Violation]:
    if column not in kinds:
        names = sorted(kinds)
        shown = ", ".join(names[:40]) + (f" and {len(names) - 40} more" if len(names) > 40 else "")
        quotes = "; names in quotes are read with quoted: true" if f'"{column}"' in kinds else ""
        return [Violation(path, f"there is no column {column!r}; there are {shown}{quotes}")]
    kind = kinds[column]
    return [] if kind in allowed else [Violation(path, f"column {column!r} is of type {kind}; {why}")]


def check_agreement(
    spec: SourceSpec, first: Mapping[str, Kind], other: Mapping[str, Kind], *, uris: tuple[str, str]
) -> None:
    """The files must agree on integers and strings, else one value would be two ids."""
    found = [
        Violation(
            "data.source.types" if spec.source.format in _INFERRED else "data.source.files",
            f"column {name!r} is {first[name]} in {uris[0]} and {other[name]} in {uris[1]}"
            + ("; say which in data.source.types" if spec.source.format in _INFERRED else ""),
        )
        for name in sorted(_id_columns(spec))
        if name in first and name in other and first[name] != other[name]
    ]
    if found:
        raise InvalidArgument("the files of the dataset disagree", violations=found)


def _id_columns(spec: DatasetSpec) -> set[str]:
    return {
        column for feature in spec.features if feature.kind != "dense" and not feature.boundaries
        for column in feature.source_columns
    }
