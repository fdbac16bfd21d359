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

from recmesh.formats import SLOTS, SlotMask, slots_of
from recmesh.store.dense import DenseBlock, DenseRecord
from recmesh.store.eviction import Eviction
from recmesh.store.index import Index
from recmesh.store.memory import machine_memory_bytes
from recmesh.store.row_kernels import BLOCK
from recmesh.store.schema import DenseSchema, TableSchema
from recmesh.store.slab import Slab
from recmesh.store.table import Raw, RowBlock, Table

_YIELD_S = 20e-6
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
        self._evictions: list[Eviction] = []
        self.share = 1.0                     # of all slots that live here, and so of each table's budget
        self.evicted: NDArray[np.uint64] = np.zeros(SLOTS, np.uint64)
        """[SLOTS]: updates of rows that were evicted, by slot; they move and are saved with the slot."""
        self.evicted_at_mark = self.evicted.copy()
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
            return self._add_table(schema).number

    def _add_table(self, schema: TableSchema) -> Table:
        table = Table(len(self.tables), schema=schema, index=self._index, size_bytes=self._memory_bytes)
        self.tables.append(table)
        self._evictions.append(Eviction(table))
        return table

    def add_dense(self, schema: DenseSchema) -> int:
        """The number of a new block without chunks."""
        with self._mutex:
            self.dense.append(DenseBlock(schema))
            return len(self.dense) - 1

    def replace_table(self, old: int, schema: TableSchema) -> int:
        """A table with the values of the old one, which goes; state is fresh if the optimizer is of another kind."""
        with self._mutex:
            source = self.tables[old]
            keep_state = source.schema.optimizer.kind == schema.optimizer.kind
            table = self._add_table(schema)
            for slab, read in ((source.slab, source.read), (source.candidates, source.read_candidates)):
                for lo in range(0, slab.rows, _COPY_BLOCKS * BLOCK):
                    block = read(lo, min(lo + _COPY_BLOCKS * BLOCK, slab.rows))
                    table.adopt(block, keep_state=keep_state)
            self._empty(old)
            return table.number

    def _empty(self, number: int) -> None:
        schema = self.tables[number].schema
        self.tables[number] = Table(number, schema=schema, index=self._index, size_bytes=0)
        self._evictions[number] = Eviction(self.tables[number])

    def drop_table(self, number: int) -> None:
        """Forget the rows; the number is not used again."""
        with self._mutex:
            self._empty(number)

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
              counts: NDArray[np.uint32] | None, *, step: int, slots: SlotMask | None = None
              ) -> NDArray[np.int64]:
        """One optimizer step on the rows of ids, created where absent and frequent enough.

        Returns the ids that the table's policies evicted, in `slots` only (None: in all); `evicted` has them.
        """
        with self._kernels():
            self.tables[table].apply(ids, grads, counts, step=step)
            gone = self._evictions[table].after(len(ids), step=step, slots=slots, share=self.share)
            if len(gone.ids):
                np.add.at(self.evicted, slots_of(gone.ids, self.tables[table].schema.name), gone.updates)
        return gone.ids

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

    def add_evicted(self, updates: Mapping[int, int]) -> None:
        """By slot: updates of rows that were evicted before the slots came here."""
        with self._mutex:
            for slot, count in updates.items():
                self.evicted[slot] += np.uint64(count)

    def evicted_in(self, slots: SlotMask) -> dict[int, int]:
        """By slot: updates of rows that were evicted; slots without any are left out."""
        with self._mutex:
            return {slot: int(self.evicted[slot]) for slot in np.flatnonzero(slots & (self.evicted > 0)).tolist()}

    def forget_evicted(self, slots: SlotMask) -> None:
        """The slots are another's, and so is their count."""
        with self._mutex:
            self.evicted[slots] = 0

    def load_chunk(self, record: DenseRecord) -> None:
        """A chunk as it was saved."""
        with self._kernels():
            self.dense[record.block].load(record, changed=self.clock + 1)

    def read_rows(self, table: int, ids: NDArray[np.int64]) -> RowBlock:
        """The whole rows of those ids that exist, in any order; each as it is at one moment."""
        source = self.tables[table]
        raw = Raw(source, room=len(ids))
        for some in _sections(len(ids), source.width):
            with self._kernels():
                source.fetch(ids[some], raw)
        return raw.decode(source)

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
        # Candidates first: one that is admitted meanwhile becomes a new row, at a place above the pass's start.
        for slab in (source.candidates, source.slab):
            yield from self._scan(source, slab, slots)

    def _scan(self, source: Table, slab: Slab, slots: SlotMask) -> Iterator[RowBlock]:
        room = max(1, min(_COPY_BLOCKS * BLOCK, _PIECE_BYTES // slab.row_bytes))
        span = min(room, _span(slab.width) * 4)            # most rows are only looked at
        raw, found, hi = np.empty((room, slab.width), np.float32), 0, slab.rows
        while hi > 0:
            lo = max(0, hi - span)
            with self._kernels():
                found += source.pick(slab, lo, hi, slots, raw[found:])
            hi = lo
            if found > room - span or hi == 0:
                if found:
                    yield source.decode(raw[:found], slab)
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
                table.candidates.mark()
            self.evicted_at_mark = self.evicted.copy()
            for block in self.dense:
                block.mark()

    def unmark(self) -> None:
        """End of the copy, complete or not."""
        with self._mutex:
            slabs = self._slabs()
            for slab in slabs:
                slab.unmark()
            for block in self.dense:
                block.unmark()
        for slab in slabs:
            slab.clean()

    def make_ready(self) -> None:
        """Before a mark: memory for what it will make updates save."""
        with self._mutex:
            slabs = self._slabs()
        for slab in slabs:
            slab.make_ready()

    def _slabs(self) -> list[Slab]:
        return [slab for table in self.tables for slab in (table.slab, table.candidates)]

    def copy_rows(self, table: int) -> Iterator[RowBlock]:
        """The table's rows at the mark, in order of their places."""
        source = self.tables[table]
        for slab in (source.slab, source.candidates):
            raw = np.empty((_COPY_BLOCKS * BLOCK, slab.width), np.float32)
            for first in range(0, slab.marked_blocks, _COPY_BLOCKS):
                rows = 0
                for block in range(first, min(first + _COPY_BLOCKS, slab.marked_blocks)):
                    with self._kernels():
                        rows += slab.copy_block(block, raw[rows:rows + BLOCK])
                    time.sleep(_YIELD_S)     # a lock is not handed over: who waits for it must get a chance
                slab.make_ready()
                yield source.decode(raw[:rows], slab)

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
