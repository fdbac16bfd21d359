"""Synchronous steps: whatever comes when and how often, the model is that of one process with large batches."""

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from recmesh.formats import SLOTS, Ledger
from recmesh.runtime.errors import InvalidArgument, ResourceExhausted
from recmesh.trainer.ps.messages import PushStatus
from recmesh.trainer.ps.refusals import Overlap, Stale, WrongMap
from recmesh.trainer.ps.steps import StepBuffer
from tests.unit.ps.support import Mesh, parts_of, truth
from tests.unit.ps.synchrony import (
    BATCH,
    BATCHES,
    LEARNING,
    TOTAL,
    WIDTH,
    StepFlight,
    StepMesh,
    in_step,
    one_process,
    rows_of,
    same,
    step_of,
)
from tests.unit.ps.test_moves import Moving


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[StepMesh]:
    mesh = StepMesh(tmp_path)
    mesh.start(2)
    yield mesh
    mesh.close()


def _fly(mesh: StepMesh, lo: int, hi: int, *to: int) -> StepFlight:
    flight = mesh.take_off([(0, lo, hi)])
    for ps in to or np.unique(mesh.owners).tolist():
        mesh.send(flight, ps)
    return flight


def _half(mesh: StepMesh, ps: int) -> Any:
    slots = np.flatnonzero(mesh.owners == ps)
    mask = np.zeros(SLOTS, np.bool_)
    mask[slots[: len(slots) // 2]] = True
    return mask


def _check(mesh: StepMesh) -> None:
    mesh.complete(TOTAL)
    assert all(ledger == Ledger([(0, 0, TOTAL)]) for ledger in mesh.ledgers())
    with tempfile.TemporaryDirectory() as folder:
        same(mesh.rows(), one_process(Path(folder)))
    assert all(server.stats().step in (0, -(-TOTAL // WIDTH)) for server in mesh.members.values())
    assert all(server.steps.size_bytes == 0 for server in mesh.members.values())


def test_a_step_is_applied_as_one_mean_when_its_last_part_comes_in_whatever_order(tmp_path: Path) -> None:
    wanted = one_process(tmp_path, total=WIDTH)
    for n, order in enumerate(list(permutations(range(0, WIDTH, BATCH)))[::5]):
        mesh = Mesh(tmp_path / str(n), model=LEARNING)
        mesh.folder.mkdir()
        mesh.begin(1)
        server = mesh.servers[0]
        status = PushStatus.APPLIED
        for lo in order:
            assert not server.ledgers(1).by_any
            part = in_step(parts_of([(0, lo, lo + BATCH)], mesh.slot_map, gen=1, n_ps=1)[0], total=WIDTH)
            status = server.push(part).status
        assert status is PushStatus.APPLIED
        assert server.ledgers(1).by_all == Ledger([(0, 0, WIDTH)])
        assert server.stats().step == 1
        same(rows_of([server]), wanted)
        mesh.close()


def test_the_last_step_of_a_line_is_short_and_divided_as_any(mesh: StepMesh) -> None:
    assert TOTAL % WIDTH
    _check(mesh)


def test_of_several_parts_of_a_batch_the_first_counts_and_all_are_acknowledged_together(mesh: StepMesh) -> None:
    first, backup = _fly(mesh, 0, 2), _fly(mesh, 0, 2)
    assert first.kept == backup.kept == {0, 1}
    _fly(mesh, 2, 8)
    assert mesh.settle(first) == mesh.settle(backup) == "landed"
    assert mesh.members[0].push(in_step(parts_of([(0, 0, 2)], mesh.slot_map, gen=1, n_ps=2)[0])).duplicate
    _check(mesh)


def test_a_batch_that_was_cut_otherwise_is_refused_with_the_cuts_of_what_is_kept(mesh: StepMesh) -> None:
    _fly(mesh, 1, 3)
    part = in_step(parts_of([(0, 0, 2)], mesh.slot_map, gen=1, n_ps=2)[0])
    with pytest.raises(Overlap) as refusal:
        mesh.members[0].push(part)
    assert refusal.value.cuts == ((0, 1, 2),)
    _check(mesh)


def test_what_is_kept_is_in_no_snapshot(mesh: StepMesh) -> None:
    mesh.step(0)
    _fly(mesh, 8, 12)
    mesh.snapshot = 1
    mesh.servers = list(mesh.members.values())
    for ps in (0, 1):
        mesh.mark(ps)
    mesh.commit()
    _fly(mesh, 12, 16)
    mesh.start(3)
    assert all(ledger == Ledger([(0, 0, 8)]) for ledger in mesh.ledgers())
    _check(mesh)


def test_a_snapshot_between_two_servers_last_parts_restores_them_one_step_apart_and_exact(mesh: StepMesh) -> None:
    mesh.step(0)
    for lo in range(8, 16, BATCH):
        _fly(mesh, lo, lo + BATCH, 0)                 # server 0 applies the step, server 1 has none of it
    mesh.snapshot = 1
    mesh.servers = list(mesh.members.values())
    for ps in (0, 1):
        mesh.mark(ps)
    mesh.commit()
    mesh.start(1)
    assert mesh.front() == 8
    assert len(mesh.members[0].books.groups) == 2
    _check(mesh)


def test_kept_parts_are_dropped_when_slots_leave_or_come_and_are_sent_again(mesh: StepMesh) -> None:
    flight = _fly(mesh, 0, 6)
    mesh.begin_move(0, 1, _half(mesh, 0))
    mesh.freeze("answered")
    for ps in (0, 1):
        with pytest.raises(WrongMap):
            mesh.members[ps].settled(mesh.gen, flight.slot_map.version, flight.pieces)
    mesh.decide()
    for ps in (0, 1):
        result = mesh.members[ps].settled(mesh.gen, mesh.version, flight.pieces)
        assert not result.applied
        assert list(result.lost) == [(0, 0, 6)]
        assert mesh.members[ps].steps.size_bytes == 0
    _fly(mesh, 6, 8)
    assert not any(mesh.ledgers())                    # the old parts are not what makes it whole
    _check(mesh)


def test_a_step_applied_by_the_source_of_a_move_only_is_applied_once_to_each_slot(mesh: StepMesh) -> None:
    for lo in range(0, 8, BATCH):
        _fly(mesh, lo, lo + BATCH, 0)
    mesh.begin_move(0, 1, _half(mesh, 0))
    mesh.freeze("answered")
    mesh.decide()
    assert len(mesh.members[1].books.groups) == 2
    _check(mesh)
    assert len(mesh.members[1].books.groups) == 1


def test_a_voided_batch_completes_the_step_that_waited_for_it(mesh: StepMesh) -> None:
    flight = _fly(mesh, 0, 4)
    _fly(mesh, 6, 8, 0)                               # server 0 keeps a part of the batch's successor
    for server in mesh.members.values():
        assert server.void(1, 1, [(0, 4, 6)]) == []
    assert mesh.settle(flight) == "kept"
    _fly(mesh, 6, 8, 1)
    assert mesh.settle(flight) == "landed"
    last = _fly(mesh, 8, 14)
    for server in mesh.members.values():
        server.void(1, 1, [(0, 14, 16)])              # nothing more comes: whoever asks completes it
    assert mesh.settle(last) == "landed"


def test_a_kept_part_that_a_void_cuts_through_is_lost_and_trained_between_the_cuts(mesh: StepMesh) -> None:
    flight = _fly(mesh, 0, 4)
    for server in mesh.members.values():
        server.void(1, 1, [(0, 1, 2)])
    result = mesh.members[0].settled(1, mesh.version, flight.pieces)
    assert list(result.lost) == [(0, 0, 4)]
    assert mesh.send(flight, 0) == "overlap"
    mesh.todo.clear()
    mesh.step(0)
    assert mesh.front() == WIDTH


def test_the_void_of_a_kept_batch_takes_it_out_of_the_step(mesh: StepMesh, tmp_path: Path) -> None:
    flight = _fly(mesh, 0, 2)
    for server in mesh.members.values():
        server.void(1, 1, [(0, 0, 2)])
    assert mesh.settle(flight) == "landed"
    _fly(mesh, 2, 8)
    frequencies = [row[3] for (table, _), row in mesh.rows()[0].items() if table == 1]
    assert sum(frequencies) == 6


def test_a_step_that_can_never_be_whole_is_refused_by_name(mesh: StepMesh) -> None:
    part = in_step(parts_of([(0, 0, 2)], mesh.slot_map, gen=1, n_ps=2)[0])
    buffer = StepBuffer(limit_bytes=2 * part.size_bytes - 1)
    assert buffer.keep(part, step=(0, 0, 8), since=1)
    assert not buffer.keep(part, step=(0, 0, 8), since=1)
    with pytest.raises(ResourceExhausted):
        buffer.keep(replace(part, batch=((0, 8, 10),)), step=(0, 8, 16), since=1)
    with pytest.raises(InvalidArgument) as error:
        buffer.keep(replace(part, batch=((0, 2, 4),)), step=(0, 0, 8), since=1)
    assert [v.path for v in error.value.violations] == ["training.sync.batches_per_step"]
    assert buffer.steps(since=1) == [(0, 0, 8)]
    assert buffer.steps(since=2) == [] and buffer.size_bytes(since=2) == 0


@pytest.mark.parametrize(("change", "path"), [
    ({"step": (0, 16, 24)}, "batch[0]"), ({"step": (1, 0, 8)}, "batch[0]"), ({"step": (0, 0, 9)}, "step"),
    ({"step_batches": 3}, "step_batches"),
])
def test_a_part_that_fits_no_step_is_refused(mesh: StepMesh, change: dict[str, Any], path: str) -> None:
    _fly(mesh, 2, 4)
    part = in_step(parts_of([(0, 0, 2)], mesh.slot_map, gen=1, n_ps=2)[0])
    with pytest.raises(InvalidArgument) as error:
        mesh.members[0].push(replace(part, **change))
    assert [v.path for v in error.value.violations] == [path]


def test_some_wait_for_a_step_and_more_are_answered_at_once(mesh: StepMesh) -> None:
    server = mesh.members[0]
    _fly(mesh, 0, 6)
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(server.settled, 1, mesh.version, [(0, 0, 2)], wait_s=20.0) for _ in range(8)]
        deadline = time.monotonic() + 10.0
        while sum(future.done() for future in waiting) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [future.result().applied for future in waiting if future.done()] == [False, False]
        _fly(mesh, 6, 8)
        assert sum(future.result(timeout=10.0).applied for future in waiting) == 6


def test_workers_at_once_while_snapshots_are_cut(mesh: StepMesh) -> None:
    done = threading.Event()

    def marks() -> None:
        while not done.wait(0.01):
            mesh.snapshot += 1
            for ps, server in mesh.members.items():
                cuts = server.mark(1, 1, mesh.snapshot).groups
                assert [group.ledger.size % WIDTH for group in cuts] in ([0], [TOTAL % WIDTH]), (ps, cuts)
                if server._copy:
                    server._copy.join()

    marker = threading.Thread(target=marks)
    marker.start()
    with ThreadPoolExecutor(5) as pool:
        for lo in range(0, TOTAL, WIDTH):
            _, _, hi = step_of(lo)
            list(pool.map(lambda at: _fly(mesh, at, at + BATCH), 2 * list(range(lo, hi, BATCH))))
            assert mesh.front() > lo or mesh.front() == TOTAL or hi == TOTAL
    done.set()
    marker.join()
    _check(mesh)


def test_gradients_of_old_values_are_refused_without_effect_and_duplicates_are_not(tmp_path: Path) -> None:
    mesh = Mesh(tmp_path, n_ps=1)
    mesh.begin(1)
    server = mesh.servers[0]
    pulled = server.pull(1, mesh.version, dense=True).group_step

    def push(lo: int, **freshness: Any) -> PushStatus:
        part = parts_of([(0, lo, lo + 2)], mesh.slot_map, gen=1, n_ps=1)[0]
        return server.push(replace(part, **freshness)).status

    for lo in (0, 2, 4):
        assert push(lo, pulled_step=pulled, staleness=2) is PushStatus.APPLIED
    with pytest.raises(Stale):
        push(6, pulled_step=pulled, staleness=2)
    assert server.ledgers(1).by_any == Ledger([(0, 0, 6)])
    assert push(4, pulled_step=pulled, staleness=2) is PushStatus.APPLIED
    fresh = server.pull(1, mesh.version, dense=True).group_step
    assert fresh == 3
    assert push(6, pulled_step=fresh, staleness=2) is PushStatus.APPLIED
    assert push(8, pulled_step=pulled) is PushStatus.APPLIED
    mesh.close()


def test_deltas_of_steps_hold_what_changed_and_leave_out_what_was_evicted(tmp_path: Path) -> None:
    item, user = LEARNING.tables
    mesh = Mesh(tmp_path, model=replace(LEARNING, tables=(replace(item, ttl_steps=1), user)))
    mesh.begin(2)

    def push(at: int) -> list[PushStatus]:
        parts = parts_of([(0, at, at + BATCH)], mesh.slot_map, gen=mesh.gen, n_ps=2)
        return [server.push(in_step(part)).status for server, part in zip(mesh.servers, parts, strict=True)]

    for lo in range(0, TOTAL, WIDTH):
        _, _, hi = step_of(lo)
        last = [push(at) for at in range(lo, hi, BATCH)][-1]
        assert last == [PushStatus.APPLIED] * 2
        assert hi == TOTAL or push(hi) == [PushStatus.KEPT] * 2      # in no cut
        mesh.snapshot += 1
        for ps in range(2):
            mesh.mark(ps)
        mesh.commit()
    steps = len(range(0, TOTAL, WIDTH))
    assert mesh.bases == {number: number - 1 for number in range(1, steps + 1)}
    live = rows_of(mesh.servers)
    assert 0 < sum(table == 0 for table, _ in live[0]) < len(truth(range(TOTAL))[0])
    mesh.begin(3)
    same(rows_of(mesh.servers), live)
    mesh.close()


class Stepping(Moving):
    """As Moving, in synchronous mode: each row and its optimizer's state end as one process would have them."""

    mesh: StepMesh
    flights: list[StepFlight]  # type: ignore[assignment]  # of this kind only

    def __init__(self) -> None:
        super().__init__()
        self.mesh = StepMesh(self.folder)

    @initialize(n_ps=st.integers(1, 3))
    def begin(self, n_ps: int) -> None:
        self.mesh.start(n_ps)

    @rule(lo=st.integers(0, WIDTH - 1), size=st.integers(1, 5), back=st.booleans(), sent=st.integers(0, 3))
    def take_off(self, lo: int, size: int, sent: int, back: bool = False) -> None:
        if self.mesh.move and self.mesh.move.version:
            return                                    # nobody knows the front while slots are on their way
        front = min(self.mesh.front(), TOTAL - 1)
        _, first, end = step_of(max(0, front - WIDTH) if back else front)
        lo = min(first + lo, end - 1)
        flight = self.mesh.take_off([(0, lo, min(lo + size, end))])
        self.flights.append(flight)
        for ps in np.unique(flight.slot_map.owners).tolist()[:sent]:
            self._send(flight, ps)

    @precondition(lambda self: not (self.mesh.move and self.mesh.move.version))
    @rule(sent=st.integers(1, 4))
    def most_of_a_step(self, sent: int) -> None:
        """Its grid batches, of which the last may be missing."""
        _, lo, hi = step_of(min(self.mesh.front(), TOTAL - 1))
        for at in list(range(lo, hi, BATCH))[:sent]:
            flight = self.mesh.take_off([(0, at, min(at + BATCH, hi))])
            self.flights.append(flight)
            for ps in np.unique(flight.slot_map.owners).tolist():
                self._send(flight, ps)

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        flight = data.draw(st.sampled_from(self.flights))
        if self.mesh.settle(flight) in ("landed", "gone"):
            self.flights.remove(flight)

    @rule(data=st.data(), lo=st.integers(0, WIDTH - 1))
    @precondition(lambda self: not self.mesh.move and len(self.mesh.members) > 1)
    def move_past_a_flight(self, data: st.DataObject, lo: int) -> None:
        """A half full buffer at a server whose slots leave."""
        self.most_of_a_step(data.draw(st.integers(1, BATCHES)))
        self.begin_move(data)
        self.freeze("answered")
        self.decide()

    def teardown(self) -> None:
        try:
            if self.mesh.members:
                _check(self.mesh)
        finally:
            self.mesh.close()
            shutil.rmtree(self.folder)


del Moving                                            # pytest would take it for this module's
TestStepping = Stepping.TestCase
TestStepping.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
