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

from recmesh.store.dense import DenseBlock, DenseRecord
from recmesh.store.index import Index
from recmesh.store.kernels import BLOCK
from recmesh.store.memory import machine_memory_bytes
from recmesh.store.schema import DenseSchema, TableSchema
from recmesh.store.table import RowBlock, Table

_COPY_BLOCKS = 16                            # blocks decoded together: 16,384 rows


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

    def mark(self) -> None:
        """Fix the state that `copy_rows` and `copy_dense` will give, whatever is applied meanwhile."""
        with self._mutex:
            for table in self.tables:
                table.mark()
            for block in self.dense:
                for cell in block.chunks.values():
                    cell.marked = True

    def unmark(self) -> None:
        """End of the copy, complete or not."""
        with self._mutex:
            for table in self.tables:
                table.unmark()
            for block in self.dense:
                for cell in block.chunks.values():
                    cell.marked, cell.image = False, None

    def copy_rows(self, table: int) -> Iterator[RowBlock]:
        """The table's rows at the mark, in order of creation."""
        source = self.tables[table]
        raw = np.empty((_COPY_BLOCKS * BLOCK, source.width), np.float32)
        for first in range(0, source.marked_blocks, _COPY_BLOCKS):
            rows = 0
            for block in range(first, min(first + _COPY_BLOCKS, source.marked_blocks)):
                with self._kernels():
                    rows += source.copy_block(block, raw[rows:rows + BLOCK])
            yield source.decode(raw[:rows])

    def copy_dense(self, block: int) -> Iterator[DenseRecord]:
        """The block's chunks at the mark."""
        for chunk, cell in sorted(self.dense[block].chunks.items()):
            with self._kernels():
                if not cell.marked:
                    continue                 # created after the mark
                image, updates = cell.image or (cell.cell.copy(), cell.updates)
                cell.marked, cell.image = False, None
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


