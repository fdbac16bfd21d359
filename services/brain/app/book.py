"""Who holds what: of the cluster what was promised and does not run yet, of owners' quotas what their jobs have.

jobmaster tells what is free at the moment of asking. What another job was given a moment before may not run by then, so
it is kept back for a while; what an owner's jobs hold together is known only here.
"""

import asyncio
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from recmesh.plugins.planning import INTERVAL_S, Resources
from recmesh.runtime.clock import Clock
from services.brain.domain.model import Free, Plan, RolePlan
from services.brain.domain.views import UNLIMITED_CPU, total

MAX_JOBS = 20_000
"""Those that were heard of longest ago go."""
PATIENCE = 3
"""Intervals; a job of which nothing was heard for so long holds nothing."""


@dataclass(slots=True)
class _Entry:
    owner: str
    heard: float
    has: dict[str, RolePlan] = field(default_factory=dict)
    given: dict[str, tuple[float, RolePlan]] = field(default_factory=dict)
    """By role: when it was given another plan than it is known to have."""


class Book:
    """Kept in memory; `restore` fills it after a restart. Whoever chooses holds `choosing` from looking to giving."""

    def __init__(
        self, quotas: Mapping[str, Resources] | None = None, *, clock: Clock, interval_s: float = INTERVAL_S
    ) -> None:
        """interval_s: how long something promised is kept back for a job that does not tell that it runs."""
        self._quotas, self._clock, self._interval_s = dict(quotas or {}), clock, interval_s
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self.choosing = asyncio.Lock()

    def see(self, job_id: str, owner: str, roles: Iterable[RolePlan]) -> None:
        """It tells that it has these now; what it was promised for these roles before is over."""
        with self._lock:
            entry = self._entry(job_id, owner)
            for plan in roles:
                entry.has[plan.role] = plan
                entry.given.pop(plan.role, None)

    def see_running(self, job_id: str, counts: Mapping[str, int]) -> None:
        """So many processes of its roles run: what was promised and runs is no more kept back."""
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is None:
                return
            entry.heard = self._clock.now()
            for role, count in counts.items():
                promised = entry.given.get(role)
                if promised is not None and promised[1].replicas <= count:
                    entry.has[role] = entry.given.pop(role)[1]

    def give(self, job_id: str, owner: str, roles: Iterable[RolePlan]) -> None:
        """It may have these now."""
        with self._lock:
            entry = self._entry(job_id, owner)
            for plan in roles:
                entry.given[plan.role] = self._clock.now(), plan

    def settle(self, job_id: str, roles: Iterable[RolePlan]) -> None:
        """A change is over: it has these."""
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is None:
                return
            for plan in roles:
                entry.has[plan.role] = plan
                entry.given.pop(plan.role, None)

    def forget(self, job_id: str) -> None:
        """The job has ended."""
        with self._lock:
            self._entries.pop(job_id, None)

    def restore(self, plans: Iterable[Plan]) -> None:
        """The newest plans of jobs that run; what they tell themselves comes soon enough."""
        for plan in plans:
            self.see(plan.job_id, plan.owner, plan.roles)

    def room(self, free: Free, *, but: str = "", kinds: Iterable[str] = ()) -> Resources:
        """What is free less what others than `but` were promised. kinds: of accelerators that are used; where nothing
        is known of them, they are free."""
        gpus = dict.fromkeys(kinds, math.inf) if free.gpus is None else dict(free.gpus)
        room = Resources(
            math.inf if free.cpu is None else free.cpu,
            math.inf if free.memory_bytes is None else free.memory_bytes, gpus,
        )  # fmt: skip
        with self._lock:
            now = self._clock.now()
            for job_id, entry in self._entries.items():
                if job_id != but:
                    room = room.plus(self._promised(entry, now), -1.0)
        return room

    def left(self, owner: str, *, but: str = "") -> Resources | None:
        """Of the owner's quota, beyond what its jobs other than `but` hold; None where it has no quota."""
        quota = self._quotas.get(owner)
        if quota is None:
            return None
        with self._lock:
            now = self._clock.now()
            for job_id, entry in self._entries.items():
                if entry.owner == owner and job_id != but and now - entry.heard <= PATIENCE * self._interval_s:
                    quota = quota.plus(_held(entry), -1.0)
        return quota

    def quotas_left(self) -> dict[str, Resources]:
        """Of every owner who has one."""
        return {owner: left for owner in self._quotas if (left := self.left(owner)) is not None}

    def _entry(self, job_id: str, owner: str) -> _Entry:
        entry = self._entries.pop(job_id, None) or _Entry(owner, 0.0)
        entry.owner, entry.heard = owner or entry.owner, self._clock.now()
        self._entries[job_id] = entry
        while len(self._entries) > MAX_JOBS:
            self._entries.pop(next(iter(self._entries)))
        return entry

    def _promised(self, entry: _Entry, now: float) -> Resources:
        """What it was given beyond what it has; what it gives back is free when it is given back."""
        more = Resources()
        for role, (at, plan) in entry.given.items():
            if now - at <= self._interval_s:
                had = _counted(entry.has[role]) if role in entry.has else Resources()
                more = more.plus(_positive(_counted(plan).plus(had, -1.0)))
        return more


def _held(entry: _Entry) -> Resources:
    """The larger of what it has and what it was given, of every role."""
    held = Resources()
    for role in {*entry.has, *entry.given}:
        has = _counted(entry.has[role]) if role in entry.has else Resources()
        given = _counted(entry.given[role][1]) if role in entry.given else Resources()
        held = held.plus(has).plus(_positive(given.plus(has, -1.0)))
    return held


def _counted(plan: RolePlan) -> Resources:
    """A process without a limit counts as one core."""
    one = total([plan])
    return one if plan.cpu else Resources(plan.replicas * UNLIMITED_CPU, one.memory_bytes, one.gpus)


def _positive(more: Resources) -> Resources:
    return Resources(
        max(0.0, more.cpu), max(0.0, more.memory_bytes), {kind: max(0.0, many) for kind, many in more.gpus.items()}
    )
