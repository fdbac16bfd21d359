"""One embedding table: its rows, and the kernels bound to them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SlotMask, mix
from recmesh.runtime.errors import DataLoss, ResourceExhausted
from recmesh.store import arithmetic, kernels, row_kernels
from recmesh.store.index import Index
from recmesh.store.row_kernels import HEADER
from recmesh.store.schema import OPTIMIZERS, TableSchema
from recmesh.store.slab import Slab

_INIT_KINDS = {"zeros": arithmetic.ZEROS, "uniform": arithmetic.UNIFORM, "normal": arithmetic.NORMAL}
_NO_COUNTS = np.empty(0, np.uint32)


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

    def __getitem__(self, rows: slice) -> "RowBlock":
        """A run of rows, as views."""
        return RowBlock(self.ids[rows], self.values[rows], self.state[rows], self.updates[rows],
                        self.frequency[rows], self.last_step[rows])

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
        self.slab = Slab(self.width, size_bytes=size_bytes)
        self._seed_salt = np.uint64(int(self._salt) ^ mix(schema.init.seed))
        self._bias = schema.optimizer.bias()

    def use(self, schema: TableSchema) -> None:
        """Go on with other hyperparameters; name, dim and state are as before."""
        self.schema, self._bias = schema, schema.optimizer.bias()
        self._seed_salt = np.uint64(int(self._salt) ^ mix(schema.init.seed))

    @property
    def rows(self) -> int:
        """Rows there are."""
        return self.slab.rows

    @property
    def capacity(self) -> int:
        """Rows that fit in the address space."""
        return self.slab.capacity

    @property
    def memory_bytes(self) -> int:
        """In rows, and in the log of a snapshot that is being copied."""
        return self.slab.memory_bytes

    def gather(self, ids: NDArray[np.int64], out: NDArray[np.float32], *, absent_as_zero: bool) -> int:
        """out[i] := values of ids[i]; initial values, or zero, where absent. Returns how many are absent."""
        init = self.schema.init
        kind = arithmetic.ZEROS if absent_as_zero else _INIT_KINDS[init.kind]
        return int(kernels.gather(
            self._index.arena, self._index.parts, ids, np.uint64(self.number), self._salt,
            self.slab.floats, self.width, out.reshape(-1), self.schema.dim, kind, self._seed_salt, init.scale))

    def reserve(self, ids: int) -> None:
        """ResourceExhausted unless `ids` more rows fit."""
        if self.rows + ids > self.capacity:
            raise ResourceExhausted(f"table {self.schema.name!r} is full", reason="TABLE_FULL")

    def apply(self, ids: NDArray[np.int64], grads: NDArray[np.float32], counts: NDArray[np.uint32] | None,
              *, step: int) -> int:
        """One optimizer step on the rows of ids; `step` is the group's before it. Returns rows created."""
        optimizer, init, slab = self.schema.optimizer, self.schema.init, self.slab
        created = int(kernels.apply(
            self._index.arena, self._index.parts, self._index.ctl, self._index.freed, self._index.salts,
            ids, np.uint64(self.number), self._salt, slab.floats, slab.log, slab.words, slab.longs,
            self.width, self.schema.dim, self.schema.state_width, slab.meta, slab.block_state, slab.saved,
            grads.reshape(-1), _NO_COUNTS if counts is None else counts, OPTIMIZERS[optimizer.kind],
            optimizer.hyper(step), self._bias, np.uint64(step + 1), _INIT_KINDS[init.kind], self._seed_salt,
            init.scale))
        self._index.collect()
        return created

    def load(self, block: RowBlock) -> None:
        """Rows as they were saved; DataLoss when one is there already."""
        self.reserve(len(block))
        self._index.reserve(len(block))
        twice = self._put(block, replace=False)
        if twice >= 0:
            raise DataLoss(f"table {self.schema.name!r} has id {block.ids[twice]} twice in the snapshot")

    def upsert(self, block: RowBlock) -> None:
        """Rows as they are given, over those there are. The caller has reserved room."""
        self._put(block, replace=True)

    def _put(self, block: RowBlock, *, replace: bool) -> int:
        index, slab = self._index, self.slab
        place = row_kernels.put(
            index.arena, index.parts, index.ctl, index.freed, index.salts, block.ids, np.uint64(self.number),
            self._salt, slab.floats, slab.words, slab.longs, self.width, slab.log, slab.meta,
            slab.block_state, slab.saved, block.values, block.state, block.updates, block.frequency,
            block.last_step, int(replace))
        index.collect()
        return int(place)

    def adopt(self, block: RowBlock) -> None:
        """Rows of a table of the same ids and dim, with this optimizer's fresh state."""
        state = np.empty(self.schema.state_width, np.float32)
        optimizer = self.schema.optimizer
        kernels.fill_dense_state(state, OPTIMIZERS[optimizer.kind], optimizer.hyper(0))
        states = np.tile(state, (len(block), 1)).reshape(len(block), -1)
        self.load(RowBlock(block.ids, block.values, states, np.zeros_like(block.updates), block.frequency,
                           block.last_step))

    def fetch(self, ids: NDArray[np.int64], out: NDArray[np.float32]) -> int:
        """out [:n, width] := the rows of those ids that exist; returns n."""
        return int(row_kernels.fetch(self._index.arena, self._index.parts, ids, np.uint64(self.number),
                                     self._salt, self.slab.floats, self.width, out))

    def remove(self, ids: NDArray[np.int64]) -> int:
        """The rows of ids are gone; returns how many there were."""
        index, slab = self._index, self.slab
        slab.grown()
        removed = int(row_kernels.remove(
            index.arena, index.parts, index.salts, ids, np.uint64(self.number), self._salt, slab.floats,
            slab.longs, self.width, slab.log, slab.meta, slab.block_state, slab.saved))
        slab.shrink()
        return removed

    def pick(self, lo: int, hi: int, slots: SlotMask, out: NDArray[np.float32]) -> int:
        """out [:n, width] := the rows at places [lo, hi) whose slot is in the set; returns n."""
        return int(row_kernels.pick(self.slab.floats, self.slab.longs, self.width, lo, min(hi, self.rows),
                                    self._salt, slots.view(np.uint8), out))

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
        """Rows at places [lo, hi)."""
        return self.decode(self.slab.floats[lo * self.width:hi * self.width].reshape(-1, self.width))
