"""A strike that missed comes again, but not after the one that waits for the end of the job."""

from collections import deque

from recmesh.chaos.harness import try_again
from recmesh.chaos.schedule import Strike

MISSED, OTHER, LAST = Strike("worker-0"), Strike("ps-0"), Strike("ps-1", how="last")


def test_what_missed_comes_before_the_end() -> None:
    waiting = deque([(OTHER, True), (LAST, True)])
    try_again(waiting, MISSED)
    assert list(waiting) == [(OTHER, True), (MISSED, False), (LAST, True)]


def test_without_an_end_ahead_it_comes_last() -> None:
    waiting = deque([(OTHER, True)])
    try_again(waiting, MISSED)
    assert list(waiting) == [(OTHER, True), (MISSED, False)]
    waiting.clear()
    try_again(waiting, LAST)
    assert list(waiting) == [(LAST, False)]
