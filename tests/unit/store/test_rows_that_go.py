"""Whole rows and chunks that are read, put, removed and scanned, against a dictionary, with marks in between."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from recmesh.formats import SLOTS, SlotMask, slots_of
from recmesh.runtime.errors import NotFound, ResourceExhausted
from recmesh.store import DenseRecord, DenseSchema, Init, Optimizer, RowBlock, Store, TableSchema
from recmesh.store.row_kernels import BLOCK

Row = tuple[float, int, int, int]
"""Value, updates, frequency, last step."""
TABLES = 2
EVEN: SlotMask = np.arange(SLOTS) % 2 == 0


def _schema(name: str) -> TableSchema:
    return TableSchema(name, 1, Optimizer("accumulate"), Init("zeros"))


def _as_dict(blocks: Iterator[RowBlock] | list[RowBlock]) -> dict[int, Row]:
    return {id_: row for block in blocks for id_, row in zip(block.ids.tolist(), zip(
        block.values[:, 0].tolist(), block.updates.tolist(), block.frequency.tolist(),
        block.last_step.tolist(), strict=True), strict=True)}


def _block(rows: dict[int, Row]) -> RowBlock:
    columns = list(zip(*rows.values(), strict=True)) or [()] * 4
    return RowBlock(np.array(list(rows), np.int64), np.array(columns[0], np.float32).reshape(-1, 1),
                    np.empty((len(rows), 0), np.float32), np.array(columns[1], np.uint32),
                    np.array(columns[2], np.uint32), np.array(columns[3], np.uint64))


some_ids = st.builds(lambda first, count, stride: np.arange(first, first + count * stride, stride),
                     st.integers(-500, 2500), st.integers(0, 2 * BLOCK), st.sampled_from((1, 2, 7)))
tables = st.integers(0, TABLES - 1)


class Rows(RuleBasedStateMachine):
    """A store and what it should hold, now and at the mark."""

    @initialize()
    def begin(self) -> None:
        self.store = Store(memory_bytes=64 << 20)
        for name in "ab":
            self.store.add_table(_schema(name))
        self.truth: list[dict[int, Row]] = [{} for _ in range(TABLES)]
        self.marked: list[dict[int, Row]] | None = None
        self.copying: list[Iterator[RowBlock]] = []
        self.copied: list[list[RowBlock]] = []
        self.scanning: Iterator[RowBlock] | None = None
        self.step = 0

    @rule(table=tables, ids=some_ids)
    def push(self, table: int, ids: NDArray[np.int64]) -> None:
        self.store.apply(table, ids, np.ones((len(ids), 1), np.float32), np.full(len(ids), 3, np.uint32),
                         step=self.step)
        self.step += 1
        rows = self.truth[table]
        for id_ in ids.tolist():
            value, updates, frequency, _ = rows.get(id_, (0.0, 0, 0, 0))
            rows[id_] = (value + 1.0, updates + 1, frequency + 3, self.step)

    @rule(table=tables, ids=some_ids, value=st.integers(0, 99))
    def put(self, table: int, ids: NDArray[np.int64], value: int) -> None:
        rows: dict[int, Row] = {id_: (float(value), value + 1, value + 2, value + 3) for id_ in ids.tolist()}
        self.store.upsert_rows(table, _block(rows))
        self.truth[table].update(rows)

    @rule(table=tables, ids=some_ids)
    def remove(self, table: int, ids: NDArray[np.int64]) -> None:
        there = [id_ for id_ in ids.tolist() if id_ in self.truth[table]]
        assert self.store.remove_rows(table, ids) == len(there)
        for id_ in there:
            del self.truth[table][id_]
        if self.scanning is not None and table == 0:
            self.stayed -= set(there)

    @rule(table=tables, ids=some_ids)
    def read(self, table: int, ids: NDArray[np.int64]) -> None:
        block = self.store.read_rows(table, ids)
        assert block.ids.tolist() == [id_ for id_ in ids.tolist() if id_ in self.truth[table]]
        assert _as_dict([block]) == {id_: self.truth[table][id_] for id_ in block.ids.tolist()}
        pulled = self.store.pull(table, ids)[:, 0].tolist()
        assert pulled == [self.truth[table].get(id_, (0.0,))[0] for id_ in ids.tolist()]

    @precondition(lambda self: self.marked is None)
    @rule()
    def mark(self) -> None:
        self.store.mark()
        self.marked = [dict(rows) for rows in self.truth]
        self.copying = [self._copy(table) for table in range(TABLES)]
        self.copied = [[] for _ in range(TABLES)]

    def _copy(self, table: int) -> Iterator[RowBlock]:
        """As `copy_rows`, but block by block, so that changes fall between any two."""
        source = self.store.tables[table]
        out = np.empty((BLOCK, source.width), np.float32)
        for block in range(source.slab.marked_blocks):
            yield source.decode(out[:source.slab.copy_block(block, out)])

    @precondition(lambda self: self.marked is not None)
    @rule(table=tables)
    def copy_a_block(self, table: int) -> None:
        self.copied[table] += [block for block in [next(self.copying[table], None)] if block is not None]

    @precondition(lambda self: self.marked is not None)
    @rule()
    def finish(self) -> None:
        assert self.marked is not None
        for table in range(TABLES):
            blocks = [*self.copied[table], *self.copying[table]]
            assert sum(map(len, blocks)) == len(self.marked[table])
            assert _as_dict(blocks) == self.marked[table]
        self.store.unmark()
        self.marked = None

    @precondition(lambda self: self.marked is not None)
    @rule()
    def give_up(self) -> None:
        self.store.unmark()
        self.marked = None

    @precondition(lambda self: self.scanning is None)
    @rule()
    def scan(self) -> None:
        slots = slots_of(np.array(list(self.truth[0]), np.int64), "a")
        self.stayed = {id_ for id_, slot in zip(self.truth[0], slots.tolist(), strict=True) if EVEN[slot]}
        self.scanning, self.scanned = self.store.scan(0, EVEN), dict[int, Row]()

    @precondition(lambda self: self.scanning is not None)
    @rule()
    def scan_on(self) -> None:
        assert self.scanning is not None
        piece = next(self.scanning, None)
        if piece is not None:
            rows = _as_dict([piece])
            assert rows == {id_: self.truth[0][id_] for id_ in rows}          # whole, and as they are now
            assert EVEN[slots_of(piece.ids, "a")].all()
            self.scanned.update(rows)
        else:
            assert self.stayed <= set(self.scanned)
            self.scanning = None

    @invariant()
    def sizes(self) -> None:
        if hasattr(self, "truth"):
            assert [table.rows for table in self.store.tables] == [len(rows) for rows in self.truth]
            if self.marked is None:
                assert all(_as_dict([table.read(0, table.rows)]) == rows
                           for table, rows in zip(self.store.tables, self.truth, strict=True))


Rows.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestRows = Rows.TestCase


def test_a_scan_beside_pushes_and_removals_gives_every_row_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recmesh.store.store._COPY_BLOCKS", 1)                # many pieces
    store = Store()
    table = store.add_table(_schema("a"))
    stays, goes = np.arange(0, 60_000, 2), np.arange(1, 60_000, 2)
    for ids in (np.arange(60_000),):
        store.apply(table, ids, np.ones((len(ids), 1), np.float32), None, step=0)
    stop = threading.Event()

    def disturb() -> None:
        rng = np.random.default_rng(0)
        while not stop.is_set():
            ids = np.unique(rng.choice(goes, 500))
            store.remove_rows(table, ids)
            store.apply(table, ids, np.ones((len(ids), 1), np.float32), None, step=1)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(5):
            given = np.concatenate([block.ids for block in store.scan(table, np.ones(SLOTS, np.bool_))])
            assert np.isin(stays, given).all()
    finally:
        stop.set()
        thread.join()


def test_a_removed_chain_of_the_index_leaves_the_others_found() -> None:
    store = Store()
    table = store.add_table(_schema("a"))
    ids = np.random.default_rng(3).integers(-(2**63), 2**63, 50_000)
    store.apply(table, ids, np.arange(50_000, dtype=np.float32)[:, None], None, step=0)
    entries = store.memory_bytes - store.tables[table].memory_bytes
    for keep in (25_000, 5_000, 10):
        store.remove_rows(table, ids[keep:])
        assert store.pull(table, ids[:keep])[:, 0].tolist() == list(range(keep))
        assert not store.pull(table, ids[keep:]).any()
    store.apply(table, ids[10:], np.ones((len(ids) - 10, 1), np.float32), None, step=1)
    assert store.rows == 50_000
    assert store.memory_bytes - store.tables[table].memory_bytes == entries    # nothing of the past is kept


def test_removed_rows_give_their_memory_back() -> None:
    store = Store()
    table = store.add_table(TableSchema("a", 64, Optimizer("adam"), Init("zeros")))
    ids = np.arange(40_000)
    store.apply(table, ids, np.ones((len(ids), 64), np.float32), None, step=0)
    row_bytes = 4 * store.tables[table].width
    assert store.tables[table].memory_bytes == 40_000 * row_bytes
    store.remove_rows(table, ids[100:])
    assert store.tables[table].memory_bytes == 100 * row_bytes
    behind = store.tables[table].slab.floats[30_000 * store.tables[table].width:39_000 * store.tables[table].width]
    assert not behind.any()                                                   # fresh pages
    assert (store.read_rows(table, ids).updates == 1).all()


def test_no_room_is_said_before_any_row_is_put() -> None:
    store = Store(memory_bytes=64 << 20)
    table = store.add_table(TableSchema("t", 512, Optimizer("adam")))
    count = store.tables[table].slab.capacity + 1
    zeros = np.zeros(count, np.uint32)
    rows = RowBlock(np.arange(count), np.zeros((count, 512), np.float32), np.zeros((count, 1024), np.float32),
                    zeros, zeros, np.zeros(count, np.uint64))
    with pytest.raises(ResourceExhausted, match="is full"):
        store.upsert_rows(table, rows)
    assert store.rows == 0


class Chunks(RuleBasedStateMachine):
    """A dense block's chunks and what they should hold, now and at the mark."""

    @initialize()
    def begin(self) -> None:
        self.store = Store(memory_bytes=64 << 20)
        self.block = self.store.add_dense(DenseSchema("w", (3 * 16_384,), Optimizer("accumulate")))
        self.truth: dict[int, tuple[float, int]] = {}
        self.marked: dict[int, tuple[float, int]] | None = None

    @rule(chunk=st.integers(0, 2), value=st.integers(0, 9))
    def put(self, chunk: int, value: int) -> None:
        self.store.upsert_chunk(DenseRecord(self.block, chunk, np.full(16_384, value, np.float32),
                                            np.empty(0, np.float32), value))
        self.truth[chunk] = (float(value), value)

    @rule(chunk=st.integers(0, 2))
    def remove(self, chunk: int) -> None:
        assert self.store.remove_chunk(self.block, chunk) == (chunk in self.truth)
        self.truth.pop(chunk, None)

    @rule()
    def push(self) -> None:
        self.store.apply_dense([(self.block, chunk, np.ones(16_384, np.float32)) for chunk in self.truth], step=0)
        self.truth = {chunk: (value + 1, updates + 1) for chunk, (value, updates) in self.truth.items()}

    @precondition(lambda self: self.marked is None)
    @rule()
    def mark(self) -> None:
        self.store.mark()
        self.marked = dict(self.truth)
        self.copying = self.store.copy_dense(self.block)

    @precondition(lambda self: self.marked is not None)
    @rule()
    def finish(self) -> None:
        copied = {record.chunk: (float(record.values.max()), record.updates) for record in self.copying}
        assert copied == self.marked
        self.store.unmark()
        self.marked = None

    @precondition(lambda self: self.marked is not None)
    @rule()
    def give_up(self) -> None:
        self.store.unmark()
        self.marked = None

    @invariant()
    def all_are_read(self) -> None:
        for chunk in range(3 if hasattr(self, "truth") else 0):
            if chunk in self.truth:
                record = self.store.read_chunk(self.block, chunk)
                assert (float(record.values.min()), record.updates) == self.truth[chunk]
            else:
                with pytest.raises(NotFound):
                    self.store.read_chunk(self.block, chunk)


Chunks.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestChunks = Chunks.TestCase
