"""What waits for the one thread of a CN: first what has begun, then new requests, whose models take turns.

A request that is begun by priority, then deadline alone waits for all that came before it, of whatever model: one model
that is asked for more than its lookups can do would stop all others. So of equal priority that model is next which has
had least of the thread (start-time fair queueing: Goyal, Vin and Cheng, 1996); one that was not asked for a while has
no claim to what it did not use. Within a model it is as in an HN (`hn.batching`): by deadline, bounded, and who cannot
be in time is refused at once.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from recmesh.runtime.errors import MeshError
from recmesh.serving.hn.batching import MOST_WAITING, Batcher
from recmesh.serving.hn.runtimes import RunTimes
from recmesh.serving.settings import NO_PRIORITY, ServingSettings

T = TypeVar("T")


class Turn(Generic[T]):
    """A model's requests that wait to be begun, and what it has had of the thread."""

    def __init__(self, most_waiting: int = MOST_WAITING) -> None:
        self.times = RunTimes()
        self.waiting: Batcher[T] = Batcher(ServingSettings(), most_waiting=most_waiting, times=self.times)
        self.had_s = 0.0
        """On a line of its own, which goes on with the model that is next."""


@dataclass(frozen=True, slots=True)
class Piece(Generic[T]):
    """What the thread is to do."""

    item: T
    work: Callable[[], None] | None
    """None: begin it."""


class Line(Generic[T]):
    """Filled by any thread, emptied by one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun: list[tuple[int, float, int, T, Callable[[], None]]] = []
        self._turns: list[Turn[T]] = []
        """Those in which something waits."""
        self._order = itertools.count()
        self._at_s = 0.0

    def __len__(self) -> int:
        with self._changed:
            return len(self._begun) + sum(len(turn.waiting) for turn in self._turns)

    def go_on(self, item: T, work: Callable[[], None], *, priority: int, deadline: float) -> None:
        """Do this for what has begun."""
        with self._changed:
            heapq.heappush(self._begun, (priority or NO_PRIORITY, deadline, next(self._order), item, work))
            self._changed.notify()

    def put(self, turn: Turn[T], item: T, *, rows: int, priority: int, deadline: float) -> list[tuple[T, MeshError]]:
        """Begin this in its model's turn; who makes room for it, and why. Raises as `Batcher.put`."""
        with self._changed:
            is_new = not len(turn.waiting)
            shed = turn.waiting.put(
                item, rows=rows, signature=None, now=time.monotonic(), deadline=deadline, priority=priority
            )
            if is_new:
                turn.had_s = max(turn.had_s, self._start_of(turn))
                self._turns.append(turn)
            self._changed.notify()
        return shed

    def remove(self, turn: Turn[T], item: T) -> None:
        """It need not be begun any more."""
        with self._changed:
            turn.waiting.remove(lambda each: each is item)
            self._leave(turn)

    def next(self) -> tuple[Piece[T] | None, list[tuple[T, MeshError]]]:
        """Waits for something to do; and who cannot be in time any more. Nothing to do: there were only such."""
        with self._changed:
            while not self._begun and not self._turns:
                self._changed.wait()
            if self._begun:
                *_, item, work = heapq.heappop(self._begun)
                return Piece(item, work), []
            turn = min(self._turns, key=_place)
            self._at_s = max(self._at_s, turn.had_s)
            now = time.monotonic()
            late = turn.waiting.expire(now)
            entries = turn.waiting.take(now)
            self._leave(turn)
        return Piece(entries[0].item, None) if entries else None, late

    def did(self, turn: Turn[T], seconds: float, *, begun_rows: int = 0) -> None:
        """So long the thread worked for the model; with `begun_rows` to begin a request of so many samples."""
        with self._changed:
            turn.had_s += seconds
            if begun_rows:
                turn.times.see(begun_rows, seconds, time.monotonic())

    def _start_of(self, turn: Turn[T]) -> float:
        """Where the line is for who comes anew: not behind equals that wait while others, of higher priority, go on."""
        rank = turn.waiting.first.rank
        equals = [each.had_s for each in self._turns if each.waiting.first.rank == rank]
        return min([self._at_s, *equals])

    def _leave(self, turn: Turn[T]) -> None:
        if not len(turn.waiting) and turn in self._turns:
            self._turns.remove(turn)


def _place(turn: Turn[T]) -> tuple[float, float, float]:
    first = turn.waiting.first
    return first.rank, turn.had_s, first.deadline
