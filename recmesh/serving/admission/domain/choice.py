"""Which HN a CN asks: the better of two chosen at random, by recent latency and what is under way.

Two instead of the best of all (Mitzenmacher, 2001): CNs do not talk to each other, and all would run to the one HN
that looked best a moment ago. Latency is a peak-sensitive moving average (as in Finagle): a slow answer counts at
once, and is forgotten by time, so that an HN that nobody asks is tried again.
"""

import math
import random
from collections.abc import Collection, Iterable

_DECAY_S = 2.0
_UNTRIED_S = 1e-3
"""Assumed of an HN that has never answered: it is tried soon, but not by everybody at once."""


class PeakEwma:
    """Seconds of one HN, and how many messages are under way to it."""

    def __init__(self) -> None:
        self.under_way = 0
        self._seconds, self._at = 0.0, 0.0
        self._tried = False

    def see(self, seconds: float, now: float, *, is_whole: bool = True) -> None:
        """An answer took so long; not `is_whole`: so long at least, when it was no more waited for."""
        before = self._decayed(now)
        if not is_whole and seconds <= before:
            return
        weight = math.exp(-(now - self._at) / _DECAY_S) if self._tried else 0.0
        self._seconds = seconds if seconds > before else weight * self._seconds + (1 - weight) * seconds
        self._at, self._tried = now, True

    def cost(self, now: float) -> float:
        """Expected seconds of one more."""
        seconds = self._decayed(now) if self._tried else _UNTRIED_S
        return seconds * (self.under_way + 1)

    def _decayed(self, now: float) -> float:
        return self._seconds * math.exp(-(now - self._at) / _DECAY_S)


class Choice:
    """Of the HNs of one model."""

    def __init__(self) -> None:
        self._nodes: dict[str, PeakEwma] = {}
        self._busy_until: dict[str, float] = {}

    def update(self, names: Iterable[str]) -> None:
        """These HNs there are; others are forgotten."""
        names = set(names)
        self._nodes = {name: self._nodes.get(name) or PeakEwma() for name in sorted(names)}
        self._busy_until = {name: until for name, until in self._busy_until.items() if name in names}

    def pick(self, now: float, rng: random.Random, *, without: Collection[str] = ()) -> str | None:
        """The name; None when all are in `without`. One that said it is busy is asked only if all are."""
        there = [name for name in self._nodes if name not in without]
        free = [name for name in there if self._busy_until.get(name, now) <= now] or there
        if not free:
            return None
        two = rng.sample(free, min(2, len(free)))
        return min(two, key=lambda name: self._nodes[name].cost(now))

    def began(self, name: str) -> None:
        """A message is under way to it."""
        if name in self._nodes:
            self._nodes[name].under_way += 1

    def ended(self, name: str, now: float, *, seconds: float | None, is_whole: bool = True) -> None:
        """See `PeakEwma.see`; None: refused or failed, which says nothing of its speed."""
        node = self._nodes.get(name)
        if node is None:
            return
        node.under_way = max(0, node.under_way - 1)
        if seconds is not None:
            node.see(seconds, now, is_whole=is_whole)

    def busy(self, name: str, until: float) -> None:
        """It refused, and will for so long."""
        if name in self._nodes:
            self._busy_until[name] = until
