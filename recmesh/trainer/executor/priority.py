"""Which source is read next: that of the largest w·sigmoid(q/scale), where q tasks wait (Primus, section 4.2). Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
        self._passed: dict[int, int] = {}
        """By source that had something to read: how often in a row another one was chosen."""

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
        self._passed = {each.source: self._passed.get(each.source, 0) + 1 for each in there if each.source != chosen}
        return chosen

    def _starved(self, there: Sequence[Waiting]) -> int | None:
        """One that would else be read less than once in 1/share tasks; the one passed over most often."""
        least = min(self._least_share, 1 / len(there))
        if len(there) < 2 or least == 0:
            return None
        first = max(there, key=lambda each: self._passed.get(each.source, 0))
        return first.source if self._passed.get(first.source, 0) + 1 >= 1 / least else None
