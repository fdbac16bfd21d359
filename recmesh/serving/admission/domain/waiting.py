"""Asks that wait: those with a deadline by it, the others by turns of their models.

`due` is the latest arrival: absolute deadline − expected compute − return. Earliest due first keeps everybody in time
whenever any order does (Jackson, 1955), for messages of all sizes. The order by latest *start* (due − bytes/B; MATH
§4) does not: 10 units due at 12 and 1 unit due at 4 would go in this order, and the second be late at 11.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

from recmesh.serving.admission.messages import Ask

Key = tuple[str, int]
"""(peer, request)"""


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """An ask in the queue."""

    key: Key
    ask: Ask
    since: float
    due: float
    """Latest arrival of its last byte; without a deadline, when it has waited as long as it may."""

    @property
    def dated(self) -> bool:
        """It has a deadline."""
        return self.ask.left_s is not None

    @property
    def size_bytes(self) -> int:
        """Of its message."""
        return self.ask.size_bytes


class ByDeadline:
    """Earliest due first, in order of arrival among equals."""

    def __init__(self) -> None:
        self._dues: list[float] = []
        self._sizes: list[int] = []
        self._items: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._items)

    @property
    def head(self) -> Waiting | None:
        """Who is next."""
        return self._items[0] if self._items else None

    def without(self, gone: Container[Waiting]) -> "ByDeadline":
        """A copy."""
        copy = ByDeadline()
        copy._items = [each for each in self._items if each not in gone]
        copy._dues = [each.due for each in copy._items]
        copy._sizes = [each.size_bytes for each in copy._items]
        return copy

    def place(self, due: float) -> int:
        """Where one that is due then would stand: after all that are due no later."""
        return bisect_right(self._dues, due)

    def bytes_before(self, place: int) -> int:
        """Of those that go first."""
        return sum(self._sizes[:place])

    def add(self, item: Waiting) -> int:
        """Let it wait; its place."""
        place = self.place(item.due)
        self._dues.insert(place, item.due)
        self._sizes.insert(place, item.size_bytes)
        self._items.insert(place, item)
        return place

    def remove(self, item: Waiting) -> None:
        """It waits no more."""
        place = bisect_left(self._dues, item.due)
        while self._items[place] is not item:
            place += 1
        del self._dues[place], self._sizes[place], self._items[place]

    def first(self, count: int) -> list[Waiting]:
        """The next so many."""
        return self._items[:count]

    def late(self, free_at: float, bytes_per_s: float, *, start: int = 0) -> int | None:
        """The place of the first from `start` on that arrives after it is due, if the link is free from `free_at` and
        serves them in this order."""
        size_bytes = self.bytes_before(start)
        for place in range(start, len(self._sizes)):
            size_bytes += self._sizes[place]
            if free_at + size_bytes / bytes_per_s > self._dues[place]:
                return place
        return None


class ByShare:
    """Start-time fair queueing over models (Goyal et al., 1996): who has had the fewest bytes for its weight is next,
    in order of arrival within a model. A model that comes back has no claim from a time in which it sent nothing."""

    def __init__(self, weight: Callable[[str], float]) -> None:
        self._weight = weight
        self._models: dict[str, deque[Waiting]] = {}
        self._served: dict[str, float] = {}
        """Virtual time, bytes per weight, at which each model may go on."""
        self._now = 0.0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Waiting]:
        for items in self._models.values():
            yield from items

    @property
    def head(self) -> Waiting | None:
        """Who is next."""
        if not self._models:
            return None
        model = min(self._models, key=self._served.__getitem__)
        return self._models[model][0]

    def add(self, item: Waiting) -> None:
        """Last of its model."""
        model = item.ask.model
        if model not in self._models:
            self._models[model] = deque()
            self._served[model] = max(self._now, self._served.get(model, 0.0))
        self._models[model].append(item)
        self._count += 1

    def serve(self, item: Waiting) -> None:
        """The head is sent."""
        model = item.ask.model
        self._now = self._served[model]
        for idle in [each for each, at in self._served.items() if at <= self._now and each not in self._models]:
            del self._served[idle]
        self._served[model] += item.size_bytes / self._weight(model)
        self.remove(item)

    def remove(self, item: Waiting) -> None:
        """It waits no more."""
        model = item.ask.model
        items = self._models[model]
        items.remove(item)
        self._count -= 1
        if not items:
            del self._models[model]
            if self._served[model] <= self._now:
                del self._served[model]
