"""Least-recently-used values within a budget of bytes."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """Not for several threads at once. The newest value is kept, however large it is."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: K, make: Callable[[], V], *, size_of: Callable[[V], int]) -> V:
        """The kept value, or a new one."""
        if key in self._values:
            self._values.move_to_end(key)
            self.hits += 1
            return self._values[key][0]
        self.misses += 1
        value = make()
        size_bytes = size_of(value)
        self._values[key] = (value, size_bytes)
        self.size_bytes += size_bytes
        while self.size_bytes > self._budget_bytes and len(self._values) > 1:
            self.size_bytes -= self._values.popitem(last=False)[1][1]
        return value
