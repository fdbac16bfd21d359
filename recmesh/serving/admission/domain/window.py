"""The incast window: how many bytes may be on their way to this HN at once (Prism, section 5.2).

Once per round, which is a window of messages that were granted after the last change, the window follows the
congestion level: Σ transfer time / Σ expected time − 1. That is the mean over grants of t/(bytes/B) − 1, each weighted
by its expected time; the plain mean would be a matter of the smallest messages alone (44 % are below 1 KiB), which
take a hundred times their own transfer behind a single large one. Above `high` the window is halved, below `low` it
grows by one message (the paper's text has it reversed), but only if half of the messages had to wait for it: a window
that grows while nobody needs it admits the next burst whole.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bytes, and levels of congestion."""

    start_bytes: int
    min_bytes: int
    max_bytes: int
    high: float
    low: float


class Window:
    """`take` what is granted, `give` what has arrived or never will."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self.limit_bytes = bounds.start_bytes
        self.in_flight_bytes = 0
        self.level = 0.0
        """Of the last round."""
        self.round = 0
        """Grants remember it, for `learn`."""
        self._count, self._bytes = 0, 0
        self._took_s = self._expected_s = 0.0
        self._is_limit = False
        """Something waits for it."""
        self._limited = 0
        """Messages of this round that had to wait for it."""

    def fits(self, size_bytes: int) -> bool:
        """Whether it may be granted now. One message alone always may, as else the largest ones never would."""
        if not self.in_flight_bytes or self.in_flight_bytes + size_bytes <= self.limit_bytes:
            return True
        self._is_limit = True
        return False

    def take(self, size_bytes: int) -> None:
        """It is granted."""
        self.in_flight_bytes += size_bytes
        self._limited += self._is_limit
        self._is_limit = False

    def give(self, size_bytes: int) -> None:
        """It has arrived, was cancelled, or its grant has expired."""
        self.in_flight_bytes -= size_bytes

    def learn(self, granted_in: int, size_bytes: int, *, took_s: float, expected_s: float) -> bool:
        """A message that was granted in that round has arrived; True when the window has changed."""
        if granted_in < self.round:
            return False            # it tells of a window that is no more
        self._count += 1
        self._bytes += size_bytes
        self._took_s += took_s
        self._expected_s += expected_s
        if self._bytes < self.limit_bytes or self._expected_s <= 0:
            return False
        before, message = self.limit_bytes, max(1, self._bytes // self._count)
        self.level = self._took_s / self._expected_s - 1
        if self.level > self._bounds.high:
            self.limit_bytes = max(self._bounds.min_bytes, self.limit_bytes // 2)
        elif self.level < self._bounds.low and 2 * self._limited >= self._count:
            self.limit_bytes = min(self._bounds.max_bytes, self.limit_bytes + message)
        self.round += 1
        self._count, self._bytes = 0, 0
        self._took_s = self._expected_s = 0.0
        self._limited = 0
        return self.limit_bytes != before
