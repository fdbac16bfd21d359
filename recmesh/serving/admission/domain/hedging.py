"""When a second HN is asked for the same answer: after the 95th percentile, as far as a budget goes.

A hedge costs an HN's work twice (Dean and Barroso, The Tail at Scale, 2013), so every call earns a share of one, and
only what was saved up is spent: when all HNs are slow, hedging does not make it worse.
"""

from collections import deque
from dataclasses import dataclass

_SAMPLES = 256
_LEAST_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class HedgeRules:
    """`share` of calls may be made twice; `saved_most` at once; after the `quantile` of latency, `least_s` at least."""

    share: float = 0.05
    saved_most: float = 10.0
    quantile: float = 0.95
    least_s: float = 0.001


class Hedging:
    """Of the HNs of one model."""

    def __init__(self, rules: HedgeRules) -> None:
        self._rules = rules
        self._saved = 0.0
        self._seconds: deque[float] = deque(maxlen=_SAMPLES)
        self._after_s: float | None = None
        self._new = 0

    def began(self) -> float | None:
        """A call is made; after how many seconds a second one may be tried. None: not, too little is known."""
        self._saved = min(self._rules.saved_most, self._saved + self._rules.share)
        return self._after_s

    def spend(self) -> bool:
        """Whether there is a hedge to spend; it is spent."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True

    def answered(self, seconds: float) -> None:
        """A call was answered, after so long."""
        self._seconds.append(seconds)
        self._new += 1
        if len(self._seconds) >= _LEAST_SAMPLES and (self._after_s is None or self._new >= _LEAST_SAMPLES):
            ordered = sorted(self._seconds)
            place = min(len(ordered) - 1, int(self._rules.quantile * len(ordered)))
            self._after_s, self._new = max(self._rules.least_s, ordered[place]), 0
