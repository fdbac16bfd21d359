"""Better plans of jobs that train: each job asks, and is answered with its part of a choice among all live jobs."""

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from recmesh.plugins.planning import (
    INTERVAL_S,
    POD_PRICE,
    PRICES,
    ClusterView,
    Overheads,
    Planner,
    Proposal,
    Reason,
    Resources,
    Throughput,
)
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Violation
from recmesh.runtime.telemetry import Metrics
from services.brain.app.book import Book
from services.brain.app.jobs import PAST_JOBS, check_job
from services.brain.domain.executors.vertical import Limits
from services.brain.domain.model import (
    CANCELLED,
    KEPT,
    TAKEN_BACK,
    Ask,
    Change,
    Fit,
    History,
    Look,
    Plan,
    Profile,
    RolePlan,
)
from services.brain.domain.resizing import Resizing, resized
from services.brain.domain.views import (
    ANY_GPU,
    Sizes,
    front_of,
    is_avoided,
    learned,
    of_similar,
    overheads_of,
    roles_of,
    total,
    view,
    within_bounds,
    without_avoided,
)
from services.brain.domain.warmstart import SUCCEEDED, WarmStart, most_similar
from services.brain.store import SqlStore

WATCHED = 500
"""The newest profiles of a job, in which its use is seen."""
CHANGES = 200
"""The newest of all jobs, from which overheads are learned."""
RESIZER = "vertical"
"""Who proposes sizes by use."""
PRIOR_S = 600.0
"""So long what is known of similar jobs is good."""
POOLED_JOBS, POOLED_PROFILES = 20, 8
"""Jobs of one model that are taken together, and profiles of each of their sizes."""
MAX_LIVE = 20_000
"""Jobs whose last proposal is kept; the oldest go."""

_metrics = Metrics("brain")
_decisions = _metrics.counter("decisions", "Looks at jobs that train, by what was decided", labels=["reason"])
_changes = _metrics.counter("changes", "Changes of jobs that trained, by what came of them", labels=["verdict"])
_decide_s = _metrics.histogram("decide_seconds", "To learn a job's speed, and to plan")


@dataclass(frozen=True, slots=True)
class Policy:
    """What planning is bounded by."""

    interval_s: float = INTERVAL_S
    horizon_s: float = 3600.0
    rho: float = 2.5
    epsilon: float = 0.05
    sizes: Sizes = field(default_factory=Sizes)
    prices: Resources = PRICES
    pod_price: float = POD_PRICE
    resize_window_s: float = 600.0
    """So long the use of a job's processes is watched before their sizes follow it."""
    overheads: Overheads = field(default_factory=lambda: Overheads(workers_s=5.0, ps_s=5.0, resize_s=1.0))
    """Until some were measured."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What similar jobs have shown of their speed."""

    throughput: Throughput | None = None
    name: str = ""
    at: float = -math.inf
    """When it was looked for."""


class Deciding:
    """One planner for all jobs."""

    def __init__(
        self, store: SqlStore, planner: Planner, policy: Policy, book: Book, *, rule: WarmStart, seed: int,
        clock: Clock, told: Callable[[Plan], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._store, self._planner, self._policy, self._book = store, planner, policy, book
        self._rule, self._seed, self._clock, self._told = rule, seed, clock, told
        self._priors: dict[str, Prior] = {}
        self._live: dict[str, tuple[float, Proposal]] = {}
        """By job: when it last asked, and what was proposed for it then."""
        self._asks: dict[str, Ask] = {}
        """The last of each."""

    async def decide(self, ask: Ask) -> tuple[Look, Plan | None]:
        """What the job should change to; None: nothing. What is chosen is stored before it is given out."""
        _check(ask)
        ask = replace(ask, job=self._book.placed(ask.job))
        began, now = self._clock.monotonic(), self._clock.now()
        shown, profiles, changes, own = await asyncio.gather(
            asyncio.to_thread(self._store.shown, ask.job.job_id),
            asyncio.to_thread(self._store.profiles, ask.job.job_id, limit=WATCHED),
            asyncio.to_thread(self._store.changes, limit=CHANGES),
            asyncio.to_thread(self._store.changes, job_id=ask.job.job_id, limit=CHANGES),
        )
        changes = list({change.plan_id: change for change in (*changes, *own)}.values())
        # What it asks with is measured over a steady window, and may be all that is known of what it has now.
        asked = _measured(ask.job.job_id, ask.now.values(), ask.samples_per_s, now, ask.job.batch_size, profiles)
        if asked is not None:
            await asyncio.to_thread(self._store.put_profile, asked)
            shown, profiles = [*shown, asked], [*profiles, asked]
        prior = await self._prior(ask, shown, now)
        known = await asyncio.to_thread(
            learned, shown, now=now, prior=prior.throughput, prior_name=prior.name
        )
        # Carried through also when the caller has given up: no two choices at a time.
        choice = asyncio.create_task(self._chosen(ask, known, profiles, changes, now))
        look, plan = await asyncio.shield(choice)
        if plan is not None:
            await asyncio.to_thread(self._store.put_plan, plan)
        await asyncio.to_thread(self._store.put_look, look)
        if plan is not None:
            await self._told(plan)
        _decisions.labels(look.reason).inc()
        _decide_s.observe(self._clock.monotonic() - began)
        return look, plan

    async def conclude(self, change: Change) -> None:
        """What came of a plan: experience for the next ones. A measured speed is kept as a profile, too."""
        _check_change(change)
        at = change.at or self._clock.now()
        await asyncio.to_thread(self._store.put_change, replace(change, at=at))
        profiles = await asyncio.to_thread(self._store.profiles, change.job_id, limit=1)
        batch = profiles[-1].batch_size if profiles else 0
        seen = _measured(change.job_id, change.after, change.rate_after, at, batch, profiles)
        if seen is not None:
            await asyncio.to_thread(self._store.put_profile, seen)
        _changes.labels(change.verdict).inc()
        self._book.settle(change.job_id)

    async def _prior(self, ask: Ask, shown: Sequence[Profile], now: float) -> Prior:
        """What similar jobs have shown; looked for again every now and then, as some of them go on."""
        known = self._priors.get(ask.job.job_id, Prior())
        if now - known.at >= PRIOR_S:
            known = self._priors[ask.job.job_id] = await asyncio.to_thread(self._look_for_prior, ask, shown, now)
            while len(self._priors) > MAX_LIVE:
                self._priors.pop(next(iter(self._priors)))
        return known

    def _look_for_prior(self, ask: Ask, shown: Sequence[Profile], now: float) -> Prior:
        """Of jobs of its model, ended and live, together; else of the most similar one that ended."""
        past = self._store.histories(outcome=SUCCEEDED, limit=PAST_JOBS)
        live = [
            History(each.job, SUCCEEDED, ended=now, final_plan=tuple(each.now.values()))
            for each in list(self._asks.values())
        ]
        alike = [each for each in (*past, *live) if each.job.model and each.job.model == ask.job.model]
        similar = most_similar(ask.job, alike, replace(self._rule, k=POOLED_JOBS))
        if shown and similar:
            names = [each.job_id for each, _ in reversed(similar)]
            found = of_similar([self._store.shown(name, each=POOLED_PROFILES) for name in names], shown[-1], now=now)
            if found is not None:
                more = f", and {len(names) - 3} more" if len(names) > 3 else ""
                return Prior(found, f"{', '.join(names[:3])}{more}, of the same model", now)
        for each, history in reversed(most_similar(ask.job, past, self._rule)):
            model, _ = learned(self._store.shown(history.job.job_id), now=now)
            if model is not None:
                return Prior(model, f"{each.job_id} ({each.similarity:.2f}: {each.why})", now)
        return Prior(at=now)

    async def _chosen(
        self, ask: Ask, known: tuple[Throughput | None, Fit], profiles: Sequence[Profile], changes: Sequence[Change],
        now: float,
    ) -> tuple[Look, Plan | None]:  # fmt: skip
        job_id = ask.job.job_id
        async with self._book.choosing:
            chosen = await asyncio.to_thread(self._choose, ask, known, profiles, changes, now)
        # It may have ended since it asked. The book knows that before `forget` is called, so one of both comes after
        # whatever was noted above.
        if self._book.has_ended(job_id):
            self.forget(job_id)
            raise FailedPrecondition(f"job {job_id!r} has ended", reason="JOB_ENDED")
        return chosen

    def _choose(
        self, ask: Ask, known: tuple[Throughput | None, Fit], profiles: Sequence[Profile], changes: Sequence[Change],
        now: float,
    ) -> tuple[Look, Plan | None]:  # fmt: skip
        throughput, fit = known
        # 1. Its candidates; those of other live jobs are as they were when these last asked.
        before = self._live.get(ask.job.job_id)
        seen = view(
            ask.job, ask.limits, ask.now, throughput=throughput, rate=ask.samples_per_s, remaining=ask.remaining,
            overheads=overheads_of(changes, default=self._policy.overheads), sizes=self._policy.sizes,
            fit=fit, ps_bytes=profiles[-1].ps_memory_bytes if profiles else 0,
            front=tuple(each.allocation for each in before[1].candidates) if before else (),
        )  # fmt: skip
        self._asks[ask.job.job_id] = ask
        self._book.see(ask.job.job_id, ask.job.payer, ask.now.values())
        cluster = self._cluster(ask, now)
        rng = np.random.default_rng([self._seed, _number(ask.job.job_id), int(now)])
        proposed = within_bounds(self._planner.propose(seen, cluster, rng))
        made = without_avoided(proposed, changes, now=now)
        self._remember(made, now)
        # 2. A choice among all of its cluster, of which this job's part is the answer.
        everybody = [
            proposal for job_id, (_, proposal) in list(self._live.items())
            if self._asks.get(job_id, ask).free.cluster == ask.free.cluster     # this one may have ended meanwhile
        ]
        decided = next(
            each for each in self._planner.select(everybody, cluster, rng) if each.job_id == ask.job.job_id
        )
        chosen = decided.chosen.allocation if decided.chosen is not None else None
        roles = roles_of(chosen, ask.now, ask.limits) if chosen is not None else ()
        expected = decided.chosen.rate if decided.chosen is not None else 0.0
        planner, reason, why = self._planner.name, decided.reason.name, decided.why
        # 3. What the planner leaves as it is may still be larger than it is used, or at its edge.
        sizing = None if roles else self._resized(ask, profiles, changes, cluster, grows=throughput is None)
        if sizing is not None:
            roles, expected, planner, why = sizing.roles, ask.samples_per_s, RESIZER, sizing.why
            reason = (Reason.GROW if sizing.grows else Reason.SHRINK).name
        plan = None
        if roles:
            plan = Plan(roles, planner, why, plan_id=uuid.uuid4().hex, job_id=ask.job.job_id, at=now,
                        samples_per_s=expected)  # fmt: skip
            # What it was given is its own until it asks again; what else it could have had is free for others.
            self._book.give(ask.job.job_id, ask.job.payer, roles, cluster=ask.free.cluster)
            self._live[ask.job.job_id] = now, Proposal(seen, (), Reason.KEEP, "it was given a plan")
        look = Look(
            job_id=ask.job.job_id, at=now, planner=planner, reason=reason, why=why,
            samples_per_s=ask.samples_per_s, now=tuple(ask.now.values()), chosen=roles,
            expected_samples_per_s=expected, fit=fit, front=front_of(made, chosen),
            plan_id=plan.plan_id if plan else "",
        )  # fmt: skip
        return look, plan

    def _resized(
        self, ask: Ask, profiles: Sequence[Profile], changes: Sequence[Change], cluster: ClusterView, *, grows: bool
    ) -> Resizing | None:
        """grows: cores of workers and servers may become more."""
        policy = self._policy
        sizing = resized(
            ask.job, ask.now, ask.limits, profiles, cores=Limits(policy.sizes.least, policy.sizes.most),
            window_s=policy.resize_window_s, at=cluster.now, grows=grows,
        )  # fmt: skip
        if sizing is None or is_avoided(ask.job.job_id, sizing.roles, changes, now=cluster.now):
            return None
        more = total(sizing.roles).plus(total(tuple(ask.now.values())), times=-1)
        quota = cluster.quotas.get(ask.job.payer)
        return sizing if more.within(cluster.free) and (quota is None or more.within(quota)) else None

    def _remember(self, proposal: Proposal, now: float) -> None:
        self._live.pop(proposal.job.job_id, None)
        self._live[proposal.job.job_id] = now, proposal
        oldest = now - 3 * self._policy.interval_s
        gone = [job_id for job_id, (at, _) in list(self._live.items()) if at < oldest]
        for job_id in [*gone, *list(self._live)[: max(0, len(self._live) - MAX_LIVE)]]:
            self._live.pop(job_id, None)
            self._asks.pop(job_id, None)

    def forget(self, job_id: str) -> None:
        """The job has ended."""
        for known in (self._live, self._asks, self._priors):
            known.pop(job_id, None)

    def _cluster(self, ask: Ask, now: float) -> ClusterView:
        policy = self._policy
        kinds = {plan.gpu_kind or ANY_GPU for plan in ask.now.values() if plan.gpu}
        kinds |= {each.job.now.gpu_kind for _, each in list(self._live.values()) if each.job.now.worker_gpus}
        return ClusterView(
            now=now, free=self._book.room(ask.free, but=ask.job.job_id, kinds=kinds), prices=policy.prices,
            pod_price=policy.pod_price, interval_s=policy.interval_s, horizon_s=policy.horizon_s,
            epsilon=policy.epsilon, rho=policy.rho, quotas=self._book.quotas_left(),
        )  # fmt: skip


def _measured(
    job_id: str, roles: Iterable[RolePlan], rate: float, at: float, batch_size: int, profiles: Sequence[Profile]
) -> Profile | None:
    """The speed of a configuration as a steady profile; the rest is as it was told last."""
    by_role = {plan.role: plan for plan in roles}
    worker, ps = by_role.get("worker"), by_role.get("ps")
    if worker is None or ps is None or rate <= 0:
        return None
    like = profiles[-1] if profiles else Profile(job_id, at, 0, 0)
    return replace(
        like, at=at, workers=worker.replicas, ps=ps.replicas, worker_cpu_limit=worker.cpu, ps_cpu_limit=ps.cpu,
        batch_size=batch_size or like.batch_size, samples_per_s=rate, is_steady=True,
        hardware=(worker.gpu_kind or ANY_GPU) if worker.gpu else "cpu",
        data_s=0.0, pull_s=0.0, compute_s=0.0, push_s=0.0, ps_busy_share=0.0,
    )  # fmt: skip


def _number(job_id: str) -> int:
    return int.from_bytes(job_id.encode()[-8:].rjust(8, b"\0"), "little")


def _check(ask: Ask) -> None:
    check_job(ask.job, ask.limits)
    violations = [Violation(f"now.{role}", "is missing") for role in ("worker", "ps") if role not in ask.now]
    for role, plan in ask.now.items():
        if not plan.replicas:
            violations.append(Violation(f"now.{role}.replicas", "is 0; brain plans jobs that train"))
        if plan.cpu < 0 or not math.isfinite(plan.cpu):
            violations.append(Violation(f"now.{role}.cpu", f"{plan.cpu} is not a number of cores"))
    if ask.samples_per_s < 0 or not math.isfinite(ask.samples_per_s):
        violations.append(Violation("samples_per_s", f"{ask.samples_per_s} is not a number from 0 up"))
    if violations:
        raise InvalidArgument("cannot decide", violations=violations)


def _check_change(change: Change) -> None:
    violations = [
        Violation(path, "is empty")
        for path, value in (("plan_id", change.plan_id), ("job_id", change.job_id)) if not value
    ]  # fmt: skip
    if change.verdict not in (KEPT, TAKEN_BACK, CANCELLED):
        violations.append(Violation("verdict", f"{change.verdict!r} is not {KEPT}, {TAKEN_BACK} or {CANCELLED}"))
    for name in ("at", "rate_before", "rate_expected", "rate_after", "overhead_s"):
        value = getattr(change, name)
        if not math.isfinite(value) or value < 0:
            violations.append(Violation(name, f"{value} is not a number from 0 up"))
    for name, roles in (("before", change.before), ("after", change.after)):
        for index, plan in enumerate(roles):
            if plan.replicas < 0 or plan.cpu < 0 or not math.isfinite(plan.cpu):
                violations.append(Violation(f"{name}[{index}]", f"{plan.replicas} × {plan.cpu} cores is no plan"))
    if violations:
        raise InvalidArgument("the change is refused", violations=violations)
