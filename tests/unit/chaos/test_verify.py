"""The verifier accepts what the counting job must leave, and names whatever differs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recmesh.chaos import dataset
from recmesh.chaos.counting import BLOCK, BLOCK_SIZE
from recmesh.chaos.dataset import EVICTED
from recmesh.chaos.truth import Truth
from recmesh.chaos.verify import Judgement, judge, judge_ledgers
from recmesh.formats import CHUNK, SLOTS, Ledger, SlotMap, slots_of
from recmesh.formats.snapshot import open_part
from recmesh.store import DenseSchema, Init, Optimizer, TableSchema
from recmesh.trainer.ps.messages import Declaration, Part, RestoreOrder, RowGrads
from recmesh.trainer.ps.server import ParameterServer
from tests.unit.ps.support import Mesh

ROWS, EPOCHS, BATCH = 300, 2, 16
SGD, ADD = Optimizer("sgd", lr=1.0), Optimizer("accumulate", lr=1.0)
MODEL = Declaration(
    (*(TableSchema(name, dim, SGD, Init("zeros")) for name, dim in (("item", 2), ("user", 1), ("pinned", 1))),
     TableSchema(EVICTED, 1, SGD, Init("zeros"), ttl_steps=4)),
    (DenseSchema(BLOCK, (BLOCK_SIZE,), ADD),))


class World:
    """Two servers, the truth, and one snapshot."""

    def __init__(self, folder: Path) -> None:
        self.files = dataset.write(folder / "rows", rows=ROWS, seed=3)
        rng = np.random.default_rng(1)
        self.positions = np.concatenate([rng.permutation(ROWS) for _ in range(EPOCHS)])
        self.truth = Truth.of(self.files, self.positions)
        self.folder, self.map = folder, SlotMap.even(1, 2)
        keeper = Mesh(folder)
        self.servers = [ParameterServer(f"inc-{ps}", shm_dir=folder, memory_bytes=64 << 20, deliver=keeper.deliver)
                        for ps in range(2)]
        owners = self.map.owners[slots_of(np.arange(2), BLOCK)]
        sizes = (CHUNK, BLOCK_SIZE - CHUNK)
        for ps, server in enumerate(self.servers):
            server.restore(RestoreOrder(1, 1, f"inc-{ps}", ps, self.map, "job"))
            server.declare(1, MODEL, [(0, k, np.zeros(sizes[k], np.float32)) for k in range(2) if owners[k] == ps])

    def part(self, ps: int, lo: int, hi: int) -> Part:
        """As a worker would push it, made of the truth's own counts."""
        applied = np.zeros(self.truth.total, np.bool_)
        applied[lo:hi] = True
        rows, sizes = [], (CHUNK, BLOCK_SIZE - CHUNK)
        for number, table in enumerate(MODEL.tables):
            counts = self.truth.counts(table.name, applied=applied, slots=self.map.mask(ps))
            grads = np.repeat(-counts.counts[:, None].astype(np.float32), table.dim, axis=1)
            rows.append(RowGrads(number, counts.ids, grads, counts.counts.astype(np.uint32)))
        owners = self.map.owners[slots_of(np.arange(2), BLOCK)]
        dense = [(0, k, np.full(sizes[k], hi - lo, np.float32)) for k in range(2) if owners[k] == ps]
        return Part(1, 1, ((0, lo, hi),), 1, rows, dense)

    def train(self, lo: int, hi: int, *, change: Callable[[Part], Part] = lambda part: part) -> None:
        for at in range(lo, hi, BATCH):
            for ps, server in enumerate(self.servers):
                server.push(change(self.part(ps, at, min(hi, at + BATCH))))

    def judged(self, **more: Any) -> Judgement:
        for server in self.servers:
            server.mark(1, 1, 1)
        for server in self.servers:
            assert server._copy is not None
            server._copy.join()
        return judge(self.parts(), self.truth, snapshot=1, **more)

    def parts(self) -> Any:
        return [open_part(str(self.folder / "00000001" / f"ps-{ps:03d}")) for ps in range(2)]

    def close(self) -> None:
        for server in self.servers:
            server.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_a_whole_run_is_right(world: World) -> None:
    world.train(0, ROWS * EPOCHS)
    found = world.judged(closing=True)
    assert found.is_right and found.is_full and found.positions == ROWS * EPOCHS, found
    assert found.evicted > 0
    assert found.rows > ROWS // 2
    assert judge_ledgers(world.folder / "00000001", ROWS * EPOCHS, snapshot=1, closing=True).is_right


def test_a_snapshot_from_the_middle_is_judged_by_its_own_ledgers(world: World) -> None:
    world.train(0, 160)
    world.servers[0].push(world.part(0, 160, 170))          # the other server has not had it yet
    found = world.judged()
    assert found.is_right and not found.is_full and found.positions == 160
    ledgers = judge_ledgers(world.folder / "00000001", ROWS * EPOCHS, snapshot=1, closing=True)
    assert ledgers.faults == 2


def test_lost_rows_are_named(world: World) -> None:
    world.train(0, ROWS, change=lambda part: replace(part, tables=part.tables[:1]))     # only `item`
    found = world.judged()
    assert found.lost == 3 * ROWS and found.doubled == 0
    assert "user: row" in found.named[0] and "is not there" in found.named[0]


def test_rows_that_went_are_counted_by_their_slots(world: World) -> None:
    world.train(0, ROWS * EPOCHS)
    evicted = 0
    for server in world.servers:
        assert server.model is not None
        evicted += int(server.model.store.evicted.sum())
        server.model.store.evicted[:] = 0
    assert evicted > 0
    found = world.judged(closing=True)
    assert (found.lost, found.doubled, found.evicted) == (evicted, 0, 0)
    assert "rows and evicted rows together" in found.named[0]


def test_doubled_chunks_are_seen(world: World) -> None:
    world.train(0, ROWS, change=lambda part: replace(part, dense=[(b, c, values * 2) for b, c, values in part.dense]))
    found = world.judged()
    assert (found.lost, found.doubled) == (0, 2 * ROWS)


def test_rows_that_no_sample_made_and_wrong_frequencies_are_faults(world: World) -> None:
    world.train(0, ROWS)
    nobody = np.array([10**9], np.int64)
    ps = int(world.map.owners[slots_of(nobody, "user")[0]])
    zero = RowGrads(1, nobody, np.zeros((1, 1), np.float32), np.zeros(1, np.uint32))
    part = world.part(ps, ROWS, ROWS + 1)
    world.servers[ps].push(replace(part, tables=[*part.tables, zero]))
    world.servers[1 - ps].push(world.part(1 - ps, ROWS, ROWS + 1))
    found = world.judged()
    assert (found.lost, found.doubled) == (0, 0) and found.faults >= 1
    assert any("was made by no sample" in text for text in found.named)


def test_void_positions_are_in_no_value(world: World) -> None:
    world.train(0, 96)
    for server in world.servers:
        server.void(1, 1, [(0, 96, 112)])
    assert world.judged(voids=Ledger([(0, 96, 112)])).is_right
    assert judge(world.parts(), world.truth, snapshot=1).lost > 0


def test_a_missing_part_leaves_slots_to_nobody(world: World) -> None:
    world.train(0, 32)
    world.judged()
    found = judge(world.parts()[:1], world.truth, snapshot=1)
    assert found.faults and any("not held exactly once" in text for text in found.named)


def test_ids_of_one_table_lie_on_one_server(world: World) -> None:
    everywhere = np.ones(SLOTS, np.bool_)
    all_rows = np.ones(world.truth.total, np.bool_)
    ids = world.truth.counts("pinned", applied=all_rows, slots=everywhere).ids
    assert len(ids) > 20 and set(SlotMap.even(1, 8).owners[slots_of(ids, "pinned")].tolist()) == {0}
