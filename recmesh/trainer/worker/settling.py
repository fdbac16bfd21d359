"""Synchronous mode: asks the servers which steps are applied, for all batches of one worker."""

import threading
from collections.abc import Callable
from time import monotonic

from recmesh.trainer.layout import Placement
from recmesh.trainer.ports import Lease, Piece, Settled
from recmesh.trainer.worker.fleet import Fleet, WrongMap
from recmesh.trainer.worker.turns import Kept, Question, Turns

WAIT_S = 1.0
"""For so long a server may let a question wait."""
_PACE_S = 0.01
"""Between questions to servers that have no place to wait."""
_POLL_S = 0.1


class Settling:
    """A loop for a thread of its own. StaleGeneration and NoLongerWanted end it.

    `applied` is told of each batch that is applied everywhere, `push_again` of one that some server has lost.
    """

    def __init__(
        self, turns: Turns, fleet: Fleet, *, gen: int, newer_map: Callable[[int], Placement],
        applied: Callable[[Lease, Piece], None], push_again: Callable[[Kept], None], gone: threading.Event,
    ) -> None:
        self._turns, self._fleet, self._gen, self._gone = turns, fleet, gen, gone
        self._newer_map, self._applied, self._push_again = newer_map, applied, push_again

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
                self._push_again(kept)
            return
        if not self._heed(question, list(answers.values())) and monotonic() - asked < _PACE_S:
            self._gone.wait(_PACE_S)

    def _heed(self, question: Question, answers: list[Settled]) -> bool:
        """Whether there was anything new."""
        if all(answer.applied for answer in answers):
            for kept in self._turns.take(question.pieces):
                self._applied(kept.ready.read.lease, kept.piece)
            if question.others:
                self._turns.applied(question.pieces[0])
            return True
        lost: set[Piece] = set().union(*(answer.lost for answer in answers))
        for kept in self._turns.take(sorted(lost)):
            self._push_again(kept)
        return bool(lost)
