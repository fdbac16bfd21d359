"""The worker against servers that keep the protocol's rules and break everything else."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from recmesh.data.records import FileSlice, TaskRecord
from recmesh.formats import SlotMap, slots_of
from recmesh.runtime.errors import Aborted, Internal, Unavailable
from recmesh.spec.dataset import SampleKind
from recmesh.trainer.exits import BUG, exit_code_of
from recmesh.trainer.ports import Piece, RunRecord
from recmesh.trainer.session import DenseBlock, EmbeddingTable, Init, Step
from recmesh.trainer.stepping import StepMistake
from recmesh.trainer.worker.fleet import Fleet, WrongMap
from recmesh.trainer.worker.life import Life
from recmesh.trainer.worker.meter import Meter
from recmesh.trainer.worker.reading import InProcess
from recmesh.trainer.worker.session import WorkerSession
from recmesh.trainer.worker.terms import Declaration, Terms
from tests.support.waiting import until
from tests.unit.trainer.fakes import FakeRuns, FakeServer, FakeShards, PositionReader, job_spec, record_of

TABLES = [EmbeddingTable("ta", 2, ["a"], init=Init.zeros()), EmbeddingTable("tb", 3, ["b"], init=Init.zeros())]
TOTAL = 45


@dataclass
class Mesh:
    """A worker with all that it talks to."""

    servers: list[FakeServer]
    shards: FakeShards
    runs: FakeRuns
    session: WorkerSession
    meter: Meter

    def train(self, *, until: Callable[[], bool] | None = None) -> int:
        """Counts each sample once into each row, and into a dense block; stops when everything is applied."""
        stop = until or self.complete
        steps = 0
        for step in self.session.steps():
            count_once(step)
            steps += 1
            self.end_when(stop)
        return steps

    def end_when(self, stop: Callable[[], bool]) -> None:
        if stop():
            self.session.stop()

    def complete(self) -> bool:
        return all(server.applied.covers(0, TOTAL) for server in self.servers)

    def counted(self, table: str) -> dict[int, float]:
        merged: Counter[int] = Counter()
        for server in self.servers:
            merged.update({i: value for i, value in server.sums[table].items() if value})
        return dict(merged)


def count_once(step: Step) -> None:
    grads = {}
    for table, feature in (("ta", "a"), ("tb", "b")):
        grad = np.zeros_like(step.rows[table])
        np.add.at(grad, step.index[feature], np.float32(1.0))
        grads[table] = grad
    step.push(grads, {"seen": np.full(1, step.batch.size, np.float32)}, loss=0.5)


@contextmanager
def mesh(
    *, servers: int = 2, total: int = TOTAL, shard: int = 12, in_flight: int = 2,
    tasks: tuple[TaskRecord, ...] = (), kinds: tuple[SampleKind, ...] = ("batch",), trained: bool = False,
    **training: object,
) -> Iterator[Mesh]:
    """trained: all positions are in the servers' ledgers before it begins."""
    slot_map = SlotMap.even(1, servers)
    fakes = [FakeServer(ps, slot_map) for ps in range(servers)]
    for server in fakes if trained else ():
        server.applied.add(0, total)
    shards, runs, meter = FakeShards(total, shard), FakeRuns(record_of(slot_map, servers)), Meter()
    spec = job_spec(in_flight=in_flight, **training)
    shards.tasks = tasks or shards.tasks

    def begin(record: RunRecord, declaration: Declaration) -> Life:
        return Life(
            record,
            terms=Terms.of(spec.training, worker="0-test", kinds=kinds),
            connect=lambda member: made.servers[member.ps],
            shards=made.shards,
            runs=runs,
            reader=InProcess(PositionReader()),
            declaration=declaration,
            meter=meter,
        )

    session = WorkerSession(spec, runs=runs, begin=begin, meter=meter)
    made = Mesh(fakes, shards, runs, session, meter)
    session.declare(TABLES, [DenseBlock("seen", np.zeros(1, np.float32), "statistic")])
    session.open()
    # Whatever a test breaks, its loop ends: a stuck worker fails the test instead of hanging it.
    guard = threading.Timer(20.0, session.stop)
    guard.start()
    try:
        yield made
    finally:
        guard.cancel()
        session.close()


def wait_for_end(made: Mesh) -> None:
    """Steps stop only when the last push has landed."""
    stop_once(made, made.complete)
    made.train(until=lambda: False)


def stop_once(made: Mesh, condition: Callable[[], bool]) -> None:
    """Looked at by a thread beside the loop, which may wait for its next step when it comes true."""

    def watch() -> None:
        while not condition() and not made.session.stopping:
            threading.Event().wait(0.01)
        made.session.stop()

    threading.Thread(target=watch, daemon=True).start()


def truth(modulus: int) -> dict[int, float]:
    return {i: float(n) for i, n in Counter(p % modulus for p in range(TOTAL)).items()}


def dense_sum(made: Mesh) -> float:
    return float(sum(value[0] for server in made.servers for value in server.dense.values()))


def test_every_sample_reaches_each_of_its_rows_once_and_each_server_has_all_positions() -> None:
    with mesh(servers=3) as made:
        wait_for_end(made)
        assert made.counted("ta") == truth(7)
        assert made.counted("tb") == truth(3)
        assert dense_sum(made) == TOTAL
        assert [list(server.applied) for server in made.servers] == [[(0, TOTAL)]] * 3


def test_a_server_that_owns_none_of_a_batch_gets_an_empty_part() -> None:
    with mesh(servers=16) as made:   # ten ids on sixteen servers
        wait_for_end(made)
        assert all(len(server.pushed) == 12 for server in made.servers)


def test_a_lost_ack_is_asked_again_and_counts_once() -> None:
    with mesh() as made:
        failed: set[Piece] = set()

        def lose(piece: Piece) -> None:
            if piece not in failed:
                failed.add(piece)
                raise Unavailable("the answer is lost")

        made.servers[1].after_push = lose
        wait_for_end(made)
        assert made.counted("ta") == truth(7)
        assert failed


def test_an_outage_of_a_server_is_outlasted() -> None:
    with mesh() as made:
        refusals = iter(range(4))

        def refuse(piece: Piece) -> None:
            if next(refusals, None) is not None:
                raise Unavailable("restarting")

        made.servers[0].before_push = refuse
        wait_for_end(made)
        assert made.counted("tb") == truth(3)


def test_after_a_move_of_slots_all_acks_are_forgotten_and_nothing_is_lost_or_doubled() -> None:
    with mesh() as made:
        moved = SlotMap(2, 1 - made.servers[0].map.owners)   # each slot changes its owner
        once = threading.Event()

        def swap(piece: Piece) -> None:
            if piece.lo != 16 or once.is_set():
                return
            once.set()
            first, second = made.servers
            with first.lock, second.lock:
                # A handoff moves rows with their ledger.
                first.sums, second.sums = second.sums, first.sums
                first.counts, second.counts = second.counts, first.counts
                first.dense, second.dense = second.dense, first.dense
                first.applied, second.applied = second.applied, first.applied
                for server in made.servers:
                    server.map, server.since = moved, 2
            made.runs.now = record_of(moved, 2)

        made.servers[0].before_push = swap
        wait_for_end(made)
        assert once.is_set()
        assert made.counted("ta") == truth(7)
        assert made.counted("tb") == truth(3)
        assert dense_sum(made) == TOTAL


def test_a_batch_that_overlaps_a_ledger_is_trained_again_between_the_cuts() -> None:
    with mesh() as made:
        late = threading.Event()

        def someone_else(piece: Piece) -> None:
            if piece.lo == 12 and not late.is_set():
                late.set()
                server = made.servers[0]
                with server.lock:
                    # Another worker's cut: position 14 alone, with its parts for this server.
                    reader = PositionReader().batch((), 14, 15)
                    for table, feature in (("ta", "a"), ("tb", "b")):
                        i = int(reader.ids[feature].values[0])
                        if server.map.owners[slots_of(np.array([i]), table)][0] == 0:
                            server.sums[table][i] += 1.0
                    for key in server.dense:
                        server.dense[key] += 1.0
                    server.applied.add(14, 15)

        made.servers[0].before_push = someone_else
        wait_for_end(made)
        assert made.counted("ta") == truth(7)
        assert made.counted("tb") == truth(3)
        assert Piece(0, 12, 14) in made.servers[0].pushed
        assert Piece(0, 15, 16) in made.servers[0].pushed


def test_after_a_rollback_the_new_generation_trains_everything_again() -> None:
    with mesh() as made:
        rolled = threading.Event()
        old = list(made.servers)

        def roll_back(piece: Piece) -> None:
            if piece.lo >= 20 and not rolled.is_set():
                rolled.set()
                slot_map = SlotMap.even(5, 2)
                made.servers[:] = [FakeServer(ps, slot_map, gen=2) for ps in range(2)]
                made.shards = FakeShards(TOTAL, 12, gen=2)
                made.runs.now = record_of(slot_map, 2, gen=2)
                for server in old:
                    server.gen = 2

        old[0].before_push = roll_back
        wait_for_end(made)
        assert rolled.is_set()
        assert made.counted("ta") == truth(7)
        assert made.session.gen == 2


def test_a_lease_that_is_trained_already_is_only_completed() -> None:
    with mesh(trained=True) as made:
        stop_once(made, lambda: not made.shards.queue and not made.shards.leased)
        assert made.train(until=lambda: False) == 0
        assert not made.shards.queue and not made.shards.leased
        assert not any(server.counts["ta"] for server in made.servers)


def test_never_more_than_in_flight_batches_are_between_pull_and_ack() -> None:
    with mesh(servers=1, in_flight=2) as made:
        gate = threading.Event()
        most = 0
        server = made.servers[0]

        def hold(piece: Piece) -> None:
            gate.wait(10)

        server.before_push = hold
        taken = []
        for step in made.session.steps():
            taken.append(step.batch.size)
            most = max(most, server.pulls - len(server.pushed))
            count_once(step)
            if len(taken) == 2:
                assert server.pulls == 2   # a third pull waits for an ack
                gate.set()
            if made.complete() or len(taken) == 12:
                break
        assert most <= 2


def test_a_batch_whose_values_have_become_too_old_is_pulled_and_computed_again() -> None:
    with mesh(in_flight=2, staleness=1) as made:
        held = threading.Event()

        def others_go_on(piece: Piece) -> None:
            if piece.lo != 16 or held.is_set():
                return
            held.set()
            with made.servers[0].lock:                # two batches of another worker, far away
                made.servers[0].pushed += [Piece(1, 0, 4), Piece(1, 4, 8)]

        made.servers[0].before_push = others_go_on
        computed: list[int] = []
        stop_once(made, made.complete)
        for step in made.session.steps():
            computed.append(int(step.batch.labels.size))
            count_once(step)
        assert held.is_set()
        assert made.counted("ta") == truth(7)
        assert made.counted("tb") == truth(3)
        assert dense_sum(made) == TOTAL
        assert sum(computed) > TOTAL


def test_a_drained_worker_returns_its_leases_and_loses_nothing() -> None:
    with mesh() as made:
        made.train(until=lambda: True)   # one step, then stop
        made.session.close()
        assert made.shards.released == 1
        assert not made.shards.leased
        applied = {piece for server in made.servers for piece in server.pushed}
        queued = sum(piece.hi - piece.lo for piece in made.shards.queue)
        assert queued + sum(piece.hi - piece.lo for piece in applied) == TOTAL


def test_what_was_cut_from_a_lease_is_left_to_others() -> None:
    with mesh(total=40_000, shard=40_000) as made:
        made.shards.cut_to = 24

        def stop() -> None:
            try:
                until(lambda: bool(made.servers[0].pushed) and not made.shards.leased, timeout_s=60)
            finally:
                made.session.stop()

        stopper = threading.Thread(target=stop)
        stopper.start()
        made.train(until=lambda: False)
        stopper.join()
        made.session.close()
        applied = {piece for server in made.servers for piece in server.pushed}
        far = max(piece.hi for piece in applied)
        assert 24 <= far < 40_000, "a few batches were under way; the rest was not begun"
        assert not made.shards.leased, "the cut lease was completed"


def test_an_outage_of_shardsvc_is_outlasted() -> None:
    with mesh() as made:
        made.shards.outage.set()
        threading.Timer(0.2, made.shards.outage.clear).start()
        wait_for_end(made)
        assert made.counted("ta") == truth(7)


def test_numbers_that_are_not_finite_push_the_ids_with_zero_gradients_and_count() -> None:
    with mesh() as made:
        first = True
        for step in made.session.steps():
            if first:
                step.push({}, {}, loss=float("nan"))
            else:
                count_once(step)
            first = False
            made.end_when(lambda: len(made.servers[0].pushed) + len(made.servers[1].pushed) >= 16)
        made.session.close()
        assert made.meter.beat(1).skipped_nan == 1
        assert sum(made.servers[0].counts["ta"].values()) + sum(made.servers[1].counts["ta"].values()) >= 4


@pytest.mark.parametrize("action", ["skip", "fail"])
def test_a_worker_reports_batches_that_are_not_finite_and_leaves_the_verdict_to_jobmaster(action: str) -> None:
    with mesh(nan={"action": action, "limit": 1}) as made:
        skipped = 0
        stop_once(made, made.complete)
        for step in made.session.steps():
            step.skip_nan()
            skipped += 1
        made.session.close()
        assert skipped > 1 and made.meter.beat(1).skipped_nan == skipped


def test_the_ids_of_a_skipped_batch_are_pushed_and_its_values_are_not() -> None:
    with mesh(servers=1) as made:
        stop_once(made, made.complete)
        for step in made.session.steps():
            step.skip_nan()
        made.session.close()
        assert made.servers[0].counts["ta"] and not any(made.servers[0].sums["ta"].values())


def test_a_loop_that_passes_a_step_over_is_told() -> None:
    with mesh() as made, pytest.raises(StepMistake, match="without pushing"):
        for _ in made.session.steps():
            pass


def test_gradients_of_unknown_tables_and_wrong_shapes_are_named() -> None:
    with mesh() as made:
        for step in made.session.steps():
            with pytest.raises(StepMistake, match="other"):
                step.push({"other": np.zeros((1, 2), np.float32)}, {}, loss=0.0)
            with pytest.raises(StepMistake, match="table ta"):
                step.push({"ta": np.zeros((1, 9), np.float32)}, {}, loss=0.0)
            step.skip_nan()
            break


def test_clipping_scales_all_gradients_to_the_global_norm() -> None:
    with mesh(clip_norm=1.0, servers=1) as made:
        step = next(made.session.steps())
        step.push({"ta": np.full_like(step.rows["ta"], 3.0)}, {}, loss=0.0)
        rows = len(step.rows["ta"])
        made.session.close()
        pushed = list(made.servers[0].sums["ta"].values())
        assert np.isclose(sum(value**2 for value in pushed if value) * 2, 1.0)
        assert len([value for value in pushed if value]) == rows


def test_a_bug_in_a_thread_of_the_worker_is_not_blamed_on_the_model() -> None:
    with mesh() as made:
        def fail(piece: Piece) -> None:
            raise KeyError(piece)

        made.servers[0].before_push = fail
        with pytest.raises(Internal, match="KeyError") as raised:
            for step in made.session.steps():
                count_once(step)
        assert exit_code_of(raised.value, in_user_code=True, stepped=False) == BUG


def test_the_newest_of_several_maps_is_asked_for_and_connections_end_with_their_fleet() -> None:
    slot_map = SlotMap.even(1, 3)
    servers = [FakeServer(ps, slot_map) for ps in range(3)]
    fleet = Fleet(lambda member: servers[member.ps], record_of(slot_map, 3))

    together = threading.Barrier(3)

    def refuse(ps: int, _: object) -> None:
        together.wait(10)
        raise Aborted("moved", reason="WRONG_MAP", metadata={"since": str((4, 9, 6)[ps])})

    with pytest.raises(WrongMap) as refusal:
        fleet.each(refuse, placement=fleet.placement, what="call", gone=threading.Event())
    assert refusal.value.since == 9
    fleet.use(record_of(slot_map, 2))
    fleet.close()
    fleet.close()
    assert [server.closed for server in servers] == [1, 1, 1]


def test_a_session_waits_at_jobmaster_for_the_next_generation() -> None:
    with mesh() as made:
        waits: list[tuple[int, float]] = []
        opened = record_of(SlotMap.even(5, 2), 2, gen=2)

        def record(*, newer_than_gen: int = 0, wait_s: float = 0.0) -> RunRecord:
            waits.append((newer_than_gen, wait_s))
            return opened

        made.runs.record = record  # type: ignore[method-assign]  # of this instance
        made.servers[:] = [FakeServer(ps, SlotMap.even(5, 2), gen=2) for ps in range(2)]
        made.shards = FakeShards(TOTAL, 12, gen=2)
        assert made.session._life is not None
        made.session._life.abandon()
        wait_for_end(made)
        assert waits[0] == (1, 5.0) and made.session.gen == 2


def test_batches_are_cut_where_samples_of_another_kind_begin() -> None:
    borders = (0, 7, 18, 19, 30, TOTAL)
    tasks = tuple(
        TaskRecord(1, 0, lo, hi - lo, 0, 0, FileSlice("f", 1, "", lo, hi - lo, view=number % 2))
        for number, (lo, hi) in enumerate(pairwise(borders))
    )
    with mesh(tasks=tasks, kinds=("batch", "stream")) as made:
        wait_for_end(made)
        assert made.counted("ta") == truth(7)
        for piece in made.servers[0].pushed:
            assert not any(piece.lo < border < piece.hi for border in borders), piece
        assert len(made.servers[0].pushed) > TOTAL / 4 + 1


def test_nothing_is_pushed_of_tables_and_blocks_that_a_batch_does_not_train() -> None:
    with mesh(servers=3) as made:
        stop_once(made, made.complete)
        trained = 0
        for step in made.session.steps():
            if step.batch.size % 2 or trained % 2:
                step.push({"ta": None}, {"seen": None}, loss=float("nan") if trained % 3 else 0.5)
            else:
                count_once(step)
            trained += 1
        seen = sum(made.counted("ta").values())
        assert 0 < seen < TOTAL and dense_sum(made) == seen
        counts = [sum(server.counts["ta"].values()) for server in made.servers]
        assert sum(counts) == seen, "what is not trained does not count as seen"
        assert sum(sum(server.counts["tb"].values()) for server in made.servers) == TOTAL
