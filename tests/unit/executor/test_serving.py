"""The threads of executors, with peers in this process."""

import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from recmesh.data.decoded import Decoded
from recmesh.data.records import TaskRecord
from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.trainer.executor.rebalance import Peer, Thresholds
from recmesh.trainer.executor.serving import Executor, MovedTo, Rows
from recmesh.trainer.executor.shelf import Shelf
from recmesh.trainer.ports import ExecutorRows, Taken
from tests.support.waiting import until
from tests.unit.executor.builders import rows_of, task

BOUNDS = Thresholds(refuse_above=2, accept_below=1)


class Near:
    """An executor of this process, as a peer or a worker calls it."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.dead = False

    def announce(self, tasks: Sequence[TaskRecord]) -> int:
        self._check()
        return self.executor.announce(tasks)

    def read(self, task: TaskRecord, lo: int, hi: int, *, wait_s: float, here: bool = False) -> ExecutorRows:
        self._check()
        found = self.executor.read(task, lo, hi, wait_s=wait_s, here=here)
        if isinstance(found, MovedTo):
            return ExecutorRows(moved_to=found.address)
        return ExecutorRows() if found is None else ExecutorRows(found.batch, found.bad)

    def take(self, tasks: Sequence[TaskRecord]) -> Taken:
        self._check()
        return self.executor.take(tasks)

    def room(self, address: str, *, accepting: bool, queued: int) -> None:
        self._check()
        self.executor.heard(address, Peer(accepting, queued))

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.dead:
            raise Unavailable("it is dead")


class Group:
    """Executors that know each other. Those named `slow` decode only what `go` lets through."""

    def __init__(self, count: int, *, thresholds: Thresholds | None = BOUNDS, slow: Sequence[int] = ()) -> None:
        self.go = threading.Event()
        self.decoded: list[list[int]] = [[] for _ in range(count)]
        self.near: dict[str, Near] = {}
        for number in range(count):
            executor = Executor(
                Shelf([1.0], 1 << 20), [self._decoder(number, is_slow=number in slow)], thresholds=thresholds,
                reach=lambda address: self.near[address],
            )
            self.near[f"e{number}"] = Near(executor)

    def _decoder(self, number: int, *, is_slow: bool) -> Callable[[TaskRecord], Decoded]:
        def decode(task: TaskRecord) -> Decoded:
            if is_slow:
                self.go.wait(30)
            self.decoded[number].append(task.base // task.rows)
            return rows_of(task)

        return decode

    def __enter__(self) -> "Group":
        for address, near in self.near.items():
            near.executor.start(address)
            near.executor.use_peers({other: Peer(True, 0) for other in self.near})
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        for near in self.near.values():
            near.executor.stop()

    def executor(self, number: int) -> Executor:
        return self.near[f"e{number}"].executor


def rows(found: Rows | MovedTo | None) -> list[int]:
    assert isinstance(found, Rows)
    return [int(row) for row in found.batch.ids["row"].values]


def test_rows_come_by_position_whether_they_were_announced_or_not() -> None:
    with Group(1) as group:
        executor = group.executor(0)
        assert executor.announce([task(0), task(1)]) == 2
        assert rows(executor.read(task(1), 12, 15, wait_s=10, here=False)) == [12, 13, 14]
        assert rows(executor.read(task(7), 70, 71, wait_s=10, here=False)) == [70]


def test_a_call_does_not_wait_for_ever() -> None:
    with Group(1, slow=[0]) as group:
        assert group.executor(0).read(task(0), 0, 1, wait_s=0.01, here=False) is None


def test_it_tells_how_long_somebody_waited_for_it() -> None:
    now, meanwhile = 0.0, list[float]()

    def decode(task: TaskRecord) -> Decoded:
        nonlocal now
        now += 3.0
        meanwhile.append(executor.serving().waited_s)
        return rows_of(task)

    executor = Executor(Shelf([1.0], 1 << 20), [decode], thresholds=None, reach=nobody, clock=lambda: now)
    executor.start("e0")
    try:
        assert rows(executor.read(task(0), 0, 1, wait_s=10, here=False)) == [0]
        now += 10.0                                                  # nobody waits
        assert rows(executor.read(task(0), 1, 2, wait_s=10, here=False)) == [1]      # it is ready
        assert meanwhile == [3.0] and executor.serving().waited_s == 3.0
        assert executor.announce([task(1)]) == 1
        until(lambda: executor.serving().decoded == 2)
        assert meanwhile == [3.0, 3.0] and executor.serving().waited_s == 3.0       # read ahead
    finally:
        executor.stop()


def test_one_that_never_began_can_be_stopped() -> None:
    executor = Executor(Shelf([1.0], 1 << 20), [rows_of], thresholds=BOUNDS, reach=nobody)
    executor.stop()
    assert executor.announce([task(0)]) == 0


def nobody(address: str) -> Near:
    raise AssertionError(f"there is no peer {address}")


def test_what_cannot_be_read_is_told_to_who_asked() -> None:
    def decode(task: TaskRecord) -> Decoded:
        raise InvalidArgument("its content is not as specified")

    executor = Executor(Shelf([1.0], 1 << 20), [decode], thresholds=None, reach=lambda address: pytest.fail(address))
    executor.start("here")
    try:
        with pytest.raises(InvalidArgument, match="content"):
            executor.read(task(0), 0, 1, wait_s=10, here=False)
    finally:
        executor.stop()


def test_a_slow_executor_passes_its_surplus_to_one_that_has_room_and_callers_find_it_there() -> None:
    with Group(2, slow=[0]) as group:
        slow = group.executor(0)
        slow.announce([task(i) for i in range(6)])
        until(lambda: slow.serving().forwarded >= 1 and slow.serving().queued <= BOUNDS.refuse_above)
        found = slow.read(task(5), 50, 52, wait_s=10, here=False)
        assert found == MovedTo("e1")
        assert rows(group.executor(1).read(task(5), 50, 52, wait_s=10, here=False)) == [50, 51]
        assert rows(group.executor(1).read(task(5), 59, 60, wait_s=10, here=True)) == [59]
        assert group.decoded[0] == []


def test_forward_keeps_every_task_where_it_came() -> None:
    with Group(2, thresholds=None, slow=[0]) as group:
        slow = group.executor(0)
        slow.announce([task(i) for i in range(20)])
        assert slow.read(task(19), 190, 191, wait_s=0.05, here=False) is None
        assert (slow.serving().forwarded, group.executor(1).serving().queued) == (0, 0)


def test_none_is_passed_on_twice_though_all_are_long() -> None:
    with Group(3, slow=[0, 1, 2]) as group:
        for near in group.near.values():
            near.executor.announce([task(i) for i in range(40)])
        until(lambda: not any(near.executor.serving().accepting for near in group.near.values()))
        group.go.set()
        for number in range(40):
            near, asked = group.near["e0"], 0
            while True:
                asked += 1
                found = near.executor.read(task(number), 10 * number, 10 * number + 1, wait_s=10, here=False)
                if not isinstance(found, MovedTo):
                    break
                near = group.near[found.address]
            assert asked <= 2
            assert rows(found) == [10 * number]


def test_a_peer_that_cannot_be_asked_loses_nothing() -> None:
    with Group(2, slow=[0]) as group:
        group.near["e1"].dead = True
        slow = group.executor(0)
        slow.announce([task(i) for i in range(6)])
        group.go.set()
        for number in range(6):
            found = slow.read(task(number), 10 * number, 10 * number + 10, wait_s=10, here=False)
            np.testing.assert_array_equal(rows(found), np.arange(10 * number, 10 * number + 10))


def test_one_that_leaves_takes_nothing_new_and_still_serves() -> None:
    with Group(1) as group:
        executor = group.executor(0)
        executor.announce([task(0)])
        executor.leave()
        assert executor.announce([task(1)]) == 0
        assert executor.take([task(2)]).count == 0
        assert not executor.serving().accepting
        assert rows(executor.read(task(0), 0, 2, wait_s=10, here=False)) == [0, 1]


def test_peers_hear_when_there_is_no_room_any_more() -> None:
    with Group(2, slow=[0, 1]) as group:
        told = threading.Event()
        group.executor(1).on_room = told.set
        group.executor(1).announce([task(i) for i in range(4)])
        assert told.wait(10)
        until(lambda: not group.executor(0)._peers["e1"][0].accepting)
