"""What waits to be trained, first in, first out, as a fluid: rates are constant within each span that is passed."""

from collections import deque


class Fifo:
    """Exact for piecewise constant rates: the age of the oldest waiting sample is read off the curve of arrivals."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.arrived = 0.0
        """Samples that have come so far."""
        self.backlog = 0.0
        """Samples that wait."""
        self._marks: deque[tuple[float, float]] = deque([(0.0, 0.0)])
        """(time, samples arrived by then); the first is at or before the arrival of the oldest that waits."""

    @property
    def served(self) -> float:
        """Samples trained so far."""
        return self.arrived - self.backlog

    def run(self, seconds: float, *, arriving: float, served: float) -> None:
        """A span in which `arriving` samples per second come and up to `served` per second are trained."""
        self.now_s += seconds
        self.arrived += arriving * seconds
        self.backlog = max(0.0, self.backlog + (arriving - served) * seconds)
        self._marks.append((self.now_s, self.arrived))
        while len(self._marks) > 1 and self._marks[1][1] <= self.served:
            self._marks.popleft()

    @property
    def lag_s(self) -> float:
        """Age of the oldest sample that waits; 0 where none does."""
        if self.backlog <= 0 or len(self._marks) < 2:
            return 0.0
        (from_s, before), (to_s, after) = self._marks[0], self._marks[1]
        came_s = from_s + (to_s - from_s) * max(0.0, self.served - before) / (after - before)
        return self.now_s - came_s
