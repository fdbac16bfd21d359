"""The order of a synchronous worker's batches: none before its step's turn, none kept back by a later one."""

import queue
from typing import Any, cast

import pytest

from recmesh.trainer.ports import Lease, Piece
from recmesh.trainer.worker.flow import Read, Ready
from recmesh.trainer.worker.turns import STALL_S, Kept, Question, Turns

END = 22


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> Turns:
    return Turns(width=8, ahead=2, clock=clock)


def read(lo: int) -> Read:
    piece = Piece(0, lo, min(lo + 4, END))
    return Read(Lease(1, piece, (), END), piece, cast(Any, None), 0.0)


def kept(lo: int) -> Kept:
    return Kept(Ready(read(lo), cast(Any, None), {}, {}, cast(Any, None), {}), cast(Any, None))


def put(turns: Turns, *los: int) -> None:
    for lo in los:
        turns.expect(1)
        turns.put(read(lo))


def taken(turns: Turns) -> int:
    return turns.get(0.0).piece.lo


def test_batches_of_the_first_step_begin_at_once_and_in_order(turns: Turns) -> None:
    put(turns, 4, 0)
    assert [taken(turns), taken(turns)] == [0, 4]


def test_a_step_begins_when_all_before_it_are_applied_and_a_late_batch_passes_those_that_wait(turns: Turns) -> None:
    put(turns, 8)
    with pytest.raises(queue.Empty):
        turns.get(0.0)
    assert turns.question(0.0) == Question((Piece(0, 0, 8),), True)
    put(turns, 4)
    assert taken(turns) == 4
    with pytest.raises(queue.Empty):
        turns.get(0.0)
    turns.applied(Piece(0, 0, 8))
    assert taken(turns) == 8
    assert turns.question(0.0) is None


def test_the_last_step_of_a_line_ends_with_it(turns: Turns) -> None:
    last = read(20)
    assert turns.step_of(last.lease, last.piece) == Piece(0, 16, END)
    assert turns.step_of(Lease(1, last.piece, ()), last.piece) == Piece(0, 16, 24)


def test_leases_are_wanted_until_enough_is_here_and_then_only_of_what_all_here_wait_for(
    turns: Turns, clock: Clock
) -> None:
    assert turns.wanted(0.0) == 0
    turns.expect(2)
    assert turns.wanted(0.0) is None                   # on their way through the reader
    turns.put(read(8))
    turns.put(read(16))
    assert turns.wanted(0.0) is None                   # a step takes a while
    clock.now += 2 * STALL_S
    assert turns.wanted(0.0) == 8
    assert turns.wanted(0.0) is None                   # asked a moment ago
    clock.now += 2 * STALL_S
    assert turns.wanted(0.0) == 8
    turns.applied(Piece(0, 0, 8))
    clock.now += 2 * STALL_S
    assert turns.wanted(0.0) is None                   # nothing is waited for
    assert taken(turns) == 8
    assert turns.wanted(0.0) == 0


def test_servers_are_asked_about_all_kept_batches_of_the_first_step(turns: Turns) -> None:
    put(turns, 16)
    for lo in (8, 4, 0):
        turns.keep(kept(lo))
    assert turns.question(0.0) == Question((Piece(0, 0, 4), Piece(0, 4, 8)), False)
    assert [one.piece.lo for one in turns.take([Piece(0, 0, 4), Piece(0, 4, 8), Piece(0, 12, 16)])] == [0, 4]
    assert turns.question(0.0) == Question((Piece(0, 8, 12),), False)
    assert not turns.wait_until_applied(0.0)
    assert [one.piece.lo for one in turns.take_all()] == [8]
    assert turns.wait_until_applied(0.0)
    assert turns.question(0.0) == Question((Piece(0, 0, 16),), True)
