"""Which raw columns a model takes, by the `transform` of its `model.json`. Reads no data, so it is cheap to import."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from recmesh.runtime.errors import MeshError
from recmesh.spec.feature import Feature

VERSION = 1
"""As `recmesh.data.transform`."""
INTEGERS = ("INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8")
NUMBERS = ("FP64", "FP32", *INTEGERS, "BOOL")
IDS = ("INT64", "BYTES", *INTEGERS[1:], "BOOL")
ANY = ("BYTES", *NUMBERS)
OF_TYPES = {"int": (*INTEGERS, "BOOL"), "float": NUMBERS, "string": ("BYTES",)}
"""Of a type that the dataset declares, or of a list's values."""
COLUMNS, ROWS = "columns", "rows"
"""Forms of a request: a tensor for each column; or one BYTES tensor [1] with a JSON list of objects."""
LENGTHS, NULL = ".lengths", ".null"
"""Of a column's companions: INT64 [B], how many values of each row count; BOOL [B], in which rows it has no value."""


@dataclass(frozen=True, slots=True)
class RawColumn:
    """A column as a request brings it."""

    name: str
    datatypes: tuple[str, ...]
    """Any of these, the most usual first; of a column that several features read, what all of them take."""
    shape: tuple[int, ...]
    """[-1], or [-1, -1] where a row holds a list."""
    features: tuple[str, ...]
    """That are made of it."""
    type: str = ""
    """That the dataset declares: int, float, string, list<int> and so on; empty: none."""


@dataclass(frozen=True, slots=True)
class RawInputs:
    """The raw columns of a model; none of them, and why, where requests cannot be raw."""

    columns: tuple[RawColumn, ...] = ()
    fault: str = "its model.json has no transform"
    document: Mapping[str, Any] | None = None
    """The transform."""


def raw_inputs(document: Any) -> RawInputs:
    """Of the entry `transform` of a `model.json`; one that cannot be used is told of, and hurts nothing else."""
    if document is None:
        return RawInputs()
    if not isinstance(document, dict) or document.get("version") != VERSION:
        version = document.get("version") if isinstance(document, dict) else None
        return RawInputs(fault=f"its transform has version {version!r}; this recmesh knows {VERSION}")
    try:
        features = [Feature.parse(each) for each in document["features"]]
    except (MeshError, KeyError, TypeError) as error:
        return RawInputs(fault=f"its transform cannot be read: {error}")
    found: dict[str, RawColumn] = {}
    for feature in features:
        datatypes, shape = _taken(feature)
        for name in feature.source_columns:
            _add(found, RawColumn(name, datatypes, shape, (feature.name,)))
        if feature.weights:
            _add(found, RawColumn(feature.weights, NUMBERS, (-1, -1), (feature.name,)))
    types = document.get("types") or {}
    split = {name for feature in features if feature.separator for name in feature.source_columns}
    columns = (_typed(each, "" if each.name in split else str(types.get(each.name, ""))) for each in found.values())
    return RawInputs(tuple(columns), "", document)


def _typed(column: RawColumn, type_: str) -> RawColumn:
    """Narrowed to the type. Of text that is split it says what the parts are, so it is not looked at there."""
    allowed = OF_TYPES.get(type_.removeprefix("list<").removesuffix(">"), ())
    kept = tuple(name for name in column.datatypes if name in allowed)
    return replace(column, datatypes=kept, type=type_) if kept else column


def _taken(feature: Feature) -> tuple[tuple[str, ...], tuple[int, ...]]:
    ragged = feature.kind in ("bag", "sequence") and not feature.separator
    shape = (-1, -1) if ragged and feature.function is None else (-1,)
    if feature.function is not None:
        return ANY, shape
    if feature.kind == "dense" or feature.boundaries:
        return NUMBERS, shape
    return (("BYTES", *IDS[2:], "INT64") if feature.separator else IDS), shape


def _add(found: dict[str, RawColumn], new: RawColumn) -> None:
    known = found.get(new.name)
    if known is None:
        found[new.name] = new
        return
    both = tuple(name for name in known.datatypes if name in new.datatypes)
    found[new.name] = RawColumn(new.name, both, max(known.shape, new.shape, key=len), known.features + new.features)
