"""Messages per second that arrive in topics, from looks at where they end. Pure."""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from recmesh.data.topics import Partition
from recmesh.partitions import series_of
from recmesh.spec.scaling import RATE_STEP_S

STEP_S = RATE_STEP_S
"""Length of a window; windows are counted from the epoch, so all measurers of a topic agree on them."""
LONGEST_GAP_S = 300.0
"""Between two looks; what arrived over a longer one is not spread over its windows."""
Rates = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Listing:
    """The partitions of a topic as its server said that they are, at one moment."""

    server: str
    """As the source names it."""
    pattern: str
    at: float
    partitions: Sequence[Partition]


@dataclass(slots=True)
class _End:
    """One past the newest message, as it was seen last; `begun`: what had arrived by the start of the open window."""

    at: float
    end: float
    tag: Hashable
    window: int
    begun: float | None


@dataclass(slots=True)
class _Teller:
    """Whose rates are told as those of a series, and of how many partitions they are."""

    key: Hashable
    width: int
    at: float


@dataclass
class Arrivals:
    """Looks come at any moments; between two of them messages are taken to arrive evenly, so none is lost or doubled.

    A window is told once it has been seen from its start to its end.
    """

    step_s: float = STEP_S
    _seen: dict[Hashable, _End] = field(default_factory=dict)
    _tellers: dict[str, _Teller] = field(default_factory=dict)

    def look(self, key: Hashable, end: float, *, at: float, tag: Hashable = None) -> Rates:
        """(start, messages per second) of the windows that have ended since the last look at what the key names.

        Another tag: it was made again. A look that is older than the last one, or saw less of the same, was overtaken
        by it and says nothing new. Without tags (None) less is all that tells of one that was made again.
        """
        last = self._seen.get(key)
        window = math.floor(at / self.step_s)
        if last is None or tag != last.tag or abs(at - last.at) > LONGEST_GAP_S or (tag is None and end < last.end):
            on_edge = at == window * self.step_s
            self._seen[key] = _End(at, end, tag, window, end if on_edge else None)
            return []
        if at <= last.at or end < last.end:
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
        self._seen[key] = _End(at, end, tag, window, begun)
        return found

    def look_at_all(self, listings: Iterable[Listing]) -> dict[str, Rates]:
        """Of all partitions of some topics, and of these as wholes, by series.

        A topic is seen anew when its partitions change: what a new one held before is no arrival. Of two servers that
        have a partition of one series, the first is told; of two listings that have a topic, the one that has more of
        its partitions. What is not told is followed all the same, and goes on when the other is not seen any more.
        """
        found: dict[str, Rates] = {}
        for listing in sorted(listings, key=lambda each: (-len(each.partitions), each.server, each.pattern)):
            by_topic: dict[str, list[Partition]] = {}
            for partition in listing.partitions:
                series, topic = series_of(partition.uri)
                by_topic.setdefault(topic, []).append(partition)
                key = listing.server, partition.uri
                rates = self.look(key, partition.span.end, at=listing.at, tag=partition.tag or None)
                if self._tells(series, key, 1, listing.at) and rates:
                    found[series] = rates
            for topic, each in by_topic.items():
                whole = listing.server, listing.pattern, topic
                uris, tags = tuple(part.uri for part in each), tuple(part.tag for part in each)
                end = sum(part.span.end for part in each)
                rates = self.look((whole, uris), end, at=listing.at, tag=tags if all(tags) else None)
                if self._tells(topic, whole, len(each), listing.at) and rates:
                    found[topic] = rates
        return found

    def _tells(self, series: str, key: Hashable, width: int, at: float) -> bool:
        known = self._tellers.get(series)
        if known is not None and known.key != key and known.width >= width and at - known.at <= LONGEST_GAP_S:
            return False
        self._tellers[series] = _Teller(key, width, at)
        return True

    def forget(self, *, before: float) -> None:
        """What was not looked at since then."""
        self._seen = {key: seen for key, seen in self._seen.items() if seen.at >= before}
        self._tellers = {series: teller for series, teller in self._tellers.items() if teller.at >= before}
