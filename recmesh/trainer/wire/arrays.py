"""Pulls and pushes on the wire, both ends side by side. Small fields are protobuf's, arrays `protowire`'s.

Every `read_` gives the message without its arrays, and these as read-only views of the bytes; InvalidArgument names
what is no array.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from recmesh.formats import protowire
from recmesh.pb import ps_pb2 as pb
from recmesh.runtime.errors import InvalidArgument, Violation

M = TypeVar("M", bound=Message)
Ids = NDArray[np.int64]
Values = NDArray[np.float32]
Counts = NDArray[np.uint32]
Dense = tuple[int, int, Values]
"""(block, chunk, values)"""


class Grads(NamedTuple):
    """An entry of a push."""

    table: int
    ids: Ids
    grads: Values
    """Flat."""
    counts: Counts | None
    """None: each id occurred once."""


def pull_request(head: pb.PullRequest, tables: Iterable[tuple[int, Ids]]) -> bytes:
    """Ids by table."""
    message = protowire.Message(head.SerializeToString())
    for table, ids in tables:
        begun = message.begin(pb.PullRequest.TABLES_FIELD_NUMBER)
        message.number(pb.TableIds.TABLE_FIELD_NUMBER, table)
        message.array(pb.TableIds.IDS_FIELD_NUMBER, ids)
        message.end(begun)
    return message.to_bytes()


def read_pull_request(data: bytes) -> tuple[pb.PullRequest, list[tuple[int, Ids]]]:
    """See `pull_request`."""
    head, parts = _split(pb.PullRequest, data, [pb.PullRequest.TABLES_FIELD_NUMBER])
    tables = []
    for i, (_, part) in enumerate(parts):
        entry = _entry(part, f"tables[{i}]")
        ids = _array(entry, pb.TableIds.IDS_FIELD_NUMBER, "<i8", f"tables[{i}].ids")
        tables.append((_number(entry, pb.TableIds.TABLE_FIELD_NUMBER, f"tables[{i}].table"), ids))
    return head, tables


def pull_reply(head: pb.PullReply, rows: Iterable[Values], dense: Iterable[Dense]) -> bytes:
    """Rows by entry of the request, and chunks."""
    message = protowire.Message(head.SerializeToString())
    for values in rows:
        message.array(pb.PullReply.ROWS_FIELD_NUMBER, values)
    _add_dense(message, pb.PullReply.DENSE_FIELD_NUMBER, dense)
    return message.to_bytes()


def read_pull_reply(data: bytes) -> tuple[pb.PullReply, list[Values], list[Dense]]:
    """See `pull_reply`; rows are flat."""
    head, parts = _split(pb.PullReply, data, [pb.PullReply.ROWS_FIELD_NUMBER, pb.PullReply.DENSE_FIELD_NUMBER])
    rows = [part for field, part in parts if field == pb.PullReply.ROWS_FIELD_NUMBER]
    dense = [part for field, part in parts if field == pb.PullReply.DENSE_FIELD_NUMBER]
    return head, [_view(part, "<f4", f"rows[{i}]") for i, part in enumerate(rows)], _read_dense(dense)


def push_request(
    head: pb.PushRequest, tables: Iterable[tuple[int, Ids, Values, Counts]], dense: Iterable[Dense]
) -> bytes:
    """Gradients and counts by table, and gradients of chunks."""
    message = protowire.Message(head.SerializeToString())
    for table, ids, grads, counts in tables:
        begun = message.begin(pb.PushRequest.TABLES_FIELD_NUMBER)
        message.number(pb.TableGrads.TABLE_FIELD_NUMBER, table)
        message.array(pb.TableGrads.IDS_FIELD_NUMBER, ids)
        message.array(pb.TableGrads.GRADS_FIELD_NUMBER, grads)
        message.array(pb.TableGrads.COUNTS_FIELD_NUMBER, counts)
        message.end(begun)
    _add_dense(message, pb.PushRequest.DENSE_FIELD_NUMBER, dense)
    return message.to_bytes()


def read_push_request(data: bytes) -> tuple[pb.PushRequest, list[Grads], list[Dense]]:
    """See `push_request`."""
    numbers = [pb.PushRequest.TABLES_FIELD_NUMBER, pb.PushRequest.DENSE_FIELD_NUMBER]
    head, parts = _split(pb.PushRequest, data, numbers)
    tables = []
    for i, part in enumerate(part for field, part in parts if field == pb.PushRequest.TABLES_FIELD_NUMBER):
        path, entry = f"tables[{i}]", _entry(part, f"tables[{i}]")
        counts = _array(entry, pb.TableGrads.COUNTS_FIELD_NUMBER, "<u4", f"{path}.counts")
        tables.append(Grads(
            _number(entry, pb.TableGrads.TABLE_FIELD_NUMBER, f"{path}.table"),
            _array(entry, pb.TableGrads.IDS_FIELD_NUMBER, "<i8", f"{path}.ids"),
            _array(entry, pb.TableGrads.GRADS_FIELD_NUMBER, "<f4", f"{path}.grads"),
            counts if counts.size else None,
        ))
    dense = [part for field, part in parts if field == pb.PushRequest.DENSE_FIELD_NUMBER]
    return head, tables, _read_dense(dense)


def _add_dense(message: protowire.Message, field: int, dense: Iterable[Dense]) -> None:
    for block, chunk, values in dense:
        begun = message.begin(field)
        message.number(pb.DenseChunk.BLOCK_FIELD_NUMBER, block)
        message.number(pb.DenseChunk.CHUNK_FIELD_NUMBER, chunk)
        message.array(pb.DenseChunk.VALUES_FIELD_NUMBER, values)
        message.end(begun)


def _read_dense(parts: Sequence[memoryview]) -> list[Dense]:
    dense = []
    for i, part in enumerate(parts):
        path, entry = f"dense[{i}]", _entry(part, f"dense[{i}]")
        dense.append((
            _number(entry, pb.DenseChunk.BLOCK_FIELD_NUMBER, f"{path}.block"),
            _number(entry, pb.DenseChunk.CHUNK_FIELD_NUMBER, f"{path}.chunk"),
            _array(entry, pb.DenseChunk.VALUES_FIELD_NUMBER, "<f4", f"{path}.values"),
        ))
    return dense


# ---- reading


def _split(kind: type[M], data: bytes, arrays: Sequence[int]) -> tuple[M, list[tuple[int, memoryview]]]:
    try:
        rest, parts = protowire.split(data, arrays)
        head = kind()
        head.ParseFromString(rest)
    except (ValueError, DecodeError) as error:
        raise InvalidArgument(f"the message is no {kind.__name__}: {error}") from error
    return head, parts


def _entry(part: memoryview, path: str) -> dict[int, int | memoryview]:
    try:
        return dict(protowire.fields(part))
    except ValueError as error:
        raise InvalidArgument("the message is damaged", violations=[Violation(path, str(error))]) from error


def _number(entry: dict[int, int | memoryview], field: int, path: str) -> int:
    value = entry.get(field, 0)
    if isinstance(value, memoryview):
        raise InvalidArgument("the message is damaged", violations=[Violation(path, "is no integer")])
    return value


def _array(entry: dict[int, int | memoryview], field: int, dtype: str, path: str) -> NDArray[Any]:
    value = entry.get(field, memoryview(b""))
    if not isinstance(value, memoryview):
        raise InvalidArgument("the message is damaged", violations=[Violation(path, "is no array")])
    return _view(value, dtype, path)


def _view(data: memoryview, dtype: str, path: str) -> NDArray[Any]:
    try:
        return protowire.view(data, dtype)
    except ValueError as error:
        raise InvalidArgument("the bytes are no array", violations=[Violation(path, str(error))]) from error
