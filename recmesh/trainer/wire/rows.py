"""Rows of a data executor on the wire, both ends side by side. Small fields are protobuf's, arrays `protowire`'s.

A batch crosses bit for bit; what is read is views of the message.
"""

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from recmesh.data.records import Batch, IdColumn
from recmesh.formats import protowire
from recmesh.pb import executor_pb2 as pb
from recmesh.runtime.errors import InvalidArgument, Violation

_COLUMNS, _DENSE = pb.ReadReply.COLUMNS_FIELD_NUMBER, pb.ReadReply.DENSE_FIELD_NUMBER
_LABELS, _WEIGHT = pb.ReadReply.LABELS_FIELD_NUMBER, pb.ReadReply.WEIGHT_FIELD_NUMBER
_FEATURE, _VALUES = pb.Column.FEATURE_FIELD_NUMBER, pb.Column.VALUES_FIELD_NUMBER
_OFFSETS, _WEIGHTS = pb.Column.OFFSETS_FIELD_NUMBER, pb.Column.WEIGHTS_FIELD_NUMBER


def read_reply(batch: Batch, *, bad: int) -> bytes:
    """A READY reply."""
    head = pb.ReadReply(
        status=pb.ReadReply.READY, rows=batch.size, bad=bad, n_dense=batch.dense.shape[1],
        n_labels=batch.labels.shape[1], kind=batch.kind,
    )
    message = protowire.Message(head.SerializeToString())
    for name, column in batch.ids.items():
        begun = message.begin(_COLUMNS)
        message.text(_FEATURE, name)
        message.array(_VALUES, column.values)
        if column.offsets is not None:
            message.array(_OFFSETS, column.offsets)
        if column.weights is not None:
            message.array(_WEIGHTS, column.weights)
        message.end(begun)
    message.array(_DENSE, batch.dense)
    message.array(_LABELS, batch.labels)
    if batch.weight is not None:
        message.array(_WEIGHT, batch.weight)
    return message.to_bytes()


def read_rows(data: bytes) -> tuple[pb.ReadReply, Batch | None]:
    """The reply without its arrays, and its rows when it is READY; InvalidArgument names what is damaged."""
    try:
        rest, parts = protowire.split(data, [_COLUMNS, _DENSE, _LABELS, _WEIGHT])
        head = pb.ReadReply()
        head.ParseFromString(rest)
    except (ValueError, DecodeError) as error:
        raise InvalidArgument(f"the message is no ReadReply: {error}") from error
    if head.status != pb.ReadReply.READY:
        return head, None
    arrays = {field: part for field, part in parts if field != _COLUMNS}
    ids = dict(_column(part, f"columns[{i}]") for i, part in enumerate(part for f, part in parts if f == _COLUMNS))
    dense = _view(arrays.get(_DENSE), "<f4", "dense")
    labels = _view(arrays.get(_LABELS), "<f4", "labels")
    weight = _view(arrays[_WEIGHT], "<f4", "weight") if _WEIGHT in arrays else None
    try:
        batch = Batch(
            head.rows, ids, dense.reshape(head.rows, head.n_dense), labels.reshape(head.rows, head.n_labels), weight,
            "stream" if head.kind == "stream" else "batch",
        )
    except ValueError as error:
        raise InvalidArgument(f"the rows are not of the size that they say: {error}") from error
    return head, batch


def _column(part: memoryview, path: str) -> tuple[str, IdColumn]:
    try:
        entry = dict(protowire.fields(part))
        name = bytes(entry[_FEATURE]).decode()          # an integer would be no name
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument("the message is damaged", violations=[Violation(path, str(error))]) from error
    offsets = _view(entry[_OFFSETS], "<i8", f"{path}.offsets") if _OFFSETS in entry else None
    weights = _view(entry[_WEIGHTS], "<f4", f"{path}.weights") if _WEIGHTS in entry else None
    return name, IdColumn(_view(entry.get(_VALUES), "<i8", f"{path}.values"), offsets, weights)


def _view(value: Any, dtype: str, path: str) -> NDArray[Any]:
    if value is None:
        return np.empty(0, dtype)
    try:
        return protowire.view(value, dtype)
    except (TypeError, ValueError) as error:
        raise InvalidArgument("the bytes are no array", violations=[Violation(path, str(error))]) from error
