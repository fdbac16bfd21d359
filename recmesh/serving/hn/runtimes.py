"""How long a model runs: the median of what was measured last, by the size of batches. Time is an argument.

It is meant to be too low rather than too high where little is known: who is refused by it could not have been in time.
"""

from collections import deque
from statistics import median

_SAMPLES = 15
_ENOUGH = 3
"""With fewer, one run that was held up (a first call that compiles) would speak for all."""
KNOWN_S = 60.0
"""What was measured so long ago says nothing any more; else a model that refuses all, as it was slow once, never ran
again, and could not show that it is fast."""


class _Size:
    """Batches of one size, up to a factor of two."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        self.at = 0.0
        self.seconds = 0.0
        self.rows = 0
        """The most of those seen."""

    def see(self, rows: int, seconds: float, now: float) -> None:
        if now - self.at > KNOWN_S:
            self._seen.clear()
        self._seen.append((seconds, rows))
        self.at = now
        self.seconds = median(each for each, _ in self._seen)
        self.rows = max(each for _, each in self._seen)

    def known(self, now: float) -> bool:
        return len(self._seen) >= _ENOUGH and now - self.at <= KNOWN_S


class RunTimes:
    """Of one model, in seconds."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def see(self, rows: int, seconds: float, now: float) -> None:
        """A run of so many samples took so long."""
        self._sizes.setdefault(rows.bit_length(), _Size()).see(rows, seconds, now)

    def expected_s(self, rows: int, now: float) -> float:
        """Of a run of so many samples; 0 while nothing is known.

        Of a size that was not seen: as long as the next smaller one, since more rows take no less; else its share of
        the next larger one, since what a run costs beside its rows only makes small ones longer.
        """
        sizes, own = self._sizes, rows.bit_length()
        found = sizes.get(own)
        if found is None or not found.known(now):
            known = [size for size, each in sizes.items() if each.known(now)]
            if not known:
                return 0.0
            found = sizes[max((size for size in known if size < own), default=min(known))]
        return found.seconds * min(1.0, rows / found.rows) if found.rows else found.seconds

    @property
    def most_s(self) -> float:
        """No expectation is above this."""
        return max((each.seconds for each in self._sizes.values()), default=0.0)
