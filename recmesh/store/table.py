"""One embedding table: its rows, and the kernels bound to them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import mix
from recmesh.runtime.errors import DataLoss, ResourceExhausted
from recmesh.store import arithmetic, kernels
from recmesh.store.index import Index
from recmesh.store.kernels import BLOCK, HEADER, MARKED, PENDING, ROWS, SAVED
from recmesh.store.memory import Region
from recmesh.store.schema import OPTIMIZERS, TableSchema

_INIT_KINDS = {"zeros": arithmetic.ZEROS, "uniform": arithmetic.UNIFORM, "normal": arithmetic.NORMAL}
_NO_COUNTS = np.empty(0, np.uint32)
_MAX_ROWS = (1 << 32) - 2                    # a row number has 32 bits in the index


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows as a snapshot holds them; all arrays have one entry per row."""

    ids: NDArray[np.int64]
    values: NDArray[np.float32]
    """[rows, dim]"""
    state: NDArray[np.float32]
    """[rows, k]"""
    updates: NDArray[np.uint32]
    frequency: NDArray[np.uint32]
    last_step: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, keep: NDArray[np.bool_]) -> "RowBlock":
        """The rows where `keep` holds."""
        if keep.all():
            return self
        return RowBlock(self.ids[keep], self.values[keep], self.state[keep], self.updates[keep],
                        self.frequency[keep], self.last_step[keep])


class Table:
    """Not thread-safe: the store serialises."""

    def __init__(self, number: int, *, schema: TableSchema, index: Index, size_bytes: int) -> None:
        schema.check()
        self.schema, self.number = schema, number
        self._index, self._salt = index, index.add_table(number, schema.name)
        self.width = -(-(schema.dim + schema.state_width + HEADER) // 8) * 8
        row_bytes = 4 * self.width
        self._slab, self._log = Region(size_bytes), Region(size_bytes)
        rows = min(_MAX_ROWS, min(self._slab.size_bytes, self._log.size_bytes) // row_bytes) // BLOCK * BLOCK
        self.capacity = rows
        self._saved_region = Region(4 * rows, huge_pages=False)
        self._floats, self._words = self._slab.view(np.float32), self._slab.view(np.uint32)
        self._longs, self._log_floats = self._slab.view(np.uint64), self._log.view(np.float32)
        self._saved: NDArray[np.uint32] = self._saved_region.view(np.uint32)
        self._block_state = np.zeros(rows // BLOCK, np.uint8)
        self._meta = np.zeros(3, np.int64)
        self._seed_salt = np.uint64(int(self._salt) ^ mix(schema.init.seed))
        self._bias = schema.optimizer.bias()

    def use(self, schema: TableSchema) -> None:
        """Go on with other hyperparameters; name, dim and state are as before."""
        self.schema, self._bias = schema, schema.optimizer.bias()
        self._seed_salt = np.uint64(int(self._salt) ^ mix(schema.init.seed))

    @property
    def rows(self) -> int:
        """Rows there are."""
        return int(self._meta[ROWS])

    @property
    def memory_bytes(self) -> int:
        """In rows, and in the log of a snapshot that is being copied."""
        return (self.rows + int(self._meta[SAVED])) * 4 * self.width

    def gather(self, ids: NDArray[np.int64], out: NDArray[np.float32], *, absent_as_zero: bool) -> int:
        """out[i] := values of ids[i]; initial values, or zero, where absent. Returns how many are absent."""
        init = self.schema.init
        kind = arithmetic.ZEROS if absent_as_zero else _INIT_KINDS[init.kind]
        return int(kernels.gather(
            self._index.arena, self._index.parts, ids, np.uint64(self.number), self._salt,
            self._floats, self.width, out.reshape(-1), self.schema.dim, kind, self._seed_salt, init.scale))

    def reserve(self, ids: int) -> None:
        """ResourceExhausted unless `ids` more rows fit."""
        if self.rows + ids > self.capacity:
            raise ResourceExhausted(f"table {self.schema.name!r} is full", reason="TABLE_FULL")

    def apply(self, ids: NDArray[np.int64], grads: NDArray[np.float32], counts: NDArray[np.uint32] | None,
              *, step: int) -> int:
        """One optimizer step on the rows of ids; `step` is the group's before it. Returns rows created."""
        optimizer, init = self.schema.optimizer, self.schema.init
        created = int(kernels.apply(
            self._index.arena, self._index.parts, self._index.ctl, self._index.freed, self._index.salts,
            ids, np.uint64(self.number), self._salt, self._floats, self._log_floats, self._words, self._longs,
            self.width, self.schema.dim, self.schema.state_width, self._meta, self._block_state, self._saved,
            grads.reshape(-1), _NO_COUNTS if counts is None else counts, OPTIMIZERS[optimizer.kind],
            optimizer.hyper(step), self._bias, np.uint64(step + 1), _INIT_KINDS[init.kind], self._seed_salt,
            init.scale))
        self._index.collect()
        return created

    def load(self, block: RowBlock) -> None:
        """Rows as they were saved; DataLoss when one is there already."""
        index = self._index
        self.reserve(len(block))
        index.reserve(len(block))
        twice = kernels.load(
            index.arena, index.parts, index.ctl, index.freed, index.salts, block.ids, np.uint64(self.number),
            self._salt, self._floats, self._words, self._longs, self.width, self._meta,
            block.values, block.state, block.updates, block.frequency, block.last_step)
        index.collect()
        if twice >= 0:
            raise DataLoss(f"table {self.schema.name!r} has id {block.ids[twice]} twice in the snapshot")

    def adopt(self, block: RowBlock) -> None:
        """Rows of a table of the same ids and dim, with this optimizer's fresh state."""
        state = np.empty(self.schema.state_width, np.float32)
        optimizer = self.schema.optimizer
        kernels.fill_dense_state(state, OPTIMIZERS[optimizer.kind], optimizer.hyper(0))
        states = np.tile(state, (len(block), 1)).reshape(len(block), -1)
        self.load(RowBlock(block.ids, block.values, states, np.zeros_like(block.updates), block.frequency,
                           block.last_step))

    def mark(self) -> None:
        """From here on, the first update of each row saves it as it is now."""
        self._meta[MARKED] = self._meta[ROWS]
        self._block_state[:self.marked_blocks] = PENDING

    @property
    def marked_rows(self) -> int:
        """Rows at the mark."""
        return int(self._meta[MARKED])

    @property
    def marked_blocks(self) -> int:
        """Blocks that hold the rows at the mark."""
        return -(-self.marked_rows // BLOCK)

    def copy_block(self, block: int, out: NDArray[np.float32]) -> int:
        """out [BLOCK, width] := the block at the mark; returns its rows."""
        return int(kernels.copy_block(self._floats, self._log_floats, self._saved, self.width, self._meta,
                                      self._block_state, block, out))

    def unmark(self) -> None:
        """The snapshot is copied, or given up: nothing is saved any more."""
        self._block_state[:self.marked_blocks] = kernels.COPIED
        self._saved_region.release(0, self._saved_region.size_bytes)
        self._log.release(0, self._log.size_bytes)
        self._meta[MARKED] = self._meta[SAVED] = 0

    def decode(self, raw: NDArray[np.float32]) -> RowBlock:
        """Rows of the slab [rows, width] as arrays of their own."""
        dim, state, head = self.schema.dim, self.schema.state_width, self.width - HEADER
        header = np.ascontiguousarray(raw[:, head:])
        longs, words = header.view(np.uint64), header.view(np.uint32)
        return RowBlock(
            np.ascontiguousarray(longs[:, 0]).view(np.int64), np.ascontiguousarray(raw[:, :dim]),
            np.ascontiguousarray(raw[:, dim:dim + state]), np.ascontiguousarray(words[:, 4]),
            np.ascontiguousarray(words[:, 5]), np.ascontiguousarray(longs[:, 1]))

    def read(self, lo: int, hi: int) -> RowBlock:
        """Rows [lo, hi) in order of creation."""
        return self.decode(self._floats[lo * self.width:hi * self.width].reshape(-1, self.width))
