"""Pushes of synchronous steps: kept until a step is whole, applied as one, and acknowledged only then.

No thread waits for other workers while it holds the latch, and at most a few wait at all: those that bring the missing
parts must find one.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from recmesh.formats.intervals import Triple
from recmesh.trainer.ps.latch import Latch
from recmesh.trainer.ps.ledger import Batch, Books, Claim
from recmesh.trainer.ps.messages import Part
from recmesh.trainer.ps.model import Model
from recmesh.trainer.ps.refusals import Overlap
from recmesh.trainer.ps.steps import StepBuffer, mean, parts_within

STEPS_LIMIT_BYTES = 1 << 30
MOST_WAITERS = 6
"""At once; others are answered as it is."""
_LOOK_S = 0.05
"""Slots may leave and batches be voided without a word to those who wait."""


class Home(Protocol):
    """A parameter server's state."""

    books: Books
    model: Model
    latch: Latch

    def apply(self, claimed: Sequence[tuple[Claim, Part]]) -> None:
        """Rows, then ledgers. Under the shared latch, with room for the parts, and the claims entered."""


@dataclass(frozen=True, slots=True)
class SettledResult:
    """What has become of some positions."""

    applied: bool
    lost: Sequence[Triple] = ()
    """Neither applied nor kept."""


class Synchronous:
    """The steps of one server. `ledger` guards its books, and is notified of every commit."""

    def __init__(
        self, home: Home, *, ledger: threading.Condition,
        limit_bytes: int = STEPS_LIMIT_BYTES, waiters: int = MOST_WAITERS,
    ) -> None:
        self._home, self._ledger = home, ledger
        self._buffer = StepBuffer(limit_bytes=limit_bytes)
        self._completing = threading.Lock()               # after the latch, before the ledger's
        self._waiters = threading.Semaphore(waiters)

    def push(self, part: Part, step: Triple) -> tuple[bool, bool]:
        """(applied, applied before). Under the shared latch; the part was checked against map and model."""
        books = self._home.books
        with self._ledger:
            books.check_epoch(part.batch, part.epoch)
            lacks = books.lacks(part.batch)
            if lacks:
                self._buffer.keep(part, step=step, since=books.since)
                books.epochs.enter(part.batch, part.epoch)
        if lacks:
            self._complete(step)
        with self._ledger:
            while not lacks and not books.applied(part.batch):      # another thread is in the middle of it
                self._ledger.wait()
            return books.applied(part.batch), not lacks

    def settled(
        self, gen: int, map_version: int, pieces: Batch, *, wait_s: float, others: bool = False
    ) -> SettledResult:
        """Waits, if there is a place to wait, until all pieces are applied or some are lost.

        `others`: pieces that another worker is to bring are not lost.
        """
        placed = wait_s > 0 and self._waiters.acquire(blocking=False)
        deadline = time.monotonic() + (wait_s if placed else 0.0)
        try:
            while True:
                with self._home.latch.shared():
                    result = self._look(gen, map_version, pieces, others=others)
                left = deadline - time.monotonic()
                if result.applied or result.lost or left <= 0:
                    return result
                with self._ledger:
                    self._ledger.wait(min(left, _LOOK_S))
        finally:
            if placed:
                self._waiters.release()

    def clear(self) -> None:
        """Another generation begins. Under the exclusive latch."""
        self._buffer.clear()

    @property
    def size_bytes(self) -> int:
        """Of the parts that wait."""
        with self._ledger:
            return self._buffer.size_bytes(since=self._home.books.since)

    def _look(self, gen: int, map_version: int, pieces: Batch, *, others: bool) -> SettledResult:
        books = self._home.books
        books.check_generation(gen)
        books.check_map(map_version)
        with self._ledger:
            steps = self._buffer.steps(since=books.since)
        for step in steps:                                # a void may have left one whole
            self._complete(step)
        with self._ledger:
            lacking = [piece for piece in pieces if not books.applied((piece,))]
            lost = [piece for piece in lacking
                    if not others and not self._buffer.holds(piece, since=books.since)]
        return SettledResult(not lacking, lost)

    def _complete(self, step: Triple) -> None:
        """Apply the step if nothing of it is missing. Under the shared latch."""
        books, model = self._home.books, self._home.model
        with self._completing:
            with self._ledger:
                plan = self._plan(step)
            if not plan:
                return
            dims = [table.dim for table in model.content.tables]
            totals = [mean(parts, dims=dims) for _, parts in plan]
            with model.reserved(*totals):                           # from here on nothing may fail
                with self._ledger:
                    claims = books.step_claims(step)
                    if claims != [claim for claim, _ in plan]:      # a push without a step came between
                        return
                    books.enter(claims)
                self._home.apply(list(zip(claims, totals, strict=True)))
            with self._ledger:
                waiting = self._buffer.parts(step, since=books.since)
                self._buffer.drop(step, [part.batch for part in waiting])

    def _plan(self, step: Triple) -> list[tuple[Claim, list[Part]]]:
        """What each group would apply; empty while anything is missing."""
        books = self._home.books
        parts = self._buffer.parts(step, since=books.since)
        unfit = [part.batch for part in parts if not _fits(books, part.batch)]
        if unfit:
            self._buffer.drop(step, unfit)
            parts = self._buffer.parts(step, since=books.since)
        plan = []
        for claim in books.step_claims(step):
            chosen = parts_within(parts, claim.batch)
            if chosen is None:
                return []
            plan.append((claim, chosen))
        return plan


def _fits(books: Books, batch: Batch) -> bool:
    """Whether some group lacks the whole batch, and none a part of it: no longer so when positions were voided."""
    try:
        return books.lacks(batch)
    except Overlap:
        return False
