"""Reading snapshots from any fsspec file system; no service and no parameter server is needed.

    parts = [open_part(uri) for uri in uris]        # the folders ps-000, ps-001, ..., also those of its chain
    table = read_table(parts, "item")               # ids and values of the whole table
    dense = read_dense(parts)                       # {"layer.weight": float32 array of the block's shape}
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recmesh.formats.hashing import CHUNK, SLOTS
from recmesh.formats.snapshot.chain import Part, levels, newest_rows
from recmesh.formats.snapshot.document import PART_DOCUMENT, FileDocument, PartDocument, SnapshotError
from recmesh.formats.snapshot.rows import DenseChunk, RowColumns, read_dense_chunks

_HASH_BYTES = 16 << 20


class StoredPart:
    """A part's folder on a file system; local files are mapped, not copied."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._files, self._root = fsspec.core.url_to_fs(uri)
        self._is_local = "file" in _protocols(self._files)
        self.document = PartDocument.from_json(self._read(PART_DOCUMENT))

    def open(self, name: str) -> Any:
        """See Part."""
        expected = self.document.file(name)
        if self._is_local:
            path = Path(self._root) / name
            if not path.is_file():
                raise SnapshotError(f"{self.uri}/{name} is missing")
            return verified(map_file(path), expected)
        return verified(pa.py_buffer(self._read(name)), expected)

    def _read(self, name: str) -> bytes:
        try:
            data: bytes = self._files.cat_file(f"{self._root}/{name}")
            return data
        except FileNotFoundError as error:
            raise SnapshotError(f"{self.uri}/{name} is missing") from error


def open_part(uri: str) -> StoredPart:
    """The part in this folder; SnapshotError when its part.json is missing or wrong."""
    return StoredPart(uri.rstrip("/"))


def open_folder(folder: Path) -> list[Part]:
    """The parts of a snapshot in a folder of this machine, and of those that it builds on, which lie beside it.

    SnapshotError when one of these folders holds another snapshot than its number says.
    """
    level = _parts_in(folder)
    found = list(level)
    while base := max((part.document.base for part in level), default=0):
        below = folder.with_name(f"{base:08d}")
        level = _parts_in(below)
        for part in level:
            if part.document.snapshot != base:
                raise SnapshotError(f"{below} has a part of snapshot {part.document.snapshot}, not of {base}")
        found += level
    return found


def _parts_in(folder: Path) -> list[Part]:
    return [open_part(str(path)) for path in sorted(folder.glob("ps-*"))]


def map_file(path: Path, *, offset: int = 0, size_bytes: int | None = None) -> Any:
    """A file, or a range of it, as a buffer over mapped memory."""
    if path.stat().st_size == 0:
        return pa.py_buffer(b"")
    whole = pa.memory_map(str(path)).read_buffer()
    return whole.slice(offset, len(whole) - offset if size_bytes is None else size_bytes)


def verified(buffer: Any, expected: FileDocument) -> Any:
    """The buffer, when size and SHA-256 are as stated; SnapshotError otherwise."""
    if len(buffer) != expected.size_bytes:
        raise SnapshotError(f"{expected.name} has {len(buffer)} bytes, not {expected.size_bytes}")
    digest, view = hashlib.sha256(), memoryview(buffer)
    for lo in range(0, len(view), _HASH_BYTES):
        digest.update(view[lo:lo + _HASH_BYTES])
    if digest.hexdigest() != expected.sha256:
        raise SnapshotError(f"{expected.name} does not have the checksum {expected.sha256}")
    return buffer


def table_blocks(parts: Sequence[Part], table: str) -> Iterator[RowColumns]:
    """Rows of a table from all parts and groups, in no particular order; of each id the newest row."""
    return newest_rows(levels(parts), table, wanted=np.ones(SLOTS, np.bool_))


def read_table(parts: Sequence[Part], table: str) -> RowColumns:
    """A whole table, ascending by id; SnapshotError when no part knows it, or an id occurs twice."""
    schema = next((s for part in parts for s in part.document.tables if s["name"] == table), None)
    if schema is None:
        raise SnapshotError(f"the snapshot has no table {table!r}")
    empty = RowColumns(np.empty(0, np.int64), np.empty((0, schema["dim"]), np.float32),
                       np.empty((0, schema["state_width"]), np.float32), np.empty(0, np.uint32),
                       np.empty(0, np.uint32), np.empty(0, np.uint64))
    columns = [np.concatenate(column) for column in zip(empty, *table_blocks(parts, table), strict=True)]
    order = np.argsort(columns[0], kind="stable")
    rows = RowColumns(*(column[order] for column in columns))
    if (rows.ids[1:] == rows.ids[:-1]).any():
        raise SnapshotError(f"table {table!r} has an id twice")
    return rows


def dense_chunks(parts: Sequence[Part]) -> Iterator[DenseChunk]:
    """Chunks of all dense blocks, from all parts and groups of the newest snapshot, which has them all."""
    yield from _chunks(levels(parts)[0].parts)


def _chunks(level: Sequence[Part]) -> Iterator[DenseChunk]:
    for part in level:
        for group in part.document.groups:
            yield from read_dense_chunks(memoryview(part.open(group.dense_file)))


def read_dense(parts: Sequence[Part]) -> dict[str, NDArray[np.float32]]:
    """Every dense block whole, in its shape; SnapshotError when a chunk is missing."""
    return level_dense(levels(parts)[0].parts)


def level_dense(parts: Sequence[Part]) -> dict[str, NDArray[np.float32]]:
    """The same, of all parts of one snapshot; those that it builds on are not needed."""
    shapes: dict[str, Mapping[str, Any]] = {s["name"]: s for part in parts for s in part.document.dense}
    blocks = {name: np.full(int(np.prod(s["shape"])), np.nan, np.float32) for name, s in shapes.items()}
    missing = {name: set(range(-(-block.size // CHUNK))) for name, block in blocks.items()}
    for chunk in _chunks(parts):
        lo = chunk.chunk * CHUNK
        blocks[chunk.block][lo:lo + chunk.values.size] = chunk.values
        missing[chunk.block].discard(chunk.chunk)
    for name, chunks in missing.items():
        if chunks:
            raise SnapshotError(f"dense block {name!r} lacks the chunks {sorted(chunks)}")
    return {name: block.reshape(shapes[name]["shape"]) for name, block in blocks.items()}


def _protocols(files: Any) -> tuple[str, ...]:
    protocol = files.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
