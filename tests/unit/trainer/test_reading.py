"""A worker's reader: whom it asks, and what it does when they do not answer."""

from collections.abc import Sequence

import numpy as np
import pytest

from recmesh.data.records import Batch, FileSlice, TaskRecord
from recmesh.runtime.errors import DataLoss, FailedPrecondition, MeshError, Unavailable
from recmesh.trainer.ports import ExecutorAddress, ExecutorRows, Lease, Piece, Taken
from recmesh.trainer.worker.reading import AWAY_S, FromExecutors
from tests.unit.trainer.fakes import PositionReader


class FakeExecutor:
    """Answers at once, or as it is told."""

    def __init__(self, address: str) -> None:
        self.address, self.closed = address, False
        self.announced: list[int] = []
        self.asked: list[tuple[int, int, bool]] = []
        self.error: MeshError | None = None
        self.moved_to = ""
        self.never = False

    def announce(self, tasks: Sequence[TaskRecord]) -> int:
        self._check()
        self.announced += [task.base for task in tasks]
        return len(tasks)

    def read(self, task: TaskRecord, lo: int, hi: int, *, wait_s: float, here: bool = False) -> ExecutorRows:
        self._check()
        self.asked.append((lo, hi, here))
        if self.moved_to and not here:
            return ExecutorRows(moved_to=self.moved_to)
        return ExecutorRows() if self.never else ExecutorRows(PositionReader().batch([task], lo, hi), bad=1)

    def take(self, tasks: Sequence[TaskRecord]) -> Taken:
        raise AssertionError("for peers")

    def room(self, address: str, *, accepting: bool, queued: int) -> None:
        raise AssertionError("for peers")

    def close(self) -> None:
        self.closed = True

    def _check(self) -> None:
        if self.error is not None:
            raise self.error


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.1
        return self.now


class World:
    """A reader and the executors that it knows."""

    def __init__(self, count: int = 3) -> None:
        self.executors = {f"e{i}": FakeExecutor(f"e{i}") for i in range(count)}
        self.local, self.clock = PositionReader(), Clock()
        self.reader = FromExecutors(
            connect=lambda address: self.executors[address], local=lambda: self.local, batch_size=4, clock=self.clock,
            patience_s=1.0,
        )
        self.reader.use([ExecutorAddress(address, "first") for address in self.executors])

    def batch(self, lo: int, hi: int) -> Batch:
        return self.reader.batch(TASKS, lo, hi)


TASKS = tuple(
    TaskRecord(1, 0, 10 * i, 10, 0, 0, FileSlice("nowhere", 1, "tag", 10 * i, 10)) for i in range(6)
)


def same(found: Batch, lo: int, hi: int) -> None:
    want = PositionReader().batch([], lo, hi)
    np.testing.assert_array_equal(found.labels, want.labels)
    np.testing.assert_array_equal(found.ids["a"].values, want.ids["a"].values)


def test_consecutive_tasks_fall_to_executors_in_turn_and_a_batch_may_span_them() -> None:
    world = World()
    world.reader.announce(TASKS)
    assert {name: each.announced for name, each in world.executors.items()} == {
        "e0": [0, 30], "e1": [10, 40], "e2": [20, 50],
    }
    same(world.batch(8, 23), 8, 23)
    assert [each.asked for each in world.executors.values()] == [[(8, 10, False)], [(10, 20, False)], [(20, 23, False)]]
    assert world.reader.read_locally == 0
    assert world.reader.bad_records == 3


def test_a_dead_executor_is_passed_over_for_a_while_and_then_asked_again() -> None:
    world = World()
    world.executors["e0"].error = Unavailable("dead")
    same(world.batch(0, 4), 0, 4)
    assert world.executors["e1"].asked == [(0, 4, True)]
    world.executors["e0"].error = None
    same(world.batch(4, 8), 4, 8)
    assert world.executors["e0"].asked == []
    world.clock.now += AWAY_S
    same(world.batch(8, 10), 8, 10)
    assert world.executors["e0"].asked == [(8, 10, False)]


def test_one_that_never_has_the_rows_is_left_for_another() -> None:
    world = World()
    world.executors["e0"].never = True
    same(world.batch(0, 4), 0, 4)
    assert len(world.executors["e0"].asked) > 1
    assert world.executors["e1"].asked == [(0, 4, True)]


@pytest.mark.parametrize("error", [Unavailable("dead"), FailedPrecondition("other data"), DataLoss("changed")])
def test_where_none_answers_the_worker_reads_itself(error: MeshError) -> None:
    world = World()
    for executor in world.executors.values():
        executor.error = error
    same(world.batch(0, 4), 0, 4)
    assert world.reader.read_locally == 1


def test_without_executors_the_worker_reads_itself() -> None:
    world = World()
    world.reader.use([])
    same(world.batch(0, 12), 0, 12)
    assert world.reader.read_locally == 2
    assert all(executor.closed for executor in world.executors.values())


def test_a_task_that_moved_is_asked_for_at_the_peer_from_then_on() -> None:
    world = World()
    world.executors["e0"].moved_to = "e2"
    same(world.batch(0, 4), 0, 4)
    same(world.batch(4, 8), 4, 8)
    assert len(world.executors["e0"].asked) == 1
    assert world.executors["e2"].asked == [(0, 4, False), (4, 8, False)]


def test_a_peer_that_died_with_a_task_does_not_take_it_along() -> None:
    world = World()
    world.executors["e0"].moved_to = "e2"
    world.executors["e2"].error = Unavailable("dead")
    same(world.batch(0, 4), 0, 4)
    assert world.executors["e0"].asked == [(0, 4, False), (0, 4, True)]


def test_two_executors_that_send_one_another_round_end_with_the_worker_reading_itself() -> None:
    world = World(2)
    world.executors["e0"].moved_to, world.executors["e1"].moved_to = "e1", "e0"
    same(world.batch(0, 4), 0, 4)


def test_threads_wait_for_different_tasks_until_one_is_known_to_be_ready() -> None:
    world = World()
    lease = Lease(1, Piece(0, 0, 60), TASKS)
    waiting = [(lease, Piece(0, lo, lo + 4)) for lo in (0, 4, 10, 14)]
    assert world.reader.choose(waiting, thread=1) == 0
    assert world.reader.choose(waiting[1:], thread=1) == 1            # not the first task's second batch
    assert world.reader.choose([waiting[1], waiting[3]], thread=1) is None
    world.batch(0, 4)
    assert world.reader.choose([waiting[1], waiting[3]], thread=1) == 0
    assert world.reader.choose([waiting[1], waiting[3]], thread=1) == 0
    world.reader.pass_over(TASKS, 10, 14)
    assert world.reader.choose([waiting[3]], thread=1) == 0


def test_without_executors_batches_are_one_threads_and_keep_their_order() -> None:
    world = World()
    world.reader.use([])
    lease = Lease(1, Piece(0, 0, 60), TASKS)
    waiting = [(lease, Piece(0, lo, lo + 4)) for lo in (0, 4)]
    assert world.reader.choose(waiting, thread=1) is None
    assert world.reader.choose(waiting, thread=0) == 0
    assert world.reader.ahead() == 64


def test_a_new_incarnation_gets_a_new_connection() -> None:
    world = World(1)
    world.reader.use([ExecutorAddress("e0", "second")])
    assert world.executors["e0"].closed


def test_as_many_batches_wait_as_keep_all_executors_busy() -> None:
    world = World()
    assert world.reader.ahead() == 64
    world.reader.announce([TaskRecord(1, 0, 0, 400, 0, 0, FileSlice("nowhere", 1, "tag", 0, 400))])
    assert world.reader.ahead() == 3 * 3 * 100
