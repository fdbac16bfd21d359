"""How fast a job goes, from the numbers of done positions seen over time."""

from collections import deque


class Pace:
    """Positions per second over the last window; the newest points only."""

    def __init__(self, *, window_s: float = 60.0, points: int = 120) -> None:
        self._window_s = window_s
        self._points: deque[tuple[float, int]] = deque(maxlen=points)

    def observe(self, done: int, *, now: float) -> None:
        """A rollback takes positions back: the past is then no measure of pace."""
        if self._points and done < self._points[-1][1]:
            self._points.clear()
        self._points.append((now, done))
        while now - self._points[0][0] > self._window_s:
            self._points.popleft()

    @property
    def per_s(self) -> float:
        """0 until two points are there."""
        if len(self._points) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._points[0], self._points[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    def eta_s(self, remaining: int) -> float | None:
        """None while nothing moves."""
        return remaining / self.per_s if self.per_s > 0 else None
