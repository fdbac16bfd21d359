"""Tensors of raw columns as an Arrow table, and the transform's arrays as tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from recmesh.data.records import Float32, IdColumn
from recmesh.data.transform import Transform
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.serving.card import TensorSpec
from recmesh.serving.raw.columns import ANY, LENGTHS, NULL, RawColumn
from recmesh.serving.tensors import Tensor


class _Wrong(ValueError):
    """Why a tensor is no column."""


def table_of(columns: Sequence[RawColumn], tensors: Sequence[Tensor]) -> Any:
    """The columns, each an Arrow array of B rows; InvalidArgument names every column that is wrong, and why.

    A column is a tensor [B] or, of lists, [B, L]; `NAME.lengths` (INT64 [B]) says how many values of each row count,
    else all do. Where `NAME.null` (BOOL [B]) is true, the row has no value; so it is where a number is NaN.
    """
    given = {tensor.name: tensor for tensor in tensors}
    wrong = [Violation(f"inputs.{name}", "is given twice") for name in sorted(_twice(tensors))]
    known = {column.name: column for column in columns}
    for name in sorted(given.keys() - known.keys()):
        if _owner(name) not in known:
            wrong.append(Violation(f"inputs.{name}", f"no feature reads this column; they read {', '.join(known)}"))
    arrays: dict[str, Any] = {}
    for column in columns:
        tensor = given.get(column.name)
        if tensor is None:
            wrong.append(Violation(f"inputs.{column.name}", f"is missing; {_wanted(column)}"))
            continue
        try:
            arrays[column.name] = _array(column, tensor, given)
        except _Wrong as error:
            wrong.append(Violation(f"inputs.{column.name}", str(error)))
    sizes = {name: len(array) for name, array in arrays.items()}
    first = next(iter(sizes), "")
    for name, size in sizes.items():
        if size != sizes[first]:
            wrong.append(Violation(f"inputs.{name}", f"has {size} rows, but {first!r} has {sizes[first]}"))
    if not wrong and sizes and not sizes[first]:
        wrong = [Violation(f"inputs.{first}", "has no rows")]
    if wrong:
        raise InvalidArgument("the columns do not fit the model", reason="INPUT_MISMATCH", violations=wrong)
    return pa.table(arrays)


def inputs_of(
    transform: Transform, ids: Mapping[str, IdColumn], dense: Float32, wanted: Sequence[TensorSpec]
) -> list[Tensor]:
    """What the model takes, in its order. Ragged features are as wide as their longest row, or as the model says."""
    names = [feature.name for feature in transform.features if feature.kind == "dense"]
    made: dict[str, Any] = {name: dense[:, position] for position, name in enumerate(names)}
    widths = {spec.name: spec.shape[1] for spec in wanted if len(spec.shape) > 1}
    for name, column in ids.items():
        if column.offsets is None:
            made[name] = column.values
            continue
        padded = column.padded(max(widths.get(name, 0), 0))
        made |= {name: padded.ids, f"{name}.lengths": padded.lengths, f"{name}.weights": padded.weights}
    absent = [spec.name for spec in wanted if spec.name not in made]
    if absent:
        raise InvalidArgument(
            f"the model takes {', '.join(absent)}, which no feature of its transform makes", reason="NO_RAW_INPUTS"
        )
    return [Tensor.of(spec.name, np.ascontiguousarray(made[spec.name])) for spec in wanted]


def _array(column: RawColumn, tensor: Tensor, given: Mapping[str, Tensor]) -> Any:
    kind = tensor.datatype.name
    if kind not in column.datatypes:
        raise _Wrong(f"is {kind}, but {_wanted(column)}")
    shape = tensor.shape
    lists = len(column.shape) == 2 or column.datatypes == ANY        # a function takes what it takes
    if len(shape) not in (1, 2) or (len(shape) == 2 and not lists):
        raise _Wrong(f"has shape {list(shape)}, but {_wanted(column)}")
    mask = _companion(given, column.name + NULL, "BOOL", shape[0])
    lengths = _companion(given, column.name + LENGTHS, "INT64", shape[0])
    if len(shape) == 1:
        if lengths is not None:
            raise _Wrong(f"has {column.name}{LENGTHS}, but one value in each row")
        return _values(tensor.array, kind, mask)
    width = shape[1]
    if lengths is None:
        lengths = np.full(shape[0], width, np.int64)
    if ((lengths < 0) | (lengths > width)).any():
        raise _Wrong(f"has rows of {width} values, but {column.name}{LENGTHS} says otherwise")
    if mask is not None:
        lengths = np.where(mask, 0, lengths)
    inside = np.arange(width) < lengths[:, None]
    offsets = np.zeros(shape[0] + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    flat = _values(tensor.array[inside], kind, None)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=None if mask is None else pa.array(mask))


def _values(array: Any, kind: str, mask: Any) -> Any:
    if kind != "BYTES":
        return pa.array(np.ascontiguousarray(array), mask=mask)
    try:
        return pa.array([value.decode() for value in array], pa.string(), mask=mask)
    except UnicodeDecodeError as error:
        raise _Wrong(f"is no UTF-8: {error}") from None


def _companion(given: Mapping[str, Tensor], name: str, kind: str, rows: int) -> Any:
    tensor = given.get(name)
    if tensor is None:
        return None
    if tensor.datatype.name != kind or tensor.shape != (rows,):
        raise _Wrong(f"{name} is {tensor.datatype.name} {list(tensor.shape)}, not {kind} [{rows}]")
    return tensor.array


def _wanted(column: RawColumn) -> str:
    return f"{' or '.join(column.features)} takes {', '.join(column.datatypes)} of shape {list(column.shape)}"


def _owner(name: str) -> str:
    for ending in (LENGTHS, NULL):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return ""


def _twice(tensors: Sequence[Tensor]) -> set[str]:
    names = [tensor.name for tensor in tensors]
    return {name for name in names if names.count(name) > 1}
