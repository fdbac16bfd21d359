"""Which requests are run next, and together: by priority, then earliest deadline, and Triton's dynamic batching.

Algorithm 2 of Prism as MATH §4 corrects it: a request goes behind all of its priority that are due no later, if by the
measured run times it, and those of its priority behind it, are in time then; else it is refused at once. Time is an
argument. Only requests with equal signatures (names, types and shapes but for the first dimension) can be one batch.
"""

import math
from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from recmesh.runtime.errors import DeadlineExceeded, MeshError, ResourceExhausted
from recmesh.serving.hn.runtimes import RunTimes
from recmesh.serving.settings import NO_PRIORITY, ServingSettings

T = TypeVar("T")
MOST_WAITING = 4096
"""Requests of a model that wait at most, where neither the process nor its policies say less."""


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
    rank: float
    """The smallest goes first; infinite once its policy has put it behind all others."""
    number: int

    @property
    def place(self) -> tuple[float, float, int]:
        """Those with a smaller one go first."""
        return self.rank, self.deadline, self.number


class Batcher(Generic[T]):
    """What waits for one model."""

    def __init__(
        self, settings: ServingSettings, *, most_waiting: int = MOST_WAITING, times: RunTimes | None = None
    ) -> None:
        """`times`: of the model's runs; without them nobody is refused for want of time."""
        self._most = most_waiting
        self._times = times or RunTimes()
        self._max_rows = settings.max_batch_size
        self._batching = settings.dynamic_batching
        self._preferred = frozenset(self._batching.preferred_batch_size) or {self._max_rows}
        self._delay_s = self._batching.max_queue_delay_microseconds / 1e6
        self._line: list[Entry[T]] = []
        """In the order in which they are run."""
        self._of_level: Counter[int] = Counter()
        """But for those that were put behind all others."""
        self._count = 0
        self._soonest = math.inf
        """No deadline or timeout is over before; it may be one of a request that has left."""

    def __len__(self) -> int:
        return len(self._line)

    @property
    def first(self) -> Entry[T]:
        """The next one; there must be one."""
        return self._line[0]

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
        free_at: float = 0.0,
    ) -> list[tuple[T, MeshError]]:
        """Wait in line; who makes room for it, and why. `free_at`: when what runs now will be done.

        ResourceExhausted: the line is full (QUEUE_FULL), or it would be late, or make another late, behind and before
        what waits already (DEADLINE_BEHIND_QUEUE). DeadlineExceeded: it would be late in any case (DEADLINE_TOO_SHORT).
        """
        level = self._batching.level(priority)
        policy = self._batching.policy(level)
        wait_us = policy.default_timeout_microseconds
        if policy.allow_timeout_override and timeout_us:
            wait_us = min(wait_us or timeout_us, timeout_us)
        self._count += 1
        entry = Entry(
            item, rows, signature, level, now, deadline, now + wait_us / 1e6 if wait_us else math.inf,
            level if self._batching.priority_levels else priority or NO_PRIORITY, self._count,
        )  # fmt: skip
        limit = min(self._most, policy.max_queue_size or self._most)
        last = self._line[-1] if len(self._line) >= self._most else None
        if self._of_level[level] >= limit and (last is None or limit < self._most):
            raise _full(limit)
        if last is not None and last.rank <= entry.rank:
            raise _full(self._most)
        self._check_time(entry, now, max(now, free_at))
        shed: list[tuple[T, MeshError]] = []
        if last is not None:
            self._leave([last])
            shed.append((last.item, ResourceExhausted(
                f"{self._most} requests wait for this model, and it made room for one of higher priority",
                reason="SHED_FOR_PRIORITY",
            )))  # fmt: skip
        insort(self._line, entry, key=_place)
        self._of_level[level] += 1
        self._soonest = min(self._soonest, deadline, entry.timeout)
        return shed

    def remove(self, chosen: Callable[[T], bool]) -> list[T]:
        """Take out, unrun, what is chosen: its caller has gone."""
        gone = [entry for entry in self._line if chosen(entry.item)]
        self._leave(gone)
        return [entry.item for entry in gone]

    def expire(self, now: float) -> list[tuple[T, MeshError]]:
        """Take out what may wait no more, or cannot be in time any more as runs take longer than when it came; what
        its policy delays goes behind all others instead. Nothing runs now."""
        refused: list[tuple[T, MeshError]] = []
        if now >= self._soonest:
            over = [entry for entry in self._line if entry.deadline <= now or entry.timeout <= now]
            self._leave(over)
            for entry in over:
                if entry.deadline <= now:
                    refused.append((entry.item, _too_late("its deadline was over before the model was free")))
                elif self._batching.policy(entry.level).timeout_action == "REJECT":
                    refused.append((entry.item, DeadlineExceeded(
                        "it has waited for as long as the queue's policy allows", reason="DEADLINE_IN_QUEUE"
                    )))  # fmt: skip
                else:
                    entry.timeout = entry.rank = math.inf
                    insort(self._line, entry, key=_place)
            self._look_again()
        if not self._all_in_time(now, now):
            late = self._late(self._line, now, now)
            self._leave(late)
            refused += [(entry.item, _behind("what goes before it takes longer than it did")) for entry in late]
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
        self._leave(chosen)
        return chosen

    def wait_s(self, now: float) -> float | None:
        """Seconds until `take` or `expire` may give something without anything coming in; None: never."""
        together, _ = self._gathered()
        if not together:
            return None
        return max(0.0, min(self._soonest, self._ripe(together)) - now)

    def _leave(self, gone: Sequence[Entry[T]]) -> None:
        if not gone:
            return
        members = set(map(id, gone))
        if all(id(entry) in members for entry in self._line[: len(gone)]):
            del self._line[: len(gone)]
        else:
            self._line = [entry for entry in self._line if id(entry) not in members]
        for entry in gone:
            self._of_level[entry.level] -= entry.rank < math.inf
        if not self._line:
            self._soonest = math.inf

    def _look_again(self) -> None:
        self._soonest = min((min(entry.deadline, entry.timeout) for entry in self._line), default=math.inf)

    def _check_time(self, entry: Entry[T], now: float, free_at: float) -> None:
        expected_s = self._times.expected_s(entry.rows, now)
        if now + expected_s > entry.deadline:
            raise DeadlineExceeded(
                f"a run of this model takes {expected_s:.3g} s, and {max(0.0, entry.deadline - now):.3g} s are left",
                reason="DEADLINE_TOO_SHORT",
            )
        if self._all_in_time(now, free_at, entry):
            return
        lost = set(map(id, self._late(self._line, now, free_at)))
        with_it = sorted([*self._line, entry], key=_place)
        late = [each for each in self._late(with_it, now, free_at) if id(each) not in lost and each.rank <= entry.rank]
        if entry in late:
            raise _behind(f"{max(0.0, entry.deadline - now):.3g} s are left")
        if late:
            raise _behind(f"{len(late)} of those that wait would be late by it")

    def _all_in_time(self, now: float, free_at: float, entry: Entry[T] | None = None) -> bool:
        """True where they are even if each is run by itself and takes as long as the slowest; it is cheap to tell."""
        longest_s = free_at - now + (len(self._line) + 1) * self._times.most_s
        deadline = math.inf if entry is None else entry.deadline
        return now + longest_s <= min(deadline, self._soonest)

    def _late(self, line: Sequence[Entry[T]], now: float, free_at: float) -> list[Entry[T]]:
        """Who would be done after the deadline, if what is before it in this line, and not late, is run first."""
        late: list[Entry[T]] = []
        begun: dict[Hashable, tuple[float, int]] = {}
        """When the batch begins that the next of this signature can be in, and its rows."""
        end = free_at
        for entry in line:
            begin, rows = begun.get(entry.signature, (end, self._max_rows))
            if rows + entry.rows > self._max_rows:
                begin, rows = end, 0
            rows += entry.rows
            done = begin + self._times.expected_s(rows, now)
            if done > entry.deadline:
                late.append(entry)
                continue
            if entry.signature is not None:
                begun[entry.signature] = begin, rows
            end = max(end, done)
        return late

    def _gathered(self) -> tuple[list[Entry[T]], bool]:
        """The first in line and those that can go with it, and whether no more would."""
        first: Entry[T] | None = None
        together: list[Entry[T]] = []
        rows = 0
        for entry in self._line:
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


def _place(entry: Entry[T]) -> tuple[float, float, int]:
    return entry.place


def _too_late(why: str) -> DeadlineExceeded:
    return DeadlineExceeded(why, reason="DEADLINE_EXCEEDED")


def _behind(why: str) -> ResourceExhausted:
    return ResourceExhausted(
        f"by the time that runs of this model take, not all that wait for it can be in time: {why}",
        reason="DEADLINE_BEHIND_QUEUE",
    )


def _full(limit: int) -> ResourceExhausted:
    return ResourceExhausted(f"{limit} requests wait for this model already; try again later", reason="QUEUE_FULL")
