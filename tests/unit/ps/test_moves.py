"""Slots move between servers while batches are under way: counts stay exact, whatever is lost or comes late."""

import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from recmesh.formats import SLOTS, Ledger, slots_of
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Unavailable
from recmesh.store import DenseRecord, Init, TableSchema
from recmesh.trainer.ps.messages import Declaration, JoinOrder, Part, RowGrads
from recmesh.trainer.ps.moves import Cargo, InstallOrder, MoveOrder, StageOrder, TableCargo
from recmesh.trainer.ps.moves.sending import Sending
from recmesh.trainer.ps.precedence import Precedence
from recmesh.trainer.ps.refusals import WrongMap
from tests.unit.ps.elastic import ElasticMesh, Flight
from tests.unit.ps.support import COUNT, MODEL, truth

TOTAL = 80


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[ElasticMesh]:
    mesh = ElasticMesh(tmp_path)
    mesh.start(2)
    yield mesh
    mesh.close()


def _half(mesh: ElasticMesh, ps: int) -> Any:
    slots = np.flatnonzero(mesh.owners == ps)
    mask = np.zeros(SLOTS, np.bool_)
    mask[slots[: len(slots) // 2]] = True
    return mask


def _check(mesh: ElasticMesh, total: int = TOTAL) -> None:
    mesh.complete(total)
    items, users, samples = truth(range(total))
    found_items, found_users, dense = mesh.owned_counts()
    assert found_items == items
    assert found_users == users
    assert dense == [samples, samples]
    assert all(ledger == Ledger([(0, 0, total)]) for ledger in mesh.ledgers())


def test_slots_move_with_their_rows_ledgers_and_steps(mesh: ElasticMesh) -> None:
    mesh.train([(0, 0, 16)])
    new = mesh.join()
    mesh.begin_move(0, new, _half(mesh, 0))
    mesh.train([(0, 16, 24)])                                  # behind the copy's back
    result = mesh.freeze("answered")
    assert result.installed
    assert result.base_bytes > 0
    mesh.decide()
    assert [len(server.books.groups) for server in mesh.members.values()] == [1, 1, 1]
    assert mesh.members[new].stats().step == mesh.members[0].stats().step
    mesh.train([(0, 24, 32)])
    _check(mesh)


def test_a_split_by_the_old_map_is_refused_on_both_sides(mesh: ElasticMesh) -> None:
    old = mesh.take_off([(0, 0, 8)])
    mesh.begin_move(0, 1, _half(mesh, 0))
    mesh.freeze("answered")
    for ps in (0, 1):
        flight = Flight(old.pieces, old.slot_map, old.gen)
        assert mesh.send(flight, ps) == "wrong_map"
        with pytest.raises(WrongMap):
            mesh.members[ps].pull(mesh.gen, old.slot_map.version, [(0, np.arange(3))], dense=True)
    mesh.decide()
    _check(mesh)


def test_an_ack_of_the_old_owner_counts_no_more(mesh: ElasticMesh) -> None:
    flight = mesh.take_off([(0, 0, 8)])
    assert mesh.send(flight, 0) == "acked"
    mesh.begin_move(0, 1, _half(mesh, 0))
    mesh.freeze("answered")
    mesh.decide()
    assert mesh.send(flight, 1) == "wrong_map"
    assert flight.acks == set()
    assert mesh.send(flight, 0) == "acked"                     # a duplicate there, and needed here
    assert len(mesh.members[1].books.groups) == 2              # what came has the batch, what was here has not
    assert mesh.send(flight, 1) == "landed"
    assert len(mesh.members[1].books.groups) == 1
    _check(mesh)


@pytest.mark.parametrize("fate", ["lost", "unanswered"])
def test_a_handoff_in_doubt_is_asked_for_again_or_decided_at_the_target(mesh: ElasticMesh, fate: str) -> None:
    mesh.train([(0, 0, 8)])
    mesh.begin_move(0, 1, _half(mesh, 0))
    assert not mesh.freeze(fate).installed
    assert mesh.freeze("answered").installed
    mesh.decide()
    _check(mesh)


@pytest.mark.parametrize(("fate", "comes"), [("lost", False), ("unanswered", True)])
def test_what_was_aborted_is_never_installed(mesh: ElasticMesh, fate: str, comes: bool) -> None:
    mesh.train([(0, 0, 8)])
    slots = _half(mesh, 0)
    mesh.begin_move(0, 1, slots)
    mesh.freeze(fate)
    mesh.decide()
    assert bool((mesh.owners[slots] == 1).all()) is comes
    mesh.train([(0, 8, 16)])
    for message in list(mesh.sent):
        mesh.replay(message)
    owned = [server.books.owned for server in mesh.members.values()]
    assert (owned[0] ^ owned[1]).all()
    _check(mesh)


def test_a_late_freeze_of_an_aborted_move_is_void(mesh: ElasticMesh) -> None:
    mesh.begin_move(0, 1, _half(mesh, 0))
    move = mesh.move
    assert move is not None
    mesh.abort()
    with pytest.raises(FailedPrecondition):
        mesh.members[0].freeze(mesh.gen, 1, move.number, map_version=mesh.reserve())
    _check(mesh)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_source_that_was_never_told_how_a_move_ended_learns_it_from_the_next(mesh: ElasticMesh, frozen: bool) -> None:
    mesh.train([(0, 0, 16)])
    first = _half(mesh, 0)
    mesh.begin_move(0, 1, first)
    move = mesh.move
    assert move is not None
    if frozen:
        mesh.freeze("unanswered")
        mesh.owners = np.where(first, 1, mesh.owners).astype(np.uint16)
        mesh.version = move.version
    mesh.move = None                                           # jobmaster has decided, and its word was lost
    mesh.begin_move(0, 1, _half(mesh, 0))
    mesh.train([(0, 16, 20)])
    assert mesh.freeze("answered").installed
    mesh.decide()
    with pytest.raises(FailedPrecondition):
        mesh.members[0].freeze(mesh.gen, 1, move.number, map_version=mesh.reserve())
    _check(mesh)


def test_slots_that_come_back_find_no_rows_of_their_first_stay(mesh: ElasticMesh) -> None:
    mesh.train([(0, 0, 16)])
    slots = _half(mesh, 0)
    for source, target, lo in ((0, 1, 16), (1, 0, 20), (0, 1, 24)):
        mesh.begin_move(source, target, slots)
        mesh.train([(0, lo, lo + 4)])
        mesh.freeze("answered")
        mesh.decide()
    _check(mesh)


def _forget_free(mesh: ElasticMesh) -> int:
    """The handoff is done and in the record, and jobmaster's Free was lost: the number of the move."""
    move = mesh.move
    assert move is not None and mesh.freeze("answered").installed
    mesh.owners = np.where(move.slots, move.target, mesh.owners).astype(np.uint16)
    mesh.version, mesh.move = move.version, None
    return move.number


@pytest.mark.parametrize("learns", ["by a late word", "from the next move"])
def test_a_server_that_was_never_told_to_free_slots_keeps_them_when_they_come_back(
    mesh: ElasticMesh, learns: str
) -> None:
    mesh.train([(0, 0, 16)])
    slots = _half(mesh, 0)
    mesh.begin_move(0, 1, slots)
    first = _forget_free(mesh)
    owned_here = next(mesh.members[1].model.scan_rows(0, slots))
    gone = owned_here.ids[:3]
    mesh.members[1].model.remove_rows(0, gone)                 # evicted where they live now
    mesh.begin_move(1, 0, slots)
    assert not len(mesh.members[0].model.read_rows(0, gone))   # not found again where they lived before
    mesh.members[1].model.upsert_rows(0, owned_here)
    assert mesh.members[0].takeover(mesh.gen, 1).frozen == []
    mesh.members[0].model.upsert_rows(0, owned_here)
    assert mesh.freeze("answered").installed
    mesh.decide()
    if learns == "by a late word":
        mesh.members[0].free(mesh.gen, 1, first)
    else:
        mesh.begin_move(0, 1, ~slots & (mesh.owners == 0))
        mesh.freeze("answered")
        mesh.decide()
    if clearing := mesh.members[0].moves.receiver._clearing:
        clearing.join()
    _check(mesh)


def test_counts_of_what_was_evicted_and_shares_of_budgets_move_with_their_slots(tmp_path: Path) -> None:
    mesh = ElasticMesh(tmp_path)
    mesh.model = Declaration((TableSchema("t", 1, COUNT, Init("zeros"), ttl_steps=3),), MODEL.dense)
    mesh.start(2)
    before, behind, live = np.arange(200), np.arange(200, 300), np.arange(1000, 1050)
    steps = itertools.count()

    def push(ids: NDArray[np.int64]) -> None:
        step, owners = next(steps), mesh.owners[slots_of(ids, "t")]
        for ps, server in mesh.members.items():
            mine = ids[owners == ps]
            rows = RowGrads(0, mine, np.ones((mine.size, 1), np.float32))
            server.push(Part(mesh.gen, mesh.version, ((0, step, step + 1),), 0, [rows]))

    def evicted_and_shares_are(ids: NDArray[np.int64]) -> None:
        counts = np.bincount(slots_of(ids, "t"), minlength=SLOTS)
        for ps, server in mesh.members.items():
            mine = mesh.owners == ps
            if clearing := server.moves.receiver._clearing:
                clearing.join()
            assert (server.model.store.evicted == counts * mine).all()
            assert server.model.store.share == mine.mean()

    for ids in (before, *[live] * 7):
        push(ids)
    evicted_and_shares_are(before)
    slots = _half(mesh, 0)
    assert np.isin(slots_of(before, "t"), np.flatnonzero(slots)).any()
    mesh.begin_move(0, 1, slots)
    for ids in (behind, *[live] * 7):
        push(ids)
    assert not mesh.freeze("unanswered").installed             # the handoff comes twice
    assert mesh.freeze("answered").installed
    mesh.decide()
    evicted_and_shares_are(np.concatenate([before, behind]))
    mesh.begin_move(1, 0, slots)                               # taken back: the source has them again
    mesh.freeze("lost")
    assert mesh.members[1].books.owned.mean() == 0.5
    assert mesh.members[1].model.store.share == 0.75           # what has left is still here
    mesh.abort()
    evicted_and_shares_are(np.concatenate([before, behind]))
    mesh.close()


def test_rows_that_come_and_go_push_no_row_out_of_a_full_table(tmp_path: Path) -> None:
    ids, row_bytes = np.arange(4000), 32
    budget = TableSchema("t", 1, COUNT, Init("zeros"), max_bytes=int(1.05 * row_bytes * ids.size))
    mesh = ElasticMesh(tmp_path)
    mesh.model = Declaration((budget,), MODEL.dense)
    mesh.start(2)
    steps = itertools.count()

    def push(ids: NDArray[np.int64]) -> int:
        """How many rows were evicted until now."""
        step, owners = next(steps), mesh.owners[slots_of(ids, "t")]
        for ps, server in mesh.members.items():
            mine = ids[owners == ps]
            rows = RowGrads(0, mine, np.ones((mine.size, 1), np.float32))
            server.push(Part(mesh.gen, mesh.version, ((0, step, step + 1),), 0, [rows]))
        return sum(int(server.model.store.evicted.sum()) for server in mesh.members.values())

    assert push(ids) == 0
    slots = _half(mesh, 0)
    mesh.begin_move(0, 1, slots)
    assert push(ids[::100]) == 0                                         # the target has rows that are not its own yet
    assert mesh.freeze("answered").installed
    mesh.owners = np.where(slots, 1, mesh.owners).astype(np.uint16)
    mesh.version = mesh.move.version if mesh.move else 0
    assert push(ids[::100]) == 0                                         # the source still has rows that have left
    mesh.decide()
    clearing = mesh.members[0].moves.receiver._clearing
    assert clearing is not None
    clearing.join()
    assert push(ids[::100]) == 0
    assert [server.model.store.share for server in mesh.members.values()] == [0.25, 0.75]
    mesh.close()


def test_a_stage_with_rows_or_chunks_of_other_slots_changes_nothing(mesh: ElasticMesh) -> None:
    mesh.train([(0, 0, 16)])
    slots, target = _half(mesh, 0), mesh.members[1]
    mesh.begin_move(0, 1, slots)
    move = mesh.move
    assert move is not None
    sequence = 1 + max(order.sequence for _, order in mesh.sent if isinstance(order, StageOrder))
    own = next(target.model.scan_rows(0, target.books.owned))
    chunks = np.flatnonzero(~slots[target.model.chunk_slots(0)])
    foreign = [Cargo([TableCargo(0, own)]), Cargo([TableCargo(0, own[:0], own.ids)]),
               *(Cargo(chunks=[DenseRecord(0, int(c), np.ones(target.model.store.dense[0].length(int(c)), np.float32),
                                           np.empty(0, np.float32), 1)]) for c in chunks)]
    for cargo in foreign:
        with pytest.raises(InvalidArgument, match="with their slots"):
            target.moves.receiver.stage(
                StageOrder(mesh.gen, move.number, 0, target.books.incarnation, sequence, cargo))
    assert len(foreign) > 2
    mesh.freeze("answered")
    mesh.decide()
    _check(mesh)


class Deaf:
    """A target that answers no stage until its channel is closed."""

    def __init__(self) -> None:
        self.asked, self.closed = threading.Event(), threading.Event()

    def stage(self, order: StageOrder) -> None:
        self.asked.set()
        self.closed.wait(20.0)
        raise Unavailable("the channel is closed")

    def install(self, order: InstallOrder) -> bool:
        raise AssertionError("nothing was copied")

    def close(self) -> None:
        self.closed.set()


def test_a_copy_to_a_target_that_does_not_answer_ends_at_once(mesh: ElasticMesh) -> None:
    target = Deaf()
    sending = Sending(MoveOrder(1, 1, _half(mesh, 0), "a", "inc"), source=0, model=mesh.members[0].model, target=target,
                      precedence=Precedence())
    sending.start()
    assert target.asked.wait(10.0)
    began = time.monotonic()
    sending.stop()
    assert not sending.is_alive() and time.monotonic() - began < 10.0


def test_a_process_that_was_part_of_a_generation_joins_no_other(mesh: ElasticMesh) -> None:
    mesh.train([(0, 0, 8)])
    past = mesh.members[0]
    order = JoinOrder(mesh.gen + 1, 1, past.books.incarnation, 0, mesh.version, "job")
    with pytest.raises(FailedPrecondition, match="part of generation 1"):
        past.join(order)
    assert past.books.gen == mesh.gen and past.model.store.rows  # it goes on as before
    new = mesh.join()                                            # the join is repeated, and has no effect
    assert mesh.members[new].books.gen == mesh.gen
    _check(mesh)


def test_a_snapshot_during_a_copy_holds_each_slot_once_and_restores_elsewhere(mesh: ElasticMesh) -> None:
    mesh.train([(0, 0, 16)])
    mesh.begin_move(0, 1, _half(mesh, 0))
    mesh.snapshot = 1
    mesh.servers = list(mesh.members.values())
    for ps in (0, 1):
        mesh.mark(ps)
    mesh.train([(0, 16, 20)])
    mesh.commit()
    mesh.freeze("answered")
    mesh.decide()
    mesh.start(3)
    assert all(ledger == Ledger([(0, 0, 16)]) for ledger in mesh.ledgers())
    items, users, _ = truth(range(16))
    assert mesh.owned_counts()[:2] == (items, users)
    _check(mesh)


class Moving(RuleBasedStateMachine):
    """Workers, moves, snapshots and rollbacks in any order; at the end every count is the truth."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.mesh = ElasticMesh(self.folder)
        self.flights: list[Flight] = []
        self.since_rollback = self.since_snapshot = 0

    @initialize(n_ps=st.integers(1, 2))
    def begin(self, n_ps: int) -> None:
        self.mesh.start(n_ps)

    @rule(lo=st.integers(0, TOTAL - 1), size=st.integers(1, 9), sent=st.integers(0, 2))
    def take_off(self, lo: int, size: int, sent: int) -> None:
        flight = self.mesh.take_off([(0, lo, min(TOTAL, lo + size))])
        self.flights.append(flight)
        for ps in np.unique(flight.slot_map.owners).tolist()[:sent]:
            self._send(flight, ps)

    def _send(self, flight: Flight, ps: int) -> None:
        wanted = flight in self.flights and ps in flight.slot_map.owners    # its map may be another by now
        if wanted and self.mesh.send(flight, ps) in ("landed", "overlap", "gone"):
            self.flights.remove(flight)

    @precondition(lambda self: self.mesh.todo)
    @rule()
    def retrain(self) -> None:
        self.flights.append(self.mesh.take_off(self.mesh.todo.pop()))

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        flight = data.draw(st.sampled_from(self.flights))
        self._send(flight, data.draw(st.sampled_from(np.unique(flight.slot_map.owners).tolist())))

    @precondition(lambda self: self.flights)
    @rule()
    def send_all(self) -> None:
        for flight in list(self.flights):
            for ps in np.unique(flight.slot_map.owners).tolist():
                self._send(flight, ps)

    @precondition(lambda self: self.mesh.pushed)
    @rule(data=st.data())
    def replay_a_push(self, data: st.DataObject) -> None:
        self.mesh.replay(data.draw(st.sampled_from(self.mesh.pushed)))

    @precondition(lambda self: self.mesh.sent)
    @rule(number=st.integers(0, 1 << 16))
    def replay_of_a_move(self, number: int) -> None:
        """How many messages there are is up to the copying thread, so none is drawn from a list of them."""
        self.mesh.replay(self.mesh.sent[number % len(self.mesh.sent)])

    @precondition(lambda self: len(self.mesh.members) < 4)
    @rule()
    def scale_out(self) -> None:
        self.mesh.join()

    @precondition(lambda self: not self.mesh.move and len(self.mesh.members) > 1)
    @rule(data=st.data())
    def begin_move(self, data: st.DataObject) -> None:
        mesh = self.mesh
        source = data.draw(st.sampled_from(np.unique(mesh.owners).tolist()))
        target = data.draw(st.sampled_from(sorted(set(mesh.members) - {source})))
        slots = np.flatnonzero(mesh.owners == source)
        share = data.draw(st.sampled_from([1, len(slots) // 2 or 1, len(slots)]))
        mask = np.zeros(SLOTS, np.bool_)
        mask[slots[:share]] = True
        mesh.begin_move(source, target, mask)

    @precondition(lambda self: not self.mesh.move and len(self.mesh.members) > 1)
    @rule(data=st.data(), lo=st.integers(0, TOTAL - 1))
    def move_past_a_flight(self, data: st.DataObject, lo: int) -> None:
        """One that a server of the old map has, and the others are yet to get."""
        self.take_off(lo, 9, data.draw(st.integers(0, 1)))
        flight = self.flights[-1] if self.flights else None
        self.begin_move(data)
        self.freeze("answered")
        self.decide()
        if flight is not None:
            self._send(flight, data.draw(st.sampled_from(np.unique(flight.slot_map.owners).tolist())))

    @precondition(lambda self: self.mesh.move)
    @rule(fate=st.sampled_from(["lost", "unanswered", "answered"]))
    def freeze(self, fate: str) -> None:
        self.mesh.freeze(fate)

    @precondition(lambda self: self.mesh.move)
    @rule()
    def decide(self) -> None:
        self.mesh.decide()

    @precondition(lambda self: not self.mesh.move)
    @rule()
    def scale_in(self) -> None:
        empty = [ps for ps in self.mesh.members if not (self.mesh.owners == ps).any()]
        if empty:
            self.mesh.leave(empty[-1])

    @precondition(lambda self: not (self.mesh.move and self.mesh.move.version) and self.since_snapshot > 5)
    @rule()
    def snapshot(self) -> None:
        mesh, self.since_snapshot = self.mesh, 0
        mesh.snapshot += 1
        mesh.servers = [mesh.members[ps] for ps in sorted(mesh.members)]
        for ps in range(len(mesh.servers)):
            mesh.mark(ps)
        mesh.commit()
        mesh.parts[mesh.snapshot] = mesh.part_uris_of(sorted(mesh.members))

    @precondition(lambda self: self.since_rollback > 20)
    @rule(n_ps=st.integers(1, 3))
    def rollback(self, n_ps: int) -> None:
        self.since_rollback = 0
        self.mesh.start(n_ps)

    @invariant()
    def every_slot_is_owned_once_or_on_its_way(self) -> None:
        mesh = self.mesh
        self.since_rollback, self.since_snapshot = self.since_rollback + 1, self.since_snapshot + 1
        if not mesh.members:
            return
        times = np.sum([server.books.owned for server in mesh.members.values()], axis=0)
        on_the_way = mesh.move.slots if mesh.move and mesh.move.version else np.zeros(SLOTS, np.bool_)
        assert (times[~on_the_way] == 1).all()
        assert (times[on_the_way] <= 1).all()

    def teardown(self) -> None:
        try:
            if self.mesh.members:
                _check(self.mesh)
        finally:
            self.mesh.close()
            shutil.rmtree(self.folder)


TestMoving = Moving.TestCase
TestMoving.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
