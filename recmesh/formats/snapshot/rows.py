"""Rows of a table as Arrow IPC, dense chunks as safetensors: both readable with their own libraries alone."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recmesh.formats.snapshot.document import SnapshotError


class RowColumns(NamedTuple):
    """One entry per row."""

    ids: NDArray[np.int64]
    values: NDArray[np.float32]
    """[rows, dim]"""
    state: NDArray[np.float32]
    """[rows, state_width]"""
    updates: NDArray[np.uint32]
    frequency: NDArray[np.uint32]
    last_step: NDArray[np.uint64]

    def select(self, keep: NDArray[np.bool_]) -> "RowColumns":
        """The rows where `keep` holds."""
        if keep.all():
            return self
        return RowColumns(self.ids[keep], self.values[keep], self.state[keep], self.updates[keep],
                          self.frequency[keep], self.last_step[keep])


class DenseChunk(NamedTuple):
    """A chunk of a dense block."""

    block: str
    chunk: int
    values: NDArray[np.float32]
    state: NDArray[np.float32]
    updates: int


def row_schema(name: str, dim: int, state_width: int) -> Any:
    """The columns of a table's file."""
    return pa.schema([
        pa.field("id", pa.int64(), nullable=False),
        pa.field("values", pa.list_(pa.float32(), dim), nullable=False),
        pa.field("state", pa.list_(pa.float32(), state_width), nullable=False),
        pa.field("updates", pa.uint32(), nullable=False),
        pa.field("frequency", pa.uint32(), nullable=False),
        pa.field("last_step", pa.uint64(), nullable=False),
    ], metadata={"recmesh.table": name})


def record_batch(schema: Any, rows: RowColumns) -> Any:
    """The rows as one Arrow record batch."""
    count = len(rows.ids)

    def fixed(values: NDArray[np.float32], width: int) -> Any:
        flat = pa.array(values.reshape(-1))
        if width:
            return pa.FixedSizeListArray.from_arrays(flat, width)
        return pa.Array.from_buffers(pa.list_(pa.float32(), 0), count, [None], children=[flat])

    return pa.record_batch([
        pa.array(rows.ids), fixed(rows.values, rows.values.shape[1]), fixed(rows.state, rows.state.shape[1]),
        pa.array(rows.updates), pa.array(rows.frequency), pa.array(rows.last_step),
    ], schema=schema)


def write_rows(sink: Any, schema: Any, blocks: Iterable[RowColumns]) -> int:
    """Write an Arrow IPC file; returns its rows."""
    rows = 0
    with pa.ipc.new_file(sink, schema) as writer:
        for block in blocks:
            if len(block.ids):
                writer.write_batch(record_batch(schema, block))
                rows += len(block.ids)
    return rows


_REMOVED = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def write_removed(sink: Any, ids: NDArray[np.int64]) -> None:
    """Write an Arrow IPC file of one column."""
    with pa.ipc.new_file(sink, _REMOVED) as writer:
        writer.write_batch(pa.record_batch([pa.array(ids)], schema=_REMOVED))


def read_removed(source: Any) -> NDArray[np.int64]:
    """The ids in a file of `write_removed`."""
    try:
        ids: NDArray[np.int64] = pa.ipc.open_file(source).read_all()["id"].to_numpy()
        return ids
    except (pa.ArrowInvalid, pa.ArrowTypeError, KeyError, OSError) as error:
        raise SnapshotError(f"not a file of removed ids: {error}") from error


def read_rows(source: Any) -> Iterator[RowColumns]:
    """The record batches of a table's file (a buffer or an Arrow file); arrays may be views of it."""
    try:
        reader = pa.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            yield _columns(reader.get_batch(number))
    except (pa.ArrowInvalid, pa.ArrowTypeError, KeyError, OSError) as error:
        raise SnapshotError(f"not a table's file: {error}") from error


def _columns(batch: Any) -> RowColumns:
    def flat(name: str) -> NDArray[Any]:
        column: NDArray[Any] = batch.column(name).to_numpy(zero_copy_only=True)
        return column

    def fixed(name: str) -> NDArray[np.float32]:
        column = batch.column(name)
        width = column.type.list_size
        if not width:
            return np.empty((len(batch), 0), np.float32)
        values: NDArray[np.float32] = column.flatten().to_numpy(zero_copy_only=True)
        return values.reshape(len(batch), width)

    return RowColumns(flat("id"), fixed("values"), fixed("state"), flat("updates"), flat("frequency"),
                      flat("last_step"))


def dense_bytes(chunks: Sequence[DenseChunk]) -> Iterator[bytes | memoryview]:
    """A safetensors file: `<block>/<chunk>`, and beside it `.state` (float32) and `.updates` (int64 [1])."""
    header: dict[str, Any] = {}
    arrays: list[NDArray[Any]] = []
    offset = 0
    for chunk in chunks:
        key = f"{chunk.block}/{chunk.chunk}"
        for name, kind, array in (
            (key, "F32", chunk.values), (f"{key}.state", "F32", chunk.state),
            (f"{key}.updates", "I64", np.array([chunk.updates], np.int64)),
        ):
            ends = [offset, offset + array.nbytes]
            header[name] = {"dtype": kind, "shape": [array.size], "data_offsets": ends}
            arrays.append(array)
            offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for array in arrays:
        yield np.ascontiguousarray(array).tobytes()


def read_dense_chunks(data: memoryview) -> Iterator[DenseChunk]:
    """The chunks of a dense file, ascending by block and number; arrays are views of the data."""
    try:
        length = int.from_bytes(data[:8], "little")
        if not 8 <= 8 + length <= len(data):
            raise SnapshotError("not a dense file: it ends inside its header")
        header = json.loads(bytes(data[8:8 + length]))
        body = data[8 + length:]

        def tensor(name: str, kind: str, dtype: str) -> NDArray[Any]:
            entry = header[name]
            lo, hi = entry["data_offsets"]
            if entry["dtype"] != kind or not 0 <= lo <= hi <= len(body):
                raise SnapshotError(f"tensor {name!r} is not {kind} inside the file")
            return np.frombuffer(body[lo:hi], dtype)

        keys = [key for key in header if not key.endswith((".state", ".updates")) and key != "__metadata__"]
        places = sorted((block, int(chunk), f"{block}/{chunk}")
                        for block, _, chunk in (key.rpartition("/") for key in keys))
        for block, chunk, key in places:
            updates = int(tensor(f"{key}.updates", "I64", "<i8")[0])
            values, state = tensor(key, "F32", "<f4"), tensor(f"{key}.state", "F32", "<f4")
            yield DenseChunk(block, chunk, values, state, updates)
    except SnapshotError:
        raise
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise SnapshotError(f"not a dense file: {error!r}") from error
