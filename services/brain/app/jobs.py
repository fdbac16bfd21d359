"""First plans, profiles, histories, explanations: load, decide, save, tell."""

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields, replace

from recmesh.plugins.planning import Resources
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import InvalidArgument, NotFound, ResourceExhausted, Violation
from recmesh.runtime.telemetry import Metrics
from services.brain.app.book import PATIENCE_S, Book
from services.brain.domain.explain import explain
from services.brain.domain.first_plan import first_plan
from services.brain.domain.model import Change, Free, History, Job, Look, Plan, Profile, RoleLimits
from services.brain.domain.planning.room import amount
from services.brain.domain.views import ANY_GPU, total
from services.brain.domain.warmstart import SUCCEEDED, WarmStart
from services.brain.store import SqlStore

PAST_JOBS = 2000
"""The newest successful jobs that are looked through for similar ones."""
HISTORY_LIMIT = 1000
SHOWN_CHANGES = 20
SHOWN_WAITERS = 3

_metrics = Metrics("brain")
_plans = _metrics.counter("plans", "Plans made, by what they came from", labels=["source"])
_profiles = _metrics.counter("profiles", "Profiles of running jobs that were stored")
_histories = _metrics.counter("histories", "Jobs that ended, by outcome", labels=["outcome"])


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a job has what it has."""

    plan: Plan | None
    profiles: list[Profile]
    look: Look | None
    changes: list[Change]
    """The newest first."""
    decisions: list[Look]
    """Looks that led to a plan, the newest first."""
    text: str
    first: Plan | None = None
    """What it began with: the oldest plan that is kept."""


class Jobs:
    """What is known of jobs. Store calls block, so they run in threads."""

    def __init__(
        self, store: SqlStore, book: Book, *, rule: WarmStart, clock: Clock,
        told: Callable[[Plan], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._store, self._book, self._rule, self._clock, self._told = store, book, rule, clock, told
        self._counts = dict.fromkeys(("plans", "plans_from_similar", "profiles", "histories"), 0)

    async def restore(self) -> None:
        """After a restart: what jobs that train have told a moment before."""
        since = self._clock.now() - PATIENCE_S
        for profile in await asyncio.to_thread(self._store.running, since=since):
            if profile.roles:
                self._book.see(profile.job_id, self._account(profile), [use.has for use in profile.roles])

    async def plan(self, job: Job, limits: Sequence[RoleLimits], free: Free) -> Plan:
        """The job's first plan; it is stored before it is given out.

        Raises:
            ResourceExhausted: even the least that the user allows is more than what is left of the owner's quota.
        """
        check_job(job, limits)
        job = self._book.placed(job)
        self._book.begin(job.job_id)
        waits = self._book.waiting.again(job, limits)
        if waits is not None:       # it asks every few seconds: only with room is it worth looking through the past
            self._check_quota(job, waits.least)
        past = await asyncio.to_thread(self._store.histories, outcome=SUCCEEDED, limit=PAST_JOBS)
        async with self._book.choosing:
            made = self._first(job, limits, free, past)
            plan = replace(made, plan_id=uuid.uuid4().hex, job_id=job.job_id, at=self._clock.now())
            await asyncio.to_thread(self._store.put_plan, plan)
            self._book.give(job.job_id, job.payer, plan.roles, cluster=free.cluster)
        await self._told(plan)
        self._counts["plans"] += 1
        self._counts["plans_from_similar"] += plan.source == "similar"
        _plans.labels(plan.source).inc()
        return plan

    def _account(self, profile: Profile) -> str:
        return self._book.account(profile.owner, profile.namespace)

    def _first(self, job: Job, limits: Sequence[RoleLimits], free: Free, past: Sequence[History]) -> Plan:
        """Within what is free beyond what was promised to others, and what is left of the quota."""
        kinds = {each.gpu_kind or ANY_GPU for each in limits if each.gpu}
        room, left = self._book.room(free, but=job.job_id, kinds=kinds), self._book.to_begin(job)
        plan = first_plan(job, limits, room, past, self._rule, quota=left)
        if left is not None and not total(plan.roles).within(left):
            least = total(first_plan(job, limits, room, past, self._rule, quota=Resources()).roles)
            self._book.waiting.refuse(job, limits, least)
            self._check_quota(job, least)
        self._book.waiting.leave(job.job_id)
        return plan

    def _check_quota(self, job: Job, least: Resources) -> None:
        """ResourceExhausted while there is no room in its owner's quota for the least that it may begin with."""
        left, now = self._book.left(job.payer, but=job.job_id), self._book.to_begin(job)
        if left is None or now is None or least.within(now):
            return
        quota, first = self._book.quotas[job.payer], [each.job.job_id for each in self._book.waits_before(job)]
        ever = "" if least.within(quota) else ": it can never begin"
        more = f" and {len(first) - SHOWN_WAITERS} more" if len(first) > SHOWN_WAITERS else ""
        whose = f"namespace {job.namespace!r}" if job.account not in ("", job.owner) else f"owner {job.owner!r}"
        behind = f"; it waits behind {', '.join(first[:SHOWN_WAITERS])}{more}" if first and not ever else ""
        raise ResourceExhausted(
            f"the least that job {job.job_id!r} may begin with is {amount(least)}, and {amount(left)} are left in "
            f"the quota of {whose}, which is {amount(quota)}{ever}{behind}",
            reason="OVER_QUOTA",
        )

    async def observe(self, profile: Profile) -> None:
        """Remember how a job does. The same profile again replaces itself."""
        violations = [] if profile.job_id else [Violation("job_id", "is empty")]
        violations += [
            Violation(name, f"{value} is not a number from 0 up")
            for name, value in ((each.name, getattr(profile, each.name)) for each in fields(profile))
            if isinstance(value, int | float) and not (math.isfinite(value) and value >= 0)
        ]
        if violations:
            raise InvalidArgument("the profile is refused", violations=violations)
        at = profile.at or self._clock.now()
        await asyncio.to_thread(self._store.put_profile, replace(profile, at=at))
        if profile.roles:
            self._book.see(profile.job_id, self._account(profile), [use.has for use in profile.roles])
        self._counts["profiles"] += 1
        _profiles.inc()

    async def suspend(self, job_id: str) -> None:
        """It holds nothing, and waits for nothing, until it asks for a first plan again."""
        if not job_id:
            raise InvalidArgument("nothing is suspended", violations=[Violation("job_id", "is empty")])
        self._book.forget(job_id)
        # What it had is told by no profile of before any more: brain may be started anew meanwhile.
        await asyncio.to_thread(self._store.put_profile, Profile(job_id, self._clock.now(), workers=0, ps=0))

    async def record(self, history: History) -> None:
        """A job ended. The same job again replaces what was known."""
        violations = [
            Violation(path, "is empty")
            for path, value in (("job.job_id", history.job.job_id), ("outcome", history.outcome)) if not value
        ]  # fmt: skip
        if violations:
            raise InvalidArgument("the job's history is refused", violations=violations)
        ended = history.ended or self._clock.now()
        await asyncio.to_thread(self._store.put_history, replace(history, ended=ended))
        self._book.forget(history.job.job_id)
        self._counts["histories"] += 1
        _histories.labels(history.outcome).inc()

    async def explain(self, job_id: str) -> Explanation:
        """What brain knows of a job, and what it means."""
        plans, first, profiles, look, changes, decisions = await asyncio.gather(
            asyncio.to_thread(self._store.plans, job_id=job_id, limit=1),
            asyncio.to_thread(self._store.first_plan, job_id),
            asyncio.to_thread(self._store.profiles, job_id),
            asyncio.to_thread(self._store.look, job_id),
            asyncio.to_thread(self._store.changes, job_id=job_id, limit=SHOWN_CHANGES),
            asyncio.to_thread(self._store.decisions, job_id=job_id, limit=SHOWN_CHANGES),
        )
        if not plans and not profiles:
            raise NotFound(f"brain knows nothing of job {job_id!r}")
        plan = plans[0] if plans else None
        return Explanation(plan, profiles, look, changes, decisions, explain(plan, profiles, look, changes), first)

    async def looks(self, *, limit: int) -> list[Look]:
        """The newest looks at jobs that train."""
        return await asyncio.to_thread(self._store.looks, limit=limit)

    async def decisions(self, *, limit: int) -> list[Look]:
        """The newest looks that led to a plan."""
        return await asyncio.to_thread(self._store.decisions, limit=limit)

    async def changes(self, *, limit: int) -> list[Change]:
        """What came of the newest changes."""
        return await asyncio.to_thread(self._store.changes, limit=limit)

    async def history(self, *, owner: str = "", limit: int = 0) -> list[History]:
        """Jobs that ended, the newest first."""
        bounded = min(limit or 100, HISTORY_LIMIT)
        return await asyncio.to_thread(self._store.histories, owner=owner, limit=bounded)

    async def plans(self, *, limit: int) -> list[Plan]:
        """The newest plans of all jobs."""
        return await asyncio.to_thread(self._store.plans, limit=limit)

    async def throughput(self, *, since: float) -> list[tuple[str, float, float]]:
        """(job, at, samples/s) of all jobs, oldest first."""
        return await asyncio.to_thread(self._store.throughput, since=since)

    def counts(self) -> dict[str, int]:
        """What was done since the start."""
        return dict(self._counts)

    async def forget(
        self, *, older_than_s: float, profiles_per_job: int, histories_older_than_s: float = math.inf
    ) -> int:
        """Keep the store bounded; returns how many rows went."""
        now = self._clock.now()
        return await asyncio.to_thread(
            self._store.forget, before=now - older_than_s, profiles_per_job=profiles_per_job,
            histories_before=now - histories_older_than_s,
        )


def check_job(job: Job, limits: Sequence[RoleLimits]) -> None:
    """InvalidArgument names each wrong field."""
    violations = [] if job.job_id else [Violation("job.job_id", "is empty")]
    seen: set[str] = set()
    for index, bound in enumerate(limits):
        path = f"limits[{index}]"
        if not bound.role or bound.role in seen:
            violations.append(Violation(f"{path}.role", "is empty, or occurs twice"))
        seen.add(bound.role)
        if bound.min > bound.max:
            violations.append(Violation(f"{path}.min", f"{bound.min} is above max {bound.max}"))
        if bound.cpu < 0 or not math.isfinite(bound.cpu):
            violations.append(Violation(f"{path}.cpu", f"{bound.cpu} is not a number of cores"))
        if bound.gpu < 0 or not math.isfinite(bound.gpu):
            violations.append(Violation(f"{path}.gpu", f"{bound.gpu} is not a number of accelerators"))
    if violations:
        raise InvalidArgument("cannot plan", violations=violations)
