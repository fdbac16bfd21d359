"""One parameter server in this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recmesh.formats import CHUNK, SLOTS, SlotMap, slots_of
from recmesh.formats.snapshot import SnapshotError, open_part, read_dense, read_table
from recmesh.pb import ckptcache_pb2
from recmesh.runtime.errors import DataLoss, FailedPrecondition, InvalidArgument, ResourceExhausted, Unavailable
from recmesh.store import DenseRecord, DenseSchema, Init, Optimizer, RowBlock, TableSchema
from recmesh.trainer.ps import model as model_module
from recmesh.trainer.ps.baseline import Changes
from recmesh.trainer.ps.copying import Order
from recmesh.trainer.ps.demand import HALF_LIFE_S, SlotDemand
from recmesh.trainer.ps.latch import Held
from recmesh.trainer.ps.messages import Declaration, Part, PushStatus, RowGrads
from recmesh.trainer.ps.model import Model
from recmesh.trainer.ps.refusals import (
    NoGeneration,
    NotDeclared,
    Overlap,
    StaleGeneration,
    StaleTerm,
    WrongIncarnation,
    WrongMap,
)
from recmesh.trainer.ps.rpc import checkpoints
from recmesh.trainer.ps.server import ParameterServer
from tests.unit.ps.support import COUNT, MODEL, Mesh, initial_chunks, parts_of, truth


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    mesh = Mesh(tmp_path)
    mesh.begin(2)
    yield mesh
    mesh.close()


def _part(mesh: Mesh, lo: int, hi: int, ps: int = 0) -> Part:
    return parts_of([(0, lo, hi)], mesh.slot_map, gen=mesh.gen, n_ps=mesh.n_ps)[ps]


def test_a_new_process_refuses_everything(tmp_path: Path) -> None:
    server = ParameterServer("x", shm_dir=tmp_path)
    mesh = Mesh(tmp_path, gen=1, version=1)
    for call in (lambda: server.push(_part(mesh, 0, 1)), lambda: server.pull(1, 1), lambda: server.ledgers(1),
                 lambda: server.declare(1, MODEL), lambda: server.mark(1, 1, 1)):
        with pytest.raises(NoGeneration):
            call()


def test_a_push_before_the_declaration_is_refused(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, gen=1, version=1)
    server = mesh.server("inc-1-0")
    server.restore(mesh.order(0))
    with pytest.raises(NotDeclared):
        server.push(_part(mesh, 0, 4))


def test_a_replayed_push_is_acknowledged_without_effect(mesh: Mesh) -> None:
    first, again = mesh.servers[0].push(_part(mesh, 0, 8)), mesh.servers[0].push(_part(mesh, 0, 8))
    assert (first.status, first.duplicate) == (PushStatus.APPLIED, False)
    assert (again.status, again.duplicate) == (PushStatus.APPLIED, True)
    mesh.push([(0, 0, 8)], [1])
    assert mesh.counts()[0] == truth(range(8))[0]


def test_an_empty_part_advances_the_ledger(mesh: Mesh) -> None:
    empty = Part(mesh.gen, mesh.version, ((0, 0, 8),))
    assert not mesh.servers[0].push(empty).duplicate
    assert mesh.servers[0].ledgers(mesh.gen).by_all.triples() == [(0, 0, 8)]
    assert mesh.servers[0].stats().step == 1


@pytest.mark.parametrize(("change", "refusal"), [
    ({"gen": 9}, StaleGeneration), ({"map_version": 0}, WrongMap), ({"batch": ((0, 4, 12),)}, Overlap),
])
def test_a_refused_push_has_no_effect(
    mesh: Mesh, change: dict[str, object], refusal: type[Exception]
) -> None:
    mesh.push([(0, 0, 8)], [0, 1])
    before = mesh.counts()
    with pytest.raises(refusal):
        mesh.servers[0].push(replace(_part(mesh, 8, 12), **change))     # type: ignore[arg-type]  # by name
    assert mesh.counts() == before
    assert mesh.servers[0].ledgers(mesh.gen).by_any.triples() == [(0, 0, 8)]


def test_a_part_with_a_row_of_another_server_is_the_wrong_map(mesh: Mesh) -> None:
    with pytest.raises(WrongMap):
        mesh.servers[0].push(_part(mesh, 0, 8, ps=1))
    foreign = _part(mesh, 0, 8, ps=1).tables[0].ids
    with pytest.raises(WrongMap):
        mesh.servers[0].pull(mesh.gen, mesh.version, [(0, foreign)])
    assert mesh.servers[0].stats().rows == 0


@pytest.mark.parametrize(("tables", "dense", "path"), [
    ([RowGrads(7, np.zeros(0, np.int64), np.zeros(0, np.float32))], [], "tables[0].table"),
    ([RowGrads(0, np.zeros(2, np.int64), np.zeros(3, np.float32))], [], "tables[0].grads"),
    ([RowGrads(0, np.zeros(1, np.int64), np.zeros(2, np.float32), np.zeros(2, np.uint32))], [],
     "tables[0].counts"),
    ([], [(0, 5, np.zeros(3, np.float32))], "dense[0]"),
    ([], [(1, 0, np.zeros(3, np.float32))], "dense[0]"),
    ([], [(0, 1, np.zeros(4, np.float32))], "dense[0].values"),
])
def test_a_malformed_part_is_refused_with_the_field(
    mesh: Mesh, tables: list[RowGrads], dense: list[tuple[int, int, np.ndarray]], path: str
) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        mesh.servers[0].push(Part(mesh.gen, mesh.version, ((0, 0, 1),), 0, tables, dense))
    assert [violation.path for violation in refusal.value.violations] == [path]
    assert not mesh.servers[0].ledgers(mesh.gen).by_any


@pytest.mark.parametrize("batch", [(), ((0, 3, 3),), ((0, 0, 4), (0, 3, 5))])
def test_a_batch_of_no_empty_or_overlapping_pieces_is_refused(
    mesh: Mesh, batch: tuple[tuple[int, int, int], ...]
) -> None:
    with pytest.raises(InvalidArgument):
        mesh.servers[0].push(Part(mesh.gen, mesh.version, batch))


def test_a_part_in_pieces_is_applied_once_whole_in_any_order(mesh: Mesh) -> None:
    whole = _part(mesh, 0, 30)
    pieces = [replace(whole, tables=[whole.tables[0]], dense=[], chunk=0, chunks=3),
              replace(whole, tables=[whole.tables[1]], dense=[], chunk=1, chunks=3),
              replace(whole, tables=[], dense=whole.dense, chunk=2, chunks=3)]
    server = mesh.servers[0]
    assert server.push(pieces[2]).status is PushStatus.CHUNK_KEPT
    assert server.push(pieces[2]).status is PushStatus.CHUNK_KEPT          # the same piece again
    assert not server.ledgers(mesh.gen).by_any
    assert server.push(pieces[0]).status is PushStatus.CHUNK_KEPT
    assert server.push(pieces[1]).status is PushStatus.APPLIED
    assert server.push(pieces[1]).duplicate                                # its ack was lost
    mesh.push([(0, 0, 30)], [1])
    assert mesh.counts()[:2] == truth(range(30))[:2]


def test_pieces_of_parts_are_kept_within_bounds_and_expire(tmp_path: Path) -> None:
    from recmesh.trainer.ps.assembly import MOST_PIECES, PIECE_BYTES, Assembly

    now = [0.0]
    kept: Assembly[str] = Assembly(limit_bytes=100 + PIECE_BYTES, expiry_s=10, monotonic=lambda: now[0])
    assert kept.add(("a",), "x", number=0, count=2, size_bytes=60) is None
    with pytest.raises(ResourceExhausted):
        kept.add(("b",), "y", number=0, count=2, size_bytes=60)
    now[0] = 11
    assert kept.add(("b",), "y", number=1, count=2, size_bytes=60) is None
    with pytest.raises(ResourceExhausted):
        kept.add(("c",), "", number=0, count=2, size_bytes=0)             # an empty piece is not free
    kept = Assembly(limit_bytes=100 + 2 * PIECE_BYTES, expiry_s=10, monotonic=lambda: now[0])
    assert kept.add(("b",), "y", number=1, count=2, size_bytes=60) is None
    assert kept.add(("b",), "z", number=0, count=2, size_bytes=1) == ["z", "y"] and kept.size_bytes == 0
    with pytest.raises(InvalidArgument, match="too many pieces"):
        kept.add(("b",), "y", number=0, count=MOST_PIECES + 1, size_bytes=0)
    with pytest.raises(InvalidArgument):
        kept.add(("b",), "y", number=2, count=2, size_bytes=1)


def test_an_ack_waits_until_the_claim_of_another_is_applied(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate holds the original inside apply while its replay arrives (PROTOCOL H5)."""
    inside, release = threading.Event(), threading.Event()
    apply = model_module.Model.apply

    def gated(*args: object, **kwargs: object) -> None:
        inside.set()
        assert release.wait(10)
        apply(*args, **kwargs)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(model_module.Model, "apply", gated)
    results: list[object] = []
    original = threading.Thread(target=lambda: results.append(mesh.servers[0].push(_part(mesh, 0, 8))))
    original.start()
    assert inside.wait(10)
    replay = threading.Thread(target=lambda: results.append(mesh.servers[0].push(_part(mesh, 0, 8))))
    replay.start()
    replay.join(0.05)
    assert replay.is_alive() and not results and not mesh.servers[0].ledgers(mesh.gen).by_any
    release.set()
    original.join(10)
    replay.join(10)
    assert len(results) == 2 and mesh.servers[0].stats().step == 1


def test_many_threads_with_replays_leave_exact_counts(mesh: Mesh) -> None:
    batches = [(lo, lo + 5) for lo in range(0, 200, 5)]

    def work(seed: int) -> None:
        for i in np.random.default_rng(seed).permutation(len(batches)).tolist():
            mesh.push([(0, *batches[i])], [seed % 2, 1 - seed % 2])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    items, users, samples = truth(range(200))
    assert mesh.counts() == (items, users, [samples] * 2)
    assert [server.stats().step for server in mesh.servers] == [40, 40]


def test_a_failure_inside_apply_ends_the_process(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(BaseException):
        pass

    def end(error: BaseException) -> None:
        raise Ended from error

    server = mesh.servers[0]
    monkeypatch.setattr(server, "_fail", end)
    monkeypatch.setattr(server.model, "apply", lambda *_, **__: 1 / 0)
    with pytest.raises(Ended):
        server.push(_part(mesh, 0, 8))
    assert not server.books.applied(((0, 0, 8),))


def test_a_full_server_refuses_before_the_claim(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    server = mesh.servers[0]
    part = _part(mesh, 0, 8)
    monkeypatch.setattr(server.model.store.tables[0].slab, "capacity", 1)
    with pytest.raises(ResourceExhausted):
        server.push(part)
    assert not server.ledgers(mesh.gen).by_any
    monkeypatch.undo()
    assert not server.push(part).duplicate


def test_pulls_change_nothing_and_give_only_changed_chunks(mesh: Mesh) -> None:
    server = mesh.servers[0]
    part = _part(mesh, 0, 20)
    ids = part.tables[0].ids
    assert not server.pull(mesh.gen, mesh.version, [(0, ids)]).rows[0].any() and server.stats().rows == 0
    server.push(part)
    result = server.pull(mesh.gen, mesh.version, [(0, ids), (1, part.tables[1].ids)], dense=True)
    assert (result.rows[0] == part.tables[0].grads).all() and (result.rows[1] == part.tables[1].grads).all()
    again = server.pull(mesh.gen, mesh.version, dense=True, dense_since=result.step)
    assert not again.dense and again.step == result.step


def test_commands_are_idempotent_and_refuse_lower_terms(mesh: Mesh) -> None:
    server = mesh.servers[0]
    mesh.snapshot = 1
    first = server.mark(mesh.gen, 4, 1)
    assert server.mark(mesh.gen, 4, 1) is first
    for stale in (lambda: server.mark(mesh.gen, 3, 2), lambda: server.void(mesh.gen, 3, []),
                  lambda: server.abort_mark(mesh.gen, 3, 1), lambda: server.takeover(mesh.gen, 3)):
        with pytest.raises(StaleTerm):
            stale()
    taken = server.takeover(mesh.gen, 5)
    assert (taken.gen, taken.term, taken.since) == (mesh.gen, 5, mesh.version) and taken.slots.sum() == 2048
    server.abort_mark(mesh.gen, 5, 1)
    server.mark(mesh.gen, 5, 3)
    with pytest.raises(FailedPrecondition, match="after 2"):
        server.mark(mesh.gen, 5, 2)


def test_a_restore_is_for_one_incarnation_and_repeats_its_answer(mesh: Mesh) -> None:
    mesh.push([(0, 0, 8)], [0])
    order = mesh.order(0)
    assert mesh.servers[0].restore(order).rows == 0                      # the lost answer of the first order
    assert mesh.servers[0].stats().rows > 0                              # and no second restore
    with pytest.raises(WrongIncarnation):
        mesh.servers[0].restore(replace(order, gen=9, incarnation="other"))
    with pytest.raises(StaleGeneration):
        mesh.servers[0].restore(replace(order, voids=((0, 0, 1),)))


def test_a_new_generation_drops_everything_of_the_old_one(mesh: Mesh) -> None:
    mesh.push([(0, 0, 8)], [0])
    server = mesh.servers[0]
    old = _part(mesh, 8, 12)
    mesh.gen, mesh.version = 2, 2
    server.restore(replace(mesh.order(0), incarnation="inc-1-0"))
    with pytest.raises(StaleGeneration):
        server.push(old)
    server.declare(2, MODEL, initial_chunks(mesh.slot_map, 0))
    assert server.stats().rows == 0 and not server.ledgers(2).by_any


def test_a_damaged_snapshot_leaves_no_generation_and_the_next_order_is_taken(mesh: Mesh) -> None:
    mesh.push([(0, 0, 8)], [0, 1])
    mesh.snapshot = 1
    for ps in (0, 1):
        mesh.mark(ps)
    mesh.commit()
    path = mesh.folder / "00000001" / "ps-000" / "group-0.table-0.arrow"
    good = path.read_bytes()
    path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    mesh.gen, mesh.version = 2, 2
    server = mesh.server("inc-2-0")
    with pytest.raises(DataLoss, match="checksum"):
        server.restore(mesh.order(0))
    with pytest.raises(NoGeneration):
        server.ledgers(2)
    path.write_bytes(good)
    assert server.restore(mesh.order(0)).rows > 0


def test_parts_that_do_not_hold_every_slot_once_are_refused(mesh: Mesh) -> None:
    mesh.push([(0, 0, 8)], [0, 1])
    mesh.snapshot = 1
    for ps in (0, 1):
        mesh.mark(ps)
    mesh.commit()
    mesh.gen, mesh.version = 2, 2
    server, order = mesh.server("inc-2-0"), replace(mesh.order(0), slot_map=SlotMap.even(2, 1))
    for parts in (order.parts[:1], (*order.parts, order.parts[0])):
        with pytest.raises(DataLoss, match="exactly once"):
            server.restore(replace(order, parts=parts))
    assert server.restore(order).rows > 0


def test_rows_of_another_job_come_with_an_empty_ledger(mesh: Mesh) -> None:
    mesh.push([(0, 0, 8)], [0, 1])
    mesh.snapshot = 1
    for ps in (0, 1):
        mesh.mark(ps)
    mesh.commit()
    mesh.begin(3, fresh=True)
    assert all(not server.ledgers(mesh.gen).by_any and server.stats().step == 0 for server in mesh.servers)
    assert mesh.counts()[0] == truth(range(8))[0]
    mesh.push([(0, 0, 8)], [0, 1, 2])
    assert mesh.counts()[1] == truth([*range(8), *range(8)])[1]


def test_a_void_batch_is_never_applied_also_after_a_restore(mesh: Mesh) -> None:
    mesh.push([(0, 0, 4)], [0])
    assert mesh.servers[0].void(mesh.gen, 1, [(0, 0, 8)]) == [(0, 0, 4)]
    assert mesh.servers[1].void(mesh.gen, 1, [(0, 0, 8)]) == []
    assert mesh.servers[0].push(_part(mesh, 0, 8)).duplicate
    mesh.begin(2, voids=((0, 0, 8),))
    assert mesh.servers[0].push(_part(mesh, 0, 8)).duplicate


def test_the_first_declaration_wins_and_a_different_one_is_told_how(mesh: Mesh) -> None:
    server = mesh.servers[0]
    assert server.declare(mesh.gen, MODEL)
    other = replace(MODEL, tables=(replace(MODEL.tables[0], dim=3), MODEL.tables[1]), dense=())
    with pytest.raises(InvalidArgument) as refusal:
        server.declare(mesh.gen, other)
    assert [violation.path for violation in refusal.value.violations] == ["tables.item", "dense"]


def test_a_declaration_names_missing_chunks_and_wrong_fields(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, gen=1, version=1, n_ps=1)
    server = mesh.server("inc-1-0")
    server.restore(mesh.order(0))
    with pytest.raises(InvalidArgument, match="chunk 0 has no initial values"):
        server.declare(1, MODEL)
    with pytest.raises(InvalidArgument, match="chunk 1 has 4 values, not 3"):
        server.declare(1, MODEL, [(0, 0, np.zeros(CHUNK, np.float32)), (0, 1, np.zeros(4, np.float32))])
    with pytest.raises(InvalidArgument, match="declared twice"):
        server.declare(1, Declaration((MODEL.tables[0], MODEL.tables[0])))
    assert not server.declare(1, MODEL, initial_chunks(mesh.slot_map, 0))


def test_after_a_restore_the_declaration_may_change_what_is_trained_but_not_its_shape(mesh: Mesh) -> None:
    mesh.push([(0, 0, 8)], [0, 1])
    mesh.snapshot = 1
    for ps in (0, 1):
        mesh.mark(ps)
    mesh.commit()
    mesh.gen, mesh.version, mesh.n_ps = 2, 2, 1
    server = mesh.server("inc-2-0")
    server.restore(mesh.order(0))
    with pytest.raises(InvalidArgument, match="the snapshot has 2"):
        server.declare(2, replace(MODEL, tables=(replace(MODEL.tables[0], dim=5),)))
    changed = Declaration(
        (TableSchema("new", 4, COUNT, Init("zeros")), TableSchema("user", 1, Optimizer("adagrad")),
         TableSchema("item", 2, replace(COUNT, lr=0.5), Init("zeros"))),
        (DenseSchema("b", (2,), COUNT), DenseSchema("w", (CHUNK + 3,), Optimizer("adam"))))
    with pytest.raises(InvalidArgument, match=r"dense\.b: chunk 0 has no initial values"):
        server.declare(2, changed)
    assert not server.declare(2, changed, [(0, 0, np.zeros(2, np.float32))])
    items, users, samples = truth(range(8))
    found = {id_: server.pull(2, 2, [(2, np.array([id_]))]).rows[0][0, 0] for id_ in items}
    assert found == items
    assert {id_: server.pull(2, 2, [(1, np.array([id_]))]).rows[0][0, 0] for id_ in users} == users
    dense = {(b, c): float(v[0]) for b, c, v in server.pull(2, 2, dense=True).dense}
    assert dense == {(0, 0): 0.0, (1, 0): samples, (1, 1): samples}
    assert [size.name for size in server.stats().tables] == ["new", "user", "item"]


def test_a_copy_that_fails_is_told_to_who_waits_for_the_part(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    mesh = Mesh(tmp_path, gen=1, version=1, n_ps=1)
    server = ParameterServer("inc-1-0", shm_dir=tmp_path / "full", memory_bytes=64 << 20, deliver=mesh.deliver,
                             give_up=lambda order, reason, _: told.append((order.snapshot, reason)))
    server.restore(mesh.order(0))
    server.declare(1, MODEL, initial_chunks(mesh.slot_map, 0))
    server.mark(1, 1, 7)                                       # its folder of shared memory is not there
    assert server._copy is not None
    server._copy.join()
    [(snapshot, reason)] = told
    assert snapshot == 7 and reason.startswith("PS 0 has no part of it: ") and "No such file" in reason
    server.close()


@pytest.mark.parametrize("answers", [[], [Unavailable("away")], [FailedPrecondition("is committed")]])
def test_ckptcache_is_told_that_there_will_be_no_part(
    answers: list[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[ckptcache_pb2.AbortRequest] = []

    class Stub:
        def __init__(self, _: object) -> None:
            pass

        def Abort(self, request: ckptcache_pb2.AbortRequest, timeout: float) -> None:
            asked.append(request)
            if answers:
                raise answers.pop()

    monkeypatch.setattr(checkpoints, "CheckpointsStub", Stub)
    monkeypatch.setattr(checkpoints, "_RETRY_S", 0.001)
    again = bool(answers) and isinstance(answers[0], Unavailable)
    order = Order("job", 1, 7, 0, 1, (), Changes())
    checkpoints.CheckpointClient(lambda _: None, address="a").give_up(order, "no room", threading.Event())
    assert [(a.job_id, a.snapshot, a.reason) for a in asked] == [("job", 7, "no room")] * (2 if again else 1)


def test_a_snapshot_cut_before_the_new_declaration_is_whole(mesh: Mesh) -> None:
    """A final snapshot right after a restore, with no worker left to declare anything."""
    mesh.push([(0, 0, 8)], [0, 1])
    for round_ in (1, 2):
        mesh.snapshot = round_
        for ps in range(mesh.n_ps):
            mesh.mark(ps)
        mesh.commit()
        if round_ == 1:
            mesh.gen, mesh.version, mesh.n_ps = 2, 2, 1
            mesh.close()
            mesh.servers = [mesh.server("inc-2-0")]
            mesh.servers[0].restore(mesh.order(0))
    parts = [open_part(uri) for uri in mesh.part_uris(2, 1)]
    rows = read_table(parts, "item")
    assert dict(zip(rows.ids.tolist(), rows.values[:, 0].tolist(), strict=True)) == truth(range(8))[0]
    assert (read_dense(parts)["w"] == 8).all()
    with pytest.raises(SnapshotError, match="no table 'absent'"):
        read_table(parts, "absent")


def test_a_declaration_after_a_mark_finds_its_copy_under_way(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    server, release, seen = mesh.servers[0], threading.Event(), []
    exclusive = server.latch.exclusive

    @contextmanager
    def watched() -> Iterator[Held]:
        with exclusive() as held:
            yield held
            seen.append(server.marking)

    monkeypatch.setattr(server.latch, "exclusive", watched)
    monkeypatch.setattr(server, "_deliver", lambda _, cancelled: not release.wait(10))
    server.mark(mesh.gen, 1, 7)
    release.set()
    assert seen == [7]


def test_a_declaration_does_not_wait_for_a_delivery(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh.gen, mesh.version, mesh.n_ps = 2, 2, 1
    server, delivering, release = mesh.server("inc-2-0"), threading.Event(), threading.Event()

    def deliver(*_: object) -> bool:
        delivering.set()
        return not release.wait(10)

    monkeypatch.setattr(server, "_deliver", deliver)
    server.restore(mesh.order(0))
    server.mark(2, 1, 7)
    assert delivering.wait(10)
    try:
        assert not server.declare(2, MODEL, initial_chunks(mesh.slot_map, 0))
    finally:
        release.set()
    server.close()


def test_chunks_that_a_loaded_block_lacks_are_made_of_the_declared_values() -> None:
    model, everything = Model(), np.ones(SLOTS, bool)
    model.load(MODEL)
    model.load_chunk(DenseRecord(0, 1, np.full(3, 5, np.float32), np.empty(0, np.float32), 0))
    assert not model.declare(MODEL, [(0, chunk, np.ones(model.store.dense[0].length(chunk), np.float32))
                                     for chunk in (0, 1)], owned=everything)
    chunks, _ = model.pull_dense(since=0, owned=everything)
    assert {chunk: float(values[0]) for _, chunk, values in chunks} == {0: 1.0, 1: 5.0}


def test_a_chunk_of_a_wrong_size_is_a_damaged_snapshot() -> None:
    model = Model()
    model.load(MODEL)
    with pytest.raises(DataLoss, match=r"chunks\.values: chunk 1 of 'w' has 4, not 3"):
        model.load_chunk(DenseRecord(0, 1, np.zeros(4, np.float32), np.empty(0, np.float32), 0))


def _rows(**changes: Any) -> RowBlock:
    """Two that fit the first table of the model, but for the changes."""
    two: dict[str, Any] = {
        "ids": np.arange(2), "values": np.ones((2, 2), np.float32), "state": np.empty((2, 0), np.float32),
        "updates": np.ones(2, np.uint32), "frequency": np.ones(2, np.uint32), "last_step": np.ones(2, np.uint64),
    }
    return RowBlock(**two | changes)


@pytest.mark.parametrize(("field", "array"), [
    ("values", np.ones((2, 3), np.float32)), ("state", np.ones((2, 1), np.float32)), ("updates", np.ones(1, np.uint32)),
    ("frequency", np.ones(3, np.uint32)), ("last_step", np.ones(1, np.uint64)),
])
def test_rows_that_do_not_fit_their_table_are_refused_by_their_field(field: str, array: Any) -> None:
    model = Model()
    model.load(MODEL)
    wrong = _rows(**{field: array})
    with pytest.raises(DataLoss, match=rf"rows\.{field}"):
        model.load_rows(0, wrong)
    with pytest.raises(InvalidArgument, match=rf"rows\.{field}"):
        model.upsert_rows(0, wrong)
    with pytest.raises(InvalidArgument, match="tables"):
        model.upsert_rows(7, _rows())
    assert model.store.rows == 0
    model.load_rows(0, _rows())
    model.upsert_rows(0, _rows())
    assert model.store.rows == 2


@pytest.mark.parametrize(("field", "record"), [
    ("block", DenseRecord(7, 0, np.ones(3, np.float32), np.empty(0, np.float32), 0)),
    ("chunk", DenseRecord(0, 2, np.ones(3, np.float32), np.empty(0, np.float32), 0)),
    ("values", DenseRecord(0, 1, np.ones(4, np.float32), np.empty(0, np.float32), 0)),
    ("state", DenseRecord(0, 1, np.ones(3, np.float32), np.ones(3, np.float32), 0)),
])
def test_a_chunk_that_does_not_fit_its_block_is_refused_by_its_field(field: str, record: DenseRecord) -> None:
    model = Model()
    model.load(MODEL)
    with pytest.raises(InvalidArgument, match=rf"chunks\.{field}"):
        model.upsert_chunk(record)


def test_evicted_updates_are_in_the_snapshot_and_come_back_with_their_slots(tmp_path: Path) -> None:
    model = Declaration((TableSchema("t", 1, COUNT, Init("zeros"), ttl_steps=3),), ())
    mesh = Mesh(tmp_path, n_ps=1, gen=1, version=1, snapshot=1)
    server = mesh.server("inc-1-0")
    mesh.servers = [server]
    server.restore(mesh.order(0))
    server.declare(1, model)
    old, live = np.arange(100), np.array([1000])
    for step in range(8):
        ids = old if step == 0 else live
        server.push(Part(1, 1, ((0, step, step + 1),), 0, [RowGrads(0, ids, np.ones((len(ids), 1), np.float32))]))
    assert server.stats().rows == 1
    mesh.mark(0)
    server.push(Part(1, 1, ((0, 8, 9),), 0, [RowGrads(0, live, np.ones((1, 1), np.float32))]))
    mesh.commit()
    expected = np.bincount(slots_of(old, "t"), minlength=SLOTS)
    document = open_part(mesh.part_uris(1, 1)[0]).document
    assert document.groups[0].evicted == {slot: int(expected[slot]) for slot in np.flatnonzero(expected).tolist()}
    mesh.close()
    mesh.gen, mesh.version, mesh.n_ps = 2, 2, 2
    for ps in range(2):
        server = mesh.server(f"inc-2-{ps}")
        server.restore(mesh.order(ps))
        server.declare(2, model)
        assert (server.model.store.evicted == expected * mesh.slot_map.mask(ps)).all()
        assert server.model.store.share == 0.5


def test_what_is_asked_of_a_slot_is_counted_and_forgotten() -> None:
    seconds = 0.0
    demand = SlotDemand(now=lambda: seconds)
    demand.counts[5] = 800
    seconds = HALF_LIFE_S - 1
    assert demand.read()[5] == 800
    seconds = 2.5 * HALF_LIFE_S
    assert demand.read()[5] == 200
    seconds = 3 * HALF_LIFE_S
    assert demand.read()[5] == 100
    seconds = 100 * HALF_LIFE_S
    assert demand.read()[5] == 0


def test_pulls_and_pushes_count_as_demand_of_their_slots(mesh: Mesh) -> None:
    part = _part(mesh, 0, 50)
    server = mesh.servers[0]
    server.push(part)
    asked = np.zeros(SLOTS, np.uint32)
    for grads in part.tables:
        np.add.at(asked, slots_of(grads.ids, MODEL.tables[grads.table].name), 1)
    assert asked.any() and (server.stats().demand == asked).all()
    server.pull(mesh.gen, mesh.version, [(grads.table, grads.ids) for grads in part.tables])
    assert (server.stats().demand == 2 * asked).all()
