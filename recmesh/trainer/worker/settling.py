"""Synchronous mode: asks the servers which steps are applied, for all batches of one worker."""

import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from recmesh.trainer.layout import Placement
from recmesh.trainer.ports import Piece, Settled
from recmesh.trainer.worker.fleet import Fleet, WrongMap
from recmesh.trainer.worker.turns import Kept, Question, Turns

WAIT_S = 1.0
"""For so long a server may let a question wait."""
_PACE_S = 0.01
"""Between questions to servers that have no place to wait."""
_POLL_S = 0.1


class Caller(Protocol):
    """The life whose batches these are."""

    def landed(self, kept: Kept) -> None:
        """It is applied everywhere."""

    def push_again(self, kept: Kept) -> None:
        """Some server has lost its part."""


class Settling:
    """A loop for a thread of its own. StaleGeneration and NoLongerWanted end it."""

    def __init__(
        self, turns: Turns, fleet: Fleet, *, gen: int, newer_map: Callable[[int], Placement], caller: Caller,
        gone: threading.Event,
    ) -> None:
        self._turns, self._fleet, self._gen = turns, fleet, gen
        self._newer_map, self._caller, self._gone = newer_map, caller, gone

    def run(self) -> None:
        """Until `gone`."""
        while not self._gone.is_set():
            question = self._turns.question(_POLL_S)
            if question is not None:
                self._settle(question)

    def _settle(self, question: Question) -> None:
        asked, placement = monotonic(), self._fleet.placement
        try:
            answers = self._fleet.each(
                lambda _, server: server.settled(
                    self._gen, map_version=placement.version, pieces=question.pieces, others=question.others,
                    wait_s=WAIT_S),
                placement=placement,
                what="settled",
                gone=self._gone,
            )
        except WrongMap as refusal:
            self._newer_map(refusal.since)
            for kept in [] if question.others else self._turns.take_all():
                self._caller.push_again(kept)
            return
        if not self._heed(question, list(answers.values())) and monotonic() - asked < _PACE_S:
            self._gone.wait(_PACE_S)

    def _heed(self, question: Question, answers: list[Settled]) -> bool:
        """Whether there was anything new."""
        if all(answer.applied for answer in answers):
            for kept in self._turns.take(question.pieces):
                self._caller.landed(kept)
            if question.others:
                self._turns.applied(question.pieces[0])
            return True
        lost: set[Piece] = set().union(*(answer.lost for answer in answers))
        for kept in self._turns.take(sorted(lost)):
            self._caller.push_again(kept)
        return bool(lost)
