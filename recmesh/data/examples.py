"""Rows as people write them in JSON, as the columns that the feature transform reads."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from recmesh.data.transform import Transform
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.spec.dataset import Feature


def table_of(transform: Transform, examples: Sequence[Mapping[str, Any]], *, aliases: bool = True) -> Any:
    """The examples' columns as an Arrow table; InvalidArgument names each column that is wrong, and why.

    With `aliases` the only column of a feature may also be called as the feature is. A field that is missing, or null,
    in some examples is a missing value; one that is in none is a mistake, and so is one that no feature reads.
    """
    columns: dict[str, Any] = {}
    wrong: list[Violation] = []
    given, known = {key for example in examples for key in example}, set[str]()
    for feature in transform.features:
        sources = feature.source_columns
        for name in sources:
            key = name if name in given or len(sources) > 1 or not aliases else feature.name
            known.add(key)
            if key not in given:
                wrong.append(Violation(key, "is in no example"))
            values = [example.get(key) for example in examples]
            faults = [reason for value in values if (reason := _fault(feature, value))]
            if faults:
                wrong.append(Violation(key, faults[0]))
                continue
            # A column is of lists where one example has a list; else it stays what a feature's function is to get.
            if feature.kind in ("bag", "sequence") and any(isinstance(value, list) for value in values):
                values = [value if isinstance(value, list) or value is None else [value] for value in values]
            try:
                columns[name] = pa.array(values)
            except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
                wrong.append(Violation(key, "must be all integers or all text, in all examples"))
        if feature.weights:
            known.add(feature.weights)
            weights = [example.get(feature.weights) for example in examples]
            if all(_is_number(item) for value in weights for item in _items(value)):
                columns[feature.weights] = pa.array([_as_list(value) for value in weights])
            else:
                wrong.append(Violation(feature.weights, f"must be numbers: the weights of {feature.name}"))
    for name in sorted(given - known):
        wrong.append(Violation(name, "is no input of the model"))
    if wrong:
        raise InvalidArgument("the examples do not fit the model", reason="INPUT_MISMATCH", violations=wrong)
    return pa.table(columns)


def _as_list(value: Any) -> list[float | None] | None:
    """Weights as a feature has them: of a scalar, one."""
    return None if value is None else [None if item is None else float(item) for item in _items(value)]


def _fault(feature: Feature, value: Any) -> str:
    """What is wrong with an example's value; missing ones are allowed."""
    if feature.function is not None:        # it takes what it takes
        return ""
    if feature.kind == "dense" or (feature.boundaries and not isinstance(value, list)):
        return "" if value is None or _is_number(value) else f"must be a number, not {value!r}"
    if feature.kind == "single":
        return "" if value is None or _is_id(value) else f"must be one integer or text, not {value!r}"
    strange = [item for item in _items(value) if item is not None and not _is_id(item)]
    return f"must be integers or text, not {strange[0]!r}" if strange else ""


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return value is None
    return True


def _is_id(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer() and abs(value) < 2**53
    return isinstance(value, str) or (isinstance(value, int) and -(2**63) <= value < 2**64)
