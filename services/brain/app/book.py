"""Who holds what: of the cluster what was promised and does not run yet, of quotas what their jobs have.

A quota is an owner's or a namespace's; a job is bounded by its namespace's, where there is one, else by its owner's.
All that is called `owner` here is the one whose quota it is (`account`).

jobmaster tells what is free at the moment of asking. What another job was given a moment before may not run by then, so
it is kept back for a while. What an owner's jobs hold together is known only here, by what they tell every few seconds.
"""

import asyncio
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from recmesh.plugins.planning import INTERVAL_S, Resources
from recmesh.runtime.clock import Clock
from services.brain.app.waiting import Waiter, Waiting, kept_back
from services.brain.domain.model import Free, Job, RolePlan
from services.brain.domain.views import UNLIMITED_CPU, total

MAX_JOBS = 20_000
"""Those that were heard of longest ago go."""
NAMESPACE = "namespace:"
"""What the name of a namespace's quota begins with; owners' names have no colon."""
PATIENCE_S = 600.0
"""A job of which nothing was heard for so long holds nothing; one that has never told may take so long to start."""
ENDED_S = 60.0
"""So long after a job's end nothing is booked for it: longer than any call about it may still be under way."""


@dataclass(slots=True)
class _Entry:
    owner: str
    heard: float
    has: dict[str, RolePlan] = field(default_factory=dict)
    """By role, as the job told it last; empty before that."""
    given: dict[str, tuple[float, RolePlan]] = field(default_factory=dict)
    """By role, what it was given and has not told to have: and when."""
    cluster: str = ""
    """Whose room that is."""


class Book:
    """Kept in memory; jobs that train tell it anew. Whoever chooses holds `choosing` from looking to giving."""

    def __init__(
        self, quotas: Mapping[str, Resources] | None = None, *, clock: Clock, interval_s: float = INTERVAL_S
    ) -> None:
        """interval_s: how long a change that was promised is kept back for a job that does not carry it out."""
        self.quotas, self._clock, self._interval_s = dict(quotas or {}), clock, interval_s
        self._entries: dict[str, _Entry] = {}
        self._ended: dict[str, float] = {}
        """By job: when it ended. Names may be used again, and some call may have come before the end."""
        self.waiting = Waiting(clock)
        self.lent = Resources()
        """What training has lent to serving, and a cluster may tell to be free: it is kept back."""
        self._lock = threading.Lock()
        self.choosing = asyncio.Lock()

    def account(self, owner: str, namespace: str) -> str:
        """By which quota a job is bounded: its namespace's where there is one, else its owner's."""
        of_namespace = NAMESPACE + namespace
        return of_namespace if namespace and of_namespace in self.quotas else owner

    def placed(self, job: Job) -> Job:
        """The job, with its account."""
        return replace(job, account=self.account(job.owner, job.namespace))

    def begin(self, job_id: str) -> None:
        """A first plan of it is asked for: whatever had that name before, it lives."""
        with self._lock:
            self._ended.pop(job_id, None)

    def has_ended(self, job_id: str) -> bool:
        """A moment ago."""
        return self._clock.now() - self._ended.get(job_id, -math.inf) <= ENDED_S

    def see(self, job_id: str, owner: str, roles: Iterable[RolePlan], *, whole: bool = True) -> None:
        """It tells what it has now: all of it, or of these roles alone. A promise that is fulfilled is over.

        Of a job that has ended this and `give` book nothing: what is told was asked or measured before.
        """
        with self._lock:
            if self.has_ended(job_id):
                return
            entry = self._entry(job_id, owner)
            if whole:
                entry.has.clear()
            for plan in roles:
                entry.has[plan.role] = plan
            for role, (_, plan) in list(entry.given.items()):
                if entry.has.get(role) == plan:
                    del entry.given[role]

    def give(self, job_id: str, owner: str, roles: Iterable[RolePlan], *, cluster: str = "") -> None:
        """It may have these now, in this cluster where there are several."""
        with self._lock:
            if self.has_ended(job_id):
                return
            entry = self._entry(job_id, owner)
            entry.cluster = cluster
            for plan in roles:
                entry.given[plan.role] = self._clock.now(), plan

    def settle(self, job_id: str) -> None:
        """A change is over, whatever came of it: what the job has it tells."""
        with self._lock:
            if job_id in self._entries:
                self._entries[job_id].given.clear()

    def forget(self, job_id: str) -> None:
        """The job has ended, or was suspended: what it held is free, and nothing is booked for it that was asked or
        measured before. A first plan (`begin`) is of its next life."""
        self.waiting.leave(job_id)
        with self._lock:
            self._entries.pop(job_id, None)
            self._ended.pop(job_id, None)
            self._ended[job_id] = self._clock.now()
            while len(self._ended) > MAX_JOBS:
                self._ended.pop(next(iter(self._ended)))

    def room(self, free: Free, *, but: str = "", kinds: Iterable[str] = ()) -> Resources:
        """What is free less what others than `but` were promised in that cluster. kinds: of accelerators that are used;
        where nothing is known of them, they do not bound."""
        gpus = dict.fromkeys(kinds, math.inf) if free.gpus is None else dict(free.gpus)
        room = Resources(
            math.inf if free.cpu is None else free.cpu,
            math.inf if free.memory_bytes is None else free.memory_bytes, gpus,
        )  # fmt: skip
        known = {kind: many for kind, many in self.lent.gpus.items() if kind in room.gpus}
        room = room.plus(replace(self.lent, gpus=known), -1.0)
        with self._lock:
            for job_id, entry in self._entries.items():
                if job_id != but and entry.cluster == free.cluster:
                    room = room.plus(self._promised(entry), -1.0)
        return room

    def left(self, owner: str, *, but: str = "") -> Resources | None:
        """Of the owner's quota, beyond what its jobs other than `but` hold; None where it has no quota."""
        quota = self.quotas.get(owner)
        if quota is None:
            return None
        with self._lock:
            for job_id, entry in self._entries.items():
                if entry.owner == owner and job_id != but and self._clock.now() - entry.heard <= PATIENCE_S:
                    quota = quota.plus(self._held(entry), -1.0)
        return quota

    def waits_before(self, job: Job) -> list[Waiter]:
        """Those of its owner whose turn comes first; one that can never begin is before nobody."""
        return self._holding(self.waiting.before(job), job.payer)

    def to_grow(self, owner: str) -> Resources | None:
        """What is left to jobs that train: those that wait to begin come first. None: the owner has no quota."""
        left = self.left(owner)
        return kept_back(left, self._holding(self.waiting.of(owner), owner)) if left is not None else None

    def to_begin(self, job: Job) -> Resources | None:
        """What is left to a job that asks for its first plan; None: its owner has no quota."""
        left = self.left(job.payer, but=job.job_id)
        return kept_back(left, self.waits_before(job)) if left is not None else None

    def _holding(self, waiters: Iterable[Waiter], owner: str) -> list[Waiter]:
        quota = self.quotas.get(owner)
        return [each for each in waiters if quota is not None and each.least.within(quota)]

    def quotas_left(self) -> dict[str, Resources]:
        """Of every owner who has one, to jobs that train."""
        return {owner: left for owner in self.quotas if (left := self.to_grow(owner)) is not None}

    def _entry(self, job_id: str, owner: str) -> _Entry:
        entry = self._entries.pop(job_id, None) or _Entry(owner, 0.0)
        entry.owner, entry.heard = owner or entry.owner, self._clock.now()
        self._entries[job_id] = entry
        while len(self._entries) > MAX_JOBS:
            self._entries.pop(next(iter(self._entries)))
        return entry

    def _promised(self, entry: _Entry) -> Resources:
        """What it was given beyond what it has; what it gives back is free when it is given back."""
        now, more = self._clock.now(), Resources()
        for role, (at, plan) in entry.given.items():
            if now - at <= self._interval_s:
                more = more.plus(_positive(counted(plan).plus(counted(entry.has.get(role)), -1.0)))
        return more

    def _held(self, entry: _Entry) -> Resources:
        """What it has and what it was promised beyond that."""
        if not entry.has:       # it has not told yet: it starts
            return _summed(counted(plan) for _, plan in entry.given.values())
        return _summed([self._promised(entry), *map(counted, entry.has.values())])


def _summed(each: Iterable[Resources]) -> Resources:
    return reduce(Resources.plus, each, Resources())


def counted(plan: RolePlan | None) -> Resources:
    """What all processes of a role hold; one without a limit counts as one core."""
    if plan is None:
        return Resources()
    one = total([plan])
    return one if plan.cpu else Resources(plan.replicas * UNLIMITED_CPU, one.memory_bytes, one.gpus)


def _positive(more: Resources) -> Resources:
    return Resources(
        max(0.0, more.cpu), max(0.0, more.memory_bytes), {kind: max(0.0, many) for kind, many in more.gpus.items()}
    )
