"""Recent values of a process's own figures, for charts and sparklines."""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable

from recmesh.runtime.clock import Clock, system_clock
from recmesh.runtime.lifecycle import Loop
from recmesh.runtime.ops.panels import Points

_MISSED, _LEAST_GAP_S = 10, 10.0
"""Rounds in a row, and seconds, that are a gap and not a busy machine."""


class Recorder(Loop):
    """A component that asks `probe` for named figures every so often and keeps the last of them."""

    def __init__(
        self, name: str, probe: Callable[[], Mapping[str, float] | Awaitable[Mapping[str, float]]], *,
        every_s: float = 1.0, capacity: int = 600, clock: Clock = system_clock,
    ) -> None:
        super().__init__(name, self._sample, clock=clock)
        self._probe = probe
        self._every_s = every_s
        self._times = clock
        self._capacity = capacity
        self._series: dict[str, deque[tuple[float, float]]] = {}

    def points(self, *names: str) -> dict[str, Points]:
        """Series for a Chart: those named, or all. Where a figure was not told for a while there is a gap."""
        return {name: self._with_gaps(name) for name in names or self._series if name in self._series}

    def _with_gaps(self, name: str) -> Points:
        found: list[tuple[float, float | None]] = []
        for at, value in self._series[name]:
            if found and at - found[-1][0] > max(_LEAST_GAP_S, _MISSED * self._every_s):
                found.append((found[-1][0] + self._every_s, None))
            found.append((at, value))
        return found

    def recent(self, name: str, last: int = 60) -> Sequence[float]:
        """The newest values, for a tile's sparkline."""
        return [value for _, value in list(self._series.get(name, ()))[-last:]]

    async def _sample(self) -> float:
        found = self._probe()
        figures = await found if isawaitable(found) else found
        now = self._times.now()
        for name, value in figures.items():
            self._series.setdefault(name, deque(maxlen=self._capacity)).append((now, float(value)))
        return self._every_s
