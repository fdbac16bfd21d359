"""Which source is read next: that of the largest w·sigmoid(q/scale), where q tasks wait (Primus, section 4.2). Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HALF_LIFE = 256.0
"""Tasks after which what was read before counts half in a source's share."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A source's tasks that may be read now."""

    source: int
    weight: float
    queued: int


def score(weight: float, queued: float, *, scale: float) -> float:
    """w·sigmoid(q/scale): half of the weight when nothing waits, all of it when much does."""
    return weight / (1.0 + math.exp(-queued / scale))


class Priority:
    """Chooses sources, and sees to it that each with something to read gets its least share."""

    def __init__(self, *, scale: float = 4.0, least_share: float = 0.1) -> None:
        """least_share: of the tasks that are read, while it has any; of many sources at most an equal part."""
        if scale <= 0 or not 0 <= least_share <= 1:
            raise ValueError("scale must be positive, least_share a share")
        self._scale, self._least_share = scale, least_share
        self._read: dict[int, float] = {}

    def choose(self, waiting: Sequence[Waiting]) -> int | None:
        """The source to read one task of; None when none waits. Of equals the first.

        Sources without a task are passed over: sigmoid(0) is .5, so an empty heavy one would win.
        """
        there = [each for each in waiting if each.queued > 0]
        if not there:
            return None
        chosen = self._starved(there)
        if chosen is None:
            chosen = max(there, key=lambda each: score(each.weight, each.queued, scale=self._scale)).source
        self._note(chosen)
        return chosen

    def shares(self) -> Mapping[int, float]:
        """Of the last tasks read, by source."""
        total = sum(self._read.values())
        return {source: count / total for source, count in self._read.items()} if total else {}

    def _starved(self, there: Sequence[Waiting]) -> int | None:
        """The one furthest below its least share."""
        if len(there) < 2:
            return None
        least, shares = min(self._least_share, 1 / len(there)), self.shares()
        first = min(there, key=lambda each: shares.get(each.source, 0.0))
        return first.source if shares and shares.get(first.source, 0.0) < least else None

    def _note(self, source: int) -> None:
        decay = 0.5 ** (1 / HALF_LIFE)
        self._read = {each: count * decay for each, count in self._read.items()}
        self._read[source] = self._read.get(source, 0.0) + 1.0
