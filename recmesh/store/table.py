"""One embedding table: its rows, and the kernels bound to them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SlotMask, mix, table_salt
from recmesh.runtime.errors import DataLoss, ResourceExhausted
from recmesh.store import arithmetic, kernels, row_kernels
from recmesh.store.index import Index
from recmesh.store.row_kernels import CANDIDATE_WIDTH, HEADER, Layout, Start
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

    def __add__(self, other: "RowBlock") -> "RowBlock":
        """The rows of both, in copies."""
        return RowBlock(*(np.concatenate(pair) for pair in zip(_columns(self), _columns(other), strict=True)))

    def select(self, keep: NDArray[np.bool_]) -> "RowBlock":
        """The rows where `keep` holds."""
        if keep.all():
            return self
        return RowBlock(self.ids[keep], self.values[keep], self.state[keep], self.updates[keep],
                        self.frequency[keep], self.last_step[keep])


def _columns(block: RowBlock) -> tuple[NDArray[Any], ...]:
    return block.ids, block.values, block.state, block.updates, block.frequency, block.last_step


def first_rows(schema: TableSchema, ids: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Values [ids, dim] and state [ids, k] that rows of these ids begin with."""
    values = np.empty((len(ids), schema.dim), np.float32)
    state = np.empty((len(ids), schema.state_width), np.float32)
    row_kernels.fill_rows(ids, *_layout(schema), *_start(schema, _seed_salt(schema)), values, state)
    return values, state


def candidates(schema: TableSchema, rows: RowBlock) -> NDArray[np.bool_]:
    """Which of the rows are none yet: rarer than the minimum, and never trained. `put` decides so of one that comes."""
    found = rows.frequency < schema.min_frequency
    rare = np.flatnonzero(found)
    for read, first in zip((rows.values, rows.state), first_rows(schema, rows.ids[rare]), strict=True):
        found[rare] &= (read[rare].view(np.uint32) == first.view(np.uint32)).all(axis=1)
    return found


def _width(schema: TableSchema) -> int:
    return -(-(_value_words(schema) + schema.state_width + HEADER) // 8) * 8


def _value_words(schema: TableSchema) -> int:
    return -(-schema.dim // 2) if schema.half else schema.dim


def _layout(schema: TableSchema) -> tuple[Any, ...]:
    return Layout(_width(schema), schema.dim, schema.state_width, int(schema.half), schema.min_frequency)


def _seed_salt(schema: TableSchema) -> np.uint64:
    return np.uint64(table_salt(schema.name) ^ mix(schema.init.seed))


def _start(schema: TableSchema, seed_salt: np.uint64, *, step: int = 0) -> tuple[Any, ...]:
    return Start(_INIT_KINDS[schema.init.kind], seed_salt, schema.init.scale,
                 OPTIMIZERS[schema.optimizer.kind], schema.optimizer.hyper(step))


class Raw:
    """Rows as they lie in a table's slabs, gathered in pieces."""

    def __init__(self, table: "Table", *, room: int) -> None:
        self.rows = np.empty((room, table.width), np.float32)
        self.candidates = np.empty((room, CANDIDATE_WIDTH), np.float32)
        self.found = np.zeros(2, np.int64)
        """Rows and candidates there are."""

    def decode(self, table: "Table") -> RowBlock:
        """All of them."""
        rows = table.decode(self.rows[:self.found[0]])
        return rows + table.decode(self.candidates[:self.found[1]], table.candidates) if self.found[1] else rows


class Table:
    """Not thread-safe: the store serialises."""

    def __init__(self, number: int, *, schema: TableSchema, index: Index, size_bytes: int) -> None:
        schema.check()
        self.number = number
        self._index, self._salt = index, index.add_table(number, schema.name)
        self._value_words, self.width = _value_words(schema), _width(schema)
        self.slab = Slab(self.width, size_bytes=size_bytes)
        self.candidates = Slab(CANDIDATE_WIDTH, size_bytes=size_bytes // 4)
        self.use(schema)

    def use(self, schema: TableSchema) -> None:
        """Go on with other hyperparameters and policies; name, dim, dtype and state are as before."""
        self.schema, self._bias = schema, schema.optimizer.bias()
        self._seed_salt, self._layout = _seed_salt(schema), _layout(schema)

    def _start(self, step: int = 0) -> tuple[Any, ...]:
        return _start(self.schema, self._seed_salt, step=step)

    @property
    def rows(self) -> int:
        """Rows there are; candidates are none."""
        return self.slab.rows

    @property
    def memory_bytes(self) -> int:
        """In rows and candidates, and in the logs of a snapshot that is being copied."""
        return self.slab.memory_bytes + self.candidates.memory_bytes

    def gather(self, ids: NDArray[np.int64], out: NDArray[np.float32], *, absent_as_zero: bool) -> int:
        """out[i] := values of ids[i]; initial values, or zero, where there is no row. Returns how many have none."""
        init = self.schema.init
        kind = arithmetic.ZEROS if absent_as_zero else _INIT_KINDS[init.kind]
        slab = self.slab
        where = (self._index.arena, self._index.parts, ids, np.uint64(self.number), self._salt)
        start = (out.reshape(-1), self.schema.dim, kind, self._seed_salt, init.scale)
        if self.schema.half:
            return int(kernels.gather_half(*where, slab.floats, slab.words, self.width, *start))
        return int(kernels.gather(*where, slab.floats, self.width, *start))

    def reserve(self, ids: int) -> None:
        """ResourceExhausted unless `ids` more rows fit."""
        if any(slab.rows + ids > slab.capacity for slab in (self.slab, self.candidates)):
            raise ResourceExhausted(f"table {self.schema.name!r} is full", reason="TABLE_FULL")

    def apply(self, ids: NDArray[np.int64], grads: NDArray[np.float32], counts: NDArray[np.uint32] | None,
              *, step: int) -> None:
        """One optimizer step on the rows of ids; `step` is the group's before it."""
        kernels.apply(
            *self._index.arrays, *self.slab.arrays, *self.candidates.arrays, *self._layout, *self._start(step),
            ids, np.uint64(self.number), self._salt, grads.reshape(-1), _NO_COUNTS if counts is None else counts,
            self._bias, np.uint64(step + 1))
        self._index.collect()

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
        place = row_kernels.put(
            *self._index.arrays, *self.slab.arrays, *self.candidates.arrays, *self._layout, *self._start(),
            block.ids, np.uint64(self.number), self._salt, block.values, block.state, block.updates,
            block.frequency, block.last_step, int(replace))
        self._index.collect()
        return int(place)

    def adopt(self, block: RowBlock, *, keep_state: bool) -> None:
        """Rows of a table of the same ids and dim; with fresh state unless it is of this optimizer's kind."""
        state, updates = block.state, block.updates
        if not keep_state:
            _, state = first_rows(self.schema, block.ids)
            updates = np.zeros_like(block.updates)
        self.load(RowBlock(block.ids, block.values, state, updates, block.frequency, block.last_step))

    def fetch(self, ids: NDArray[np.int64], raw: Raw) -> None:
        """Append the rows of those ids that exist."""
        row_kernels.fetch(
            self._index.arena, self._index.parts, ids, np.uint64(self.number), self._salt, self.slab.floats,
            self.candidates.floats, self.width, raw.rows, raw.candidates, raw.found)

    def remove(self, ids: NDArray[np.int64]) -> int:
        """The rows of ids are gone; returns how many there were."""
        slabs = (self.slab, self.candidates)
        for slab in slabs:
            slab.grown()
        removed = int(row_kernels.remove(*self._index.arrays, *self.slab.arrays, *self.candidates.arrays,
                                         self.width, ids, np.uint64(self.number), self._salt))
        for slab in slabs:
            slab.shrink()
        return removed

    def pick(self, slab: Slab, lo: int, hi: int, slots: SlotMask, out: NDArray[np.float32]) -> int:
        """out [:n, width] := the slab's rows at places [lo, hi) whose slot is in the set; returns n."""
        return int(row_kernels.pick(slab.floats, slab.longs, slab.width, lo, min(hi, slab.rows), self._salt,
                                    slots.view(np.uint8), out))

    def overdue(self, slab: Slab, lo: int, hi: int, slots: SlotMask, *, now: int, rare: int,
                rare_limit: int, ids: NDArray[np.int64], updates: NDArray[np.uint32]) -> tuple[int, int]:
        """See the kernel; returns how many, and the last place that was looked at."""
        stopped = np.empty(1, np.int64)
        n = row_kernels.overdue(slab.longs, slab.words, slab.width, lo, hi, self._salt, slots.view(np.uint8), now,
                                self.schema.ttl_steps, rare, rare_limit, ids, updates, stopped)
        return int(n), int(stopped[0])

    def decode(self, raw: NDArray[np.float32], slab: Slab | None = None) -> RowBlock:
        """Rows of a slab (None: that of rows) [rows, its width] as arrays of their own."""
        dim, state, first = self.schema.dim, self.schema.state_width, self._value_words
        header = np.ascontiguousarray(raw[:, raw.shape[1] - HEADER:])
        longs, words = header.view(np.uint64), header.view(np.uint32)
        ids = np.ascontiguousarray(longs[:, 0]).view(np.int64)
        if slab is self.candidates:
            values, states = first_rows(self.schema, ids)
        else:
            values = np.ascontiguousarray(raw[:, :first])
            states = np.ascontiguousarray(raw[:, first:first + state])
            if self.schema.half:
                halves = values.view(np.uint16)[:, :dim].astype(np.uint32)
                values = np.ascontiguousarray(halves << 16).view(np.float32)
        return RowBlock(ids, values, states, np.ascontiguousarray(words[:, 4]),
                        np.ascontiguousarray(words[:, 5]), np.ascontiguousarray(longs[:, 1]))

    def read(self, lo: int, hi: int) -> RowBlock:
        """Rows at places [lo, hi)."""
        return self.decode(self.slab.floats[lo * self.width:hi * self.width].reshape(-1, self.width))

    def read_candidates(self, lo: int, hi: int) -> RowBlock:
        """Candidates at places [lo, hi), as the rows that they read as."""
        width = CANDIDATE_WIDTH
        return self.decode(self.candidates.floats[lo * width:hi * width].reshape(-1, width), self.candidates)
