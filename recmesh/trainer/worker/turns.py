"""Synchronous mode: batches begin in the order of their positions, and a step after all before it are applied.

Two rules keep a step from waiting for ever for one of its batches. A batch that comes late is taken before all that
wait behind it; and a worker whose batches all have to wait asks for leases before them, as the missing batch may be
one that a dead worker gave back.
"""

import heapq
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from time import monotonic

from recmesh.trainer.ports import Lease, Piece
from recmesh.trainer.stepping import Gradients
from recmesh.trainer.worker.flow import Read, Ready

STALL_S = 0.3
"""For so long a step may keep this worker waiting before it asks for leases of it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A batch whose parts wait at the servers; its gradients stay here until its step is applied."""

    ready: Ready
    grads: Gradients

    @property
    def piece(self) -> Piece:
        """Its positions."""
        return self.ready.read.piece


@dataclass(frozen=True, slots=True)
class Question:
    """What the servers are to be asked about."""

    pieces: tuple[Piece, ...]
    others: bool
    """No batch of this worker: a step before the one that it wants to begin."""


class Turns:
    """A queue of batches that were read, and the set of those that were pushed and are not applied. Thread-safe."""

    def __init__(self, *, width: int, ahead: int, clock: Callable[[], float] = monotonic) -> None:
        self._width, self._ahead, self._clock = width, ahead, clock
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, int, Read]] = []
        self._numbers = count()
        self._coming = 0
        self._kept: dict[Piece, Kept] = {}
        self._front: dict[int, int] = {}
        """By line: all steps that begin below it or at it may begin here."""
        self._stalled_at = 0.0

    def step_of(self, lease: Lease, piece: Piece) -> Piece:
        """The positions that are applied at once with the piece; the last step of a line ends with it."""
        lo = piece.lo // self._width * self._width
        return Piece(piece.line, lo, min(lo + self._width, lease.line_end or lo + self._width))

    # ---- batches before their turn

    def expect(self, batches: int) -> None:
        """So many are leased and will be `put`; negative: will not, after all."""
        with self._changed:
            self._coming += batches
            self._changed.notify_all()

    def wanted(self, timeout_s: float) -> int | None:
        """Whether a lease is wanted: 0: any; a position: one below it, as all here wait for it; None: not now."""
        with self._changed:
            self._changed.wait_for(lambda: self._coming + len(self._waiting) < self._ahead, timeout_s)
            if self._coming + len(self._waiting) < self._ahead:
                return 0
            stalled = self._stalled()
            if stalled is None or self._clock() - self._stalled_at < STALL_S:
                return None
            self._stalled_at = self._clock()
            return stalled.hi

    def put(self, read: Read, timeout: float | None = None) -> None:
        """Never full: `wanted` bounds how many come."""
        with self._changed:
            self._coming -= 1
            if not self._waiting:
                self._stalled_at = self._clock()
            heapq.heappush(self._waiting, (read.piece.lo, next(self._numbers), read))
            self._changed.notify_all()

    def get(self, timeout: float) -> Read:
        """The first of all, once its step may begin; queue.Empty when none may in this time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting and self._stalled() is None, timeout):
                raise queue.Empty
            self._stalled_at = self._clock()
            read = heapq.heappop(self._waiting)[2]
            self._changed.notify_all()
            return read

    def _stalled(self) -> Piece | None:
        """What must be applied before the first batch here may begin."""
        if not self._waiting:
            return None
        piece = self._waiting[0][2].piece
        lo = piece.lo // self._width * self._width
        return Piece(piece.line, 0, lo) if lo > self._front.get(piece.line, 0) else None

    # ---- batches after their push

    def keep(self, kept: Kept) -> None:
        """Every server has its part, and some wait for the rest of its step."""
        with self._changed:
            self._kept[kept.piece] = kept
            self._changed.notify_all()

    def question(self, timeout_s: float) -> Question | None:
        """Of the first step of which a batch is kept, else of those that the first batch here waits for."""
        with self._changed:
            self._changed.wait_for(lambda: self._kept or self._stalled() is not None, timeout_s)
            if self._kept:
                first = min(self._kept)
                return Question(tuple(sorted(piece for piece in self._kept if self._same_step(piece, first))), False)
            stalled = self._stalled()
            return Question((stalled,), True) if stalled else None

    def applied(self, to: Piece) -> None:
        """Everything up to the end of this piece is applied everywhere."""
        with self._changed:
            self._front[to.line] = max(self._front.get(to.line, 0), to.hi)
            self._changed.notify_all()

    def take(self, pieces: Sequence[Piece]) -> list[Kept]:
        """These are kept no more: they are applied, or must be pushed again."""
        with self._changed:
            taken = [self._kept.pop(piece) for piece in pieces if piece in self._kept]
            self._changed.notify_all()
            return taken

    def take_all(self) -> list[Kept]:
        """None is kept any more: the servers' slots have changed."""
        return self.take(list(self._kept))

    def wait_until_applied(self, timeout_s: float) -> bool:
        """Whether nothing is kept."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._kept, timeout_s)

    def _same_step(self, one: Piece, other: Piece) -> bool:
        return one.line == other.line and one.lo // self._width == other.lo // self._width
