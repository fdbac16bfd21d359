"""Offline work that slows online requests on its node is evicted, one worker at a time, and stays away for a while.

A node is bad when its online requests have taken longer than the goal for `after_s` on end with offline work on it.
After an eviction the next waits until its effect could be seen. Offline work may come again when requests have been
faster than `clear` of the goal for `clear_s`: between both bounds nothing changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Tolerance:
    """goal_s 0: nothing is evicted, and what was may come again."""

    goal_s: float = 0.0
    after_s: float = 30.0
    settle_s: float = 60.0
    clear: float = 0.8
    clear_s: float = 300.0


class Act(StrEnum):
    """What to do about a node."""

    NOTHING = "nothing"
    EVICT = "evict"
    """One worker of offline work."""
    ADMIT = "admit"
    """Offline work may come again."""


@dataclass(slots=True)
class Node:
    """What is remembered of one."""

    bad_since: float | None = None
    good_since: float | None = None
    evicted: float | None = None
    """When last; None: offline work may be there."""

    def saw(self, latency_s: float, offline: int, rules: Tolerance, now: float) -> Act:
        """latency_s: of online requests, over the last window; offline: workers on the node."""
        if rules.goal_s <= 0:
            was_evicted, self.evicted = self.evicted is not None, None
            return Act.ADMIT if was_evicted else Act.NOTHING
        is_bad, is_good = latency_s > rules.goal_s, latency_s <= rules.goal_s * rules.clear
        self.bad_since = (now if self.bad_since is None else self.bad_since) if is_bad and offline else None
        self.good_since = (now if self.good_since is None else self.good_since) if is_good else None
        settled = self.evicted is None or now - self.evicted >= rules.settle_s
        if self.bad_since is not None and now - self.bad_since >= rules.after_s and settled:
            self.evicted, self.bad_since = now, None
            return Act.EVICT
        if self.evicted is not None and self.good_since is not None and now - self.good_since >= rules.clear_s:
            self.evicted = None
            return Act.ADMIT
        return Act.NOTHING


@dataclass(frozen=True, slots=True)
class Offline:
    """A worker of offline work on a node."""

    job_id: str
    priority: int
    cpu: float
    can_shrink: bool
    """Its job has more workers than its least."""


def victim(workers: Sequence[Offline]) -> Offline | None:
    """Which one leaves: of the lowest priority, then the largest; None: no job there can do with fewer."""
    ready = [each for each in workers if each.can_shrink]
    return min(ready, key=lambda each: (each.priority, -each.cpu, each.job_id), default=None)
