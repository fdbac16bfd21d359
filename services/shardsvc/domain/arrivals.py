"""Messages per second that arrive in topics, from looks at where they end. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from recmesh.partitions import series_of
from recmesh.spec.scaling import RATE_STEP_S

STEP_S = RATE_STEP_S
"""Length of a window; windows are counted from the epoch, so all measurers of a topic agree on them."""
LONGEST_GAP_S = 300.0
"""Between two looks; what arrived over a longer one is not spread over its windows."""
Rates = list[tuple[float, float]]


@dataclass(slots=True)
class _End:
    """One past the newest message, as it was seen last; `begun`: what had arrived by the start of the open window."""

    at: float
    end: float
    window: int
    begun: float | None


@dataclass
class Arrivals:
    """Looks come at any moments; between two of them messages are taken to arrive evenly, so none is lost or doubled.

    A window is told once it has been seen from its start to its end.
    """

    step_s: float = STEP_S
    _seen: dict[str, _End] = field(default_factory=dict)

    def look(self, series: str, end: float, *, at: float) -> Rates:
        """(start, messages per second) of the windows that have ended since the last look at the series."""
        last = self._seen.get(series)
        window = math.floor(at / self.step_s)
        if last is None or end < last.end or not 0 <= at - last.at <= LONGEST_GAP_S:
            on_edge = at == window * self.step_s
            self._seen[series] = _End(at, end, window, end if on_edge else None)
            return []
        if at == last.at:
            return []
        pace = (end - last.end) / (at - last.at)
        found: Rates = []
        begun = last.begun
        for closed in range(last.window, window):
            edge = (closed + 1) * self.step_s
            come = last.end + pace * (edge - last.at)
            if begun is not None:
                found.append((closed * self.step_s, max(0.0, (come - begun) / self.step_s)))
            begun = come
        self._seen[series] = _End(at, end, window, begun)
        return found

    def look_at_all(self, ends: Mapping[str, int], *, at: float) -> dict[str, Rates]:
        """Of all partitions (by uri) of some topics, at one moment, and of their topics.

        A topic is seen anew when its number of partitions changes: what a new partition held before is no arrival.
        """
        by_topic: dict[str, list[int]] = {}
        found: dict[str, Rates] = {}
        for uri, end in ends.items():
            series, topic = series_of(uri)
            by_topic.setdefault(topic, []).append(end)
            found[series] = self.look(series, end, at=at)
        for topic, each in by_topic.items():
            counted = f"{topic} {len(each)}"
            found[topic] = self.look(counted, sum(each), at=at)
        return {series: rates for series, rates in found.items() if rates}

    def forget(self, *, before: float) -> None:
        """Series that were not looked at since then."""
        self._seen = {series: seen for series, seen in self._seen.items() if seen.at >= before}
