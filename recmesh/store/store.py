"""All tables and dense blocks of one parameter server, or of one process that trains alone.

One mutex serialises kernels: a PS is one core's work, and more PSes give more cores. It is held per table, so
that a pull waits for one table of a push at most, and never sees half a row.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SlotMask
from recmesh.store.dense import DenseBlock, DenseRecord
from recmesh.store.index import Index
from recmesh.store.memory import machine_memory_bytes
from recmesh.store.row_kernels import BLOCK
from recmesh.store.schema import DenseSchema, TableSchema
from recmesh.store.table import RowBlock, Table

_COPY_BLOCKS = 16                            # blocks decoded together: 16,384 rows
_SECTION_IDS = 2048                          # whole rows moved while the mutex is held: well under 5 ms
_SECTION_BYTES = 4 << 20
_PIECE_BYTES = 64 << 20


class Store:
    """Thread-safe rows and chunks; which may be touched is the caller's concern."""

    def __init__(self, *, memory_bytes: int | None = None) -> None:
        self._mutex = threading.Lock()
        self._memory_bytes = memory_bytes or machine_memory_bytes()
        self._index = Index(self._memory_bytes)
        self.tables: list[Table] = []
        self.dense: list[DenseBlock] = []
        self._promised: Counter[int] = Counter()
        self.clock = 0                       # applied parts: what `dense_since` compares with
        self.busy_s = 0.0                    # in kernels

    @contextmanager
    def _kernels(self) -> Iterator[None]:
        with self._mutex:
            started = time.perf_counter()
            try:
                yield
            finally:
                self.busy_s += time.perf_counter() - started

    def add_table(self, schema: TableSchema) -> int:
        """The number of a new, empty table."""
        with self._mutex:
            table = Table(len(self.tables), schema=schema, index=self._index, size_bytes=self._memory_bytes)
            self.tables.append(table)
            return table.number

    def add_dense(self, schema: DenseSchema) -> int:
        """The number of a new block without chunks."""
        with self._mutex:
            self.dense.append(DenseBlock(schema))
            return len(self.dense) - 1

    def replace_table(self, old: int, schema: TableSchema) -> int:
        """A table with the values of the old one, which goes, and the fresh state of another optimizer."""
        with self._mutex:
            source = self.tables[old]
            table = Table(len(self.tables), schema=schema, index=self._index, size_bytes=self._memory_bytes)
            for lo in range(0, source.rows, _COPY_BLOCKS * BLOCK):
                table.adopt(source.read(lo, min(lo + _COPY_BLOCKS * BLOCK, source.rows)))
            self.tables.append(table)
            self.tables[old] = Table(old, schema=source.schema, index=self._index, size_bytes=0)
            return table.number

    def drop_table(self, number: int) -> None:
        """Forget the rows; the number is not used again."""
        with self._mutex:
            schema = self.tables[number].schema
            self.tables[number] = Table(number, schema=schema, index=self._index, size_bytes=0)

    def replace_dense(self, old: int, schema: DenseSchema) -> int:
        """A block with the values of the old one, which goes, and the fresh state of another optimizer."""
        with self._mutex:
            block = DenseBlock(schema)
            for chunk, cell in self.dense[old].chunks.items():
                block.create(chunk, cell.values, changed=self.clock + 1)
            self.dense.append(block)
            self.dense[old].chunks.clear()
            return len(self.dense) - 1

    def drop_dense(self, number: int) -> None:
        """Forget the chunks; the number is not used again."""
        with self._mutex:
            self.dense[number].chunks.clear()

    def create_chunk(self, block: int, chunk: int, values: NDArray[np.float32]) -> None:
        """A chunk with initial values."""
        with self._mutex:
            self.dense[block].create(chunk, values, changed=self.clock + 1)

    def pull(
        self, table: int, ids: NDArray[np.int64], *, absent_as_zero: bool = False
    ) -> NDArray[np.float32]:
        """float32 [ids, dim]; inserts nothing."""
        out = np.empty((len(ids), self.tables[table].schema.dim), np.float32)
        with self._kernels():
            self.tables[table].gather(ids, out, absent_as_zero=absent_as_zero)
        return out

    @contextmanager
    def reserved(self, ids: Mapping[int, int]) -> Iterator[None]:
        """Room for so many new rows per table while inside; ResourceExhausted, before, when there is none."""
        with self._mutex:
            promised = sum(self._promised.values()) + sum(ids.values())
            for table, count in ids.items():
                self.tables[table].reserve(self._promised[table] + count)
            self._index.reserve(promised)
            self._promised.update(ids)
        try:
            yield
        finally:
            with self._mutex:
                self._promised.subtract(ids)

    def apply(self, table: int, ids: NDArray[np.int64], grads: NDArray[np.float32],
              counts: NDArray[np.uint32] | None, *, step: int) -> None:
        """One optimizer step on the rows of ids, created where absent."""
        with self._kernels():
            self.tables[table].apply(ids, grads, counts, step=step)

    def apply_dense(self, grads: Sequence[tuple[int, int, NDArray[np.float32]]], *, step: int) -> None:
        """One optimizer step on (block, chunk, gradient) each."""
        with self._kernels():
            self.clock += 1
            for block, chunk, grad in grads:
                self.dense[block].apply(chunk, grad, step=step, changed=self.clock)

    def pull_dense(self, *, since: int = 0) -> tuple[list[tuple[int, int, NDArray[np.float32]]], int]:
        """(block, chunk, copy of the values) of chunks changed after `since`, and the clock to ask next."""
        with self._kernels():
            chunks = [(number, chunk, cell.values.copy()) for number, block in enumerate(self.dense)
                      for chunk, cell in block.chunks.items() if cell.changed > since]
            return chunks, self.clock

    def load_rows(self, table: int, rows: RowBlock) -> None:
        """Rows as they were saved."""
        with self._kernels():
            self.tables[table].load(rows)

    def load_chunk(self, record: DenseRecord) -> None:
        """A chunk as it was saved."""
        with self._kernels():
            self.dense[record.block].load(record, changed=self.clock + 1)

    def read_rows(self, table: int, ids: NDArray[np.int64]) -> RowBlock:
        """The whole rows of those ids that exist, in the order of ids; each as it is at one moment."""
        source = self.tables[table]
        raw, found = np.empty((len(ids), source.width), np.float32), 0
        for some in _sections(len(ids), source.width):
            with self._kernels():
                found += source.fetch(ids[some], raw[found:])
        return source.decode(raw[:found])

    def upsert_rows(self, table: int, rows: RowBlock) -> None:
        """Whole rows as they are given, created or replaced; ResourceExhausted before any effect."""
        with self.reserved({table: len(rows)}):
            for some in _sections(len(rows), self.tables[table].width):
                with self._kernels():
                    self.tables[table].upsert(rows[some])

    def remove_rows(self, table: int, ids: NDArray[np.int64]) -> int:
        """The rows of ids are gone, as if they had never been; returns how many there were."""
        removed = 0
        for some in _sections(len(ids), self.tables[table].width):
            with self._kernels():
                removed += self.tables[table].remove(ids[some])
        return removed

    def scan(self, table: int, slots: SlotMask) -> Iterator[RowBlock]:
        """The rows whose slot is in the set, in pieces of at most 16,384, beside pushes and removals.

        Each row is whole. One that exists from start to end is given at least once: the pass goes from the
        last place to the first, and a row only ever moves down. It may be given twice; then the last is newer.
        """
        source = self.tables[table]
        room = max(1, min(_COPY_BLOCKS * BLOCK, _PIECE_BYTES // (4 * source.width)))
        span = min(room, _span(source.width) * 4)          # most rows are only looked at
        raw, found, hi = np.empty((room, source.width), np.float32), 0, source.rows
        while hi > 0:
            lo = max(0, hi - span)
            with self._kernels():
                found += source.pick(lo, hi, slots, raw[found:])
            hi = lo
            if found > room - span or hi == 0:
                if found:
                    yield source.decode(raw[:found])
                found = 0

    def read_chunk(self, block: int, chunk: int) -> DenseRecord:
        """A chunk as it is; NotFound when it does not live here."""
        with self._kernels():
            return self.dense[block].read(chunk, number=block)

    def upsert_chunk(self, record: DenseRecord) -> None:
        """A chunk as it is given, created or replaced."""
        with self._kernels():
            self.dense[record.block].load(record, changed=self.clock + 1)

    def remove_chunk(self, block: int, chunk: int) -> bool:
        """The chunk is gone; whether it was there."""
        with self._kernels():
            return self.dense[block].remove(chunk)

    def mark(self) -> None:
        """Fix the state that `copy_rows` and `copy_dense` will give, whatever is applied meanwhile."""
        with self._mutex:
            for table in self.tables:
                table.slab.mark()
            for block in self.dense:
                block.mark()

    def unmark(self) -> None:
        """End of the copy, complete or not."""
        with self._mutex:
            for table in self.tables:
                table.slab.unmark()
            for block in self.dense:
                block.unmark()

    def copy_rows(self, table: int) -> Iterator[RowBlock]:
        """The table's rows at the mark, in order of their places."""
        source, slab = self.tables[table], self.tables[table].slab
        raw = np.empty((_COPY_BLOCKS * BLOCK, source.width), np.float32)
        for first in range(0, slab.marked_blocks, _COPY_BLOCKS):
            rows = 0
            for block in range(first, min(first + _COPY_BLOCKS, slab.marked_blocks)):
                with self._kernels():
                    rows += slab.copy_block(block, raw[rows:rows + BLOCK])
            yield source.decode(raw[:rows])

    def copy_dense(self, block: int) -> Iterator[DenseRecord]:
        """The block's chunks at the mark."""
        with self._mutex:
            marked = self.dense[block].marked()
        for chunk, cell in marked:
            with self._kernels():
                image, updates = cell.take_image()
            yield DenseRecord(block, chunk, image[:cell.length], image[cell.length:], updates)

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(table.rows for table in self.tables)

    @property
    def memory_bytes(self) -> int:
        """In rows, dense blocks and the index."""
        return (self._index.memory_bytes + sum(table.memory_bytes for table in self.tables)
                + sum(block.memory_bytes for block in self.dense))


def _span(width: int) -> int:
    """Rows of this many words to move in one section of the mutex."""
    return max(1, min(_SECTION_IDS, _SECTION_BYTES // (4 * width)))


def _sections(count: int, width: int) -> Iterator[slice]:
    span = _span(width)
    return (slice(lo, min(lo + span, count)) for lo in range(0, count, span))
