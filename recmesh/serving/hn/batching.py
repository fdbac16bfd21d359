"""Which requests are run next, and together: a queue of levels and Triton's dynamic batching. Time is an argument.

Only requests with equal signatures (names, types and shapes but for the first dimension) can be one batch.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from recmesh.runtime.errors import DeadlineExceeded, MeshError, ResourceExhausted
from recmesh.serving.settings import ServingSettings

T = TypeVar("T")
MOST_WAITING = 4096
"""Requests of a model that wait at most, where its policies do not say less."""


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """A request that waits. Times are seconds of one clock."""

    item: T
    rows: int
    signature: Hashable
    """None: never together with others."""
    level: int
    arrived: float
    deadline: float
    timeout: float
    """When it may wait no more by its level's policy; infinite without."""


class Batcher(Generic[T]):
    """What waits for one model."""

    def __init__(self, settings: ServingSettings, *, most_waiting: int = MOST_WAITING) -> None:
        self._most = most_waiting
        self._max_rows = settings.max_batch_size
        self._batching = settings.dynamic_batching
        self._preferred = frozenset(self._batching.preferred_batch_size) or {self._max_rows}
        self._delay_s = self._batching.max_queue_delay_microseconds / 1e6
        levels = max(1, self._batching.priority_levels)
        self._lines: dict[int, deque[Entry[T]]] = {level: deque() for level in range(1, levels + 1)}
        self._delayed: deque[Entry[T]] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values())) + len(self._delayed)

    def put(
        self,
        item: T,
        *,
        rows: int,
        signature: Hashable,
        now: float,
        deadline: float,
        priority: int = 0,
        timeout_us: int = 0,
    ) -> None:
        """Wait in line. ResourceExhausted when the line is full."""
        level = self._batching.level(priority)
        policy = self._batching.policy(level)
        limit = min(self._most, policy.max_queue_size or self._most)
        if len(self._lines[level]) >= limit or len(self) >= self._most:
            raise ResourceExhausted(
                f"{limit} requests wait for this model already; try again later", reason="QUEUE_FULL"
            )
        wait_us = policy.default_timeout_microseconds
        if policy.allow_timeout_override and timeout_us:
            wait_us = min(wait_us or timeout_us, timeout_us)
        timeout = now + wait_us / 1e6 if wait_us else float("inf")
        self._lines[level].append(Entry(item, rows, signature, level, now, deadline, timeout))

    def remove(self, chosen: Callable[[T], bool]) -> list[T]:
        """Take out, unrun, what is chosen: its caller has gone."""
        gone: list[T] = []
        for line in (*self._lines.values(), self._delayed):
            kept = [entry for entry in line if not chosen(entry.item)]
            if len(kept) < len(line):
                gone += [entry.item for entry in line if chosen(entry.item)]
                line.clear()
                line.extend(kept)
        return gone

    def expire(self, now: float) -> list[tuple[T, MeshError]]:
        """Take out what may wait no more; what its policy delays goes behind all others instead."""
        refused: list[tuple[T, MeshError]] = []
        for line in (*self._lines.values(), self._delayed):
            if not any(entry.deadline <= now or entry.timeout <= now for entry in line):
                continue
            kept: list[Entry[T]] = []
            for entry in line:
                policy = self._batching.policy(entry.level)
                if entry.deadline <= now:
                    refused.append((entry.item, _too_late("the deadline was over before the model was free")))
                elif entry.timeout > now:
                    kept.append(entry)
                elif policy.timeout_action == "REJECT":
                    refused.append((entry.item, _too_late("it has waited for as long as the queue's policy allows")))
                else:
                    entry.timeout = float("inf")
                    self._delayed.append(entry)
            line.clear()
            line.extend(kept)
        return refused

    def take(self, now: float) -> list[Entry[T]]:
        """The batch to run now, out of the queue; empty when nothing waits, or waiting longer may make it fuller."""
        together, full = self._gathered()
        if not together:
            return []
        chosen = self._preferred_prefix(together)
        if not chosen:
            if not full and now < self._ripe(together):
                return []
            chosen = together
        members = set(map(id, chosen))
        for line in (*self._lines.values(), self._delayed):
            if any(id(entry) in members for entry in line):
                kept = [entry for entry in line if id(entry) not in members]
                line.clear()
                line.extend(kept)
        return chosen

    def wait_s(self, now: float) -> float | None:
        """Seconds until `take` or `expire` may give something without anything coming in; None: never."""
        times = [min(entry.deadline, entry.timeout) for entry in self._all()]
        together, _ = self._gathered()
        if together:
            times.append(self._ripe(together))
        return max(0.0, min(times) - now) if times else None

    def _all(self) -> Iterator[Entry[T]]:
        """In the order in which they are run."""
        for level in sorted(self._lines):
            yield from self._lines[level]
        yield from self._delayed

    def _gathered(self) -> tuple[list[Entry[T]], bool]:
        """The first in line and those that can go with it, and whether no more would."""
        first: Entry[T] | None = None
        together: list[Entry[T]] = []
        rows = 0
        for entry in self._all():
            if first is None:
                first, together, rows = entry, [entry], entry.rows
                if entry.signature is None or rows >= self._max_rows:
                    return together, True
            elif entry.signature == first.signature:
                if rows + entry.rows > self._max_rows:
                    return together, True
                together.append(entry)
                rows += entry.rows
                if rows == self._max_rows:
                    return together, True
        return together, False

    def _preferred_prefix(self, together: list[Entry[T]]) -> list[Entry[T]]:
        """The longest beginning that has a preferred size."""
        rows, length = 0, 0
        for index, entry in enumerate(together):
            rows += entry.rows
            if rows in self._preferred:
                length = index + 1
        return together[:length]

    def _ripe(self, together: list[Entry[T]]) -> float:
        """When the one that has waited longest must be held back no more."""
        return min(entry.arrived for entry in together) + self._delay_s


def _too_late(why: str) -> DeadlineExceeded:
    return DeadlineExceeded(why, reason="DEADLINE_IN_QUEUE")
