"""Recent values of a process's own figures, for charts and sparklines."""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable

from recmesh.runtime.clock import Clock, system_clock
from recmesh.runtime.lifecycle import Loop
from recmesh.runtime.ops.panels import Points


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
        """Series for a Chart: those named, or all."""
        return {name: list(self._series[name]) for name in names or self._series if name in self._series}

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
