"""Online jobs: how many workers one should have now, from a planner's schedule over the forecast of what comes in."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from recmesh.plugins.planning import Floats, Shapes, Throughput
from recmesh.plugins.streams import Schedule, StreamView, WorkerRates
from services.brain.domain.model import Free, Job, RoleLimits, RolePlan

OCCUPIED_ENOUGH = 0.5
"""With workers that have less to do than this, batches are small and waits many: what they could do is not seen."""
FRESH_S = 10.0
"""What came so lately is in workers' hands, or about to be, and does not wait: messages linger, are leased, computed
and pushed for some seconds however fast a job is."""
LATE_STEPS = 2
"""Rates that ended longer ago are not the past of now."""
PAST_S = 7200.0
"""Of demand, for planners that look at it."""
_NORMAL = {0.5: 0.0, 0.6: 0.2533, 0.7: 0.5244, 0.8: 0.8416, 0.9: 1.2816, 0.95: 1.6449, 0.99: 2.3263}


@dataclass(frozen=True, slots=True)
class Rules:
    """What a job's user asks of its scaling."""

    planner: str
    step_s: float
    steps: int
    quantile: float = 0.8
    lag_slo_s: float = 1200.0
    drain_s: float = 1200.0
    hold_s: float = 300.0
    fallback: bool = True
    workers_per_ps: float = 0.0
    series: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """What was measured over the time just past."""

    arrivals_per_s: float
    trained_per_s: float = 0.0
    occupied: float = 0.0
    """Share of their time in which workers had something to train."""
    lag_s: float = 0.0
    backlog: int = 0
    since_s: float = 0.0
    """For so long the present count has been held."""
    pause_s: float = 0.0
    """For so long a change of the count stops training."""
    lead_s: float = 0.0
    """From a decision until its workers train."""

    @property
    def capacity(self) -> float:
        """Samples per second that the workers could have trained; 0: not known."""
        return self.trained_per_s / self.occupied if self.occupied > 0 else 0.0


@dataclass(frozen=True, slots=True)
class OnlineAsk:
    """An online job, as its jobmaster tells it."""

    job: Job
    limits: Sequence[RoleLimits]
    now: dict[str, RolePlan]
    rules: Rules
    measured: Demand
    free: Free = field(default_factory=Free)


@dataclass(frozen=True, slots=True)
class Coming:
    """Samples per second that are expected in each step from now on, (steps,) each."""

    demand: Floats
    """To be planned for: a quantile."""
    expected: Floats
    spread: Floats | None = None
    note: str = ""
    """Where it comes from."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How many workers (and servers) there should be now."""

    workers: int
    ps: int
    why: str


@dataclass(frozen=True, slots=True)
class Speed:
    """A job's samples per second by its number of workers; a `WorkerRates`."""

    now: RolePlan
    """Workers."""
    ps: RolePlan
    workers_per_ps: float
    learned: Throughput | None
    each: float
    """Of one worker, where nothing was learned."""
    note: str

    def __call__(self, workers: Floats) -> Floats:
        """Shape (n,) in, shape (n,) out."""
        if self.learned is None:
            return workers * self.each
        servers = np.full(len(workers), float(self.ps.replicas))
        if self.workers_per_ps > 0:
            servers = np.ceil(workers / self.workers_per_ps)
        cores = [np.full(len(workers), plan.cpu or 1.0) for plan in (self.now, self.ps)]
        return self.learned.predict(Shapes(workers, servers, *cores)).rate


def speed(ask: OnlineAsk, learned: Throughput | None, *, shown: float = 0.0) -> Speed | None:
    """By what was learned; else in proportion to what one worker can do. None: that is not known either.

    shown: what one did when workers had enough to do for that to be seen; 0: they never had.
    """
    worker, ps = ask.now["worker"], ask.now["ps"]
    each = shown or ask.measured.capacity / worker.replicas
    if learned is None and each <= 0:
        return None
    note = "" if learned is not None else (
        f"its speed was measured too little: {each:,.0f} samples/s of each worker, however many there are"
    )
    return Speed(worker, ps, ask.rules.workers_per_ps, learned, each, note)


def steady(arrivals_per_s: float, steps: int, *, why: str) -> Coming:
    """As it comes now, where there is no forecast."""
    flat = np.full(steps, arrivals_per_s)
    return Coming(flat, flat, note=f"no forecast ({why}): {arrivals_per_s:,.0f}/s as they come now")


def spread_of(expected: Floats, demand: Floats, quantile: float) -> Floats | None:
    """Standard deviation of a normal distribution with that mean and that quantile, (steps,)."""
    deviations = float(np.interp(quantile, list(_NORMAL), list(_NORMAL.values())))
    return np.maximum(0.0, demand - expected) / deviations if deviations > 0 else None


def view(ask: OnlineAsk, coming: Coming, rates: WorkerRates, *, now: float, most: int, past: Floats | None,
         past_workers: Floats | None) -> StreamView:  # fmt: skip
    """What a planner sees of it. most: workers that limits and room allow."""
    bound = next((each for each in ask.limits if each.role == "worker"), RoleLimits("worker"))
    least = max(1, min(bound.min, most)) if bound.pinned is None else most
    rules, measured = ask.rules, ask.measured
    waits = max(0.0, measured.backlog - FRESH_S * measured.arrivals_per_s)
    return StreamView(
        job_id=ask.job.job_id, now=now, step_s=rules.step_s, demand=coming.demand, rates=rates,
        workers=ask.now["worker"].replicas, least=least, most=max(least, most), since_s=measured.since_s,
        backlog=waits, drain_s=rules.drain_s, lag_slo_s=rules.lag_slo_s,
        restart_s=measured.pause_s, lead_s=measured.lead_s, past=past, past_workers=past_workers,
        expected=coming.expected, spread=coming.spread, workers_per_ps=rules.workers_per_ps,
    )


def choose(stream: StreamView, schedule: Schedule, rules: Rules, *, ps: int) -> Choice:
    """What of the schedule is to be begun now.

    Workers that a later step needs are asked for as long before it as they take to come. They go only when nothing in
    the schedule needs them for `hold_s`, and the count was held for as long: what goes has to come back. Servers go
    with workers, and come to their ratio too where workers stay, as a first plan knows of none: more at once, fewer
    after `hold_s`.
    """
    ahead = math.ceil(stream.lead_s / stream.step_s)
    soon = schedule.workers[: ahead + 1]
    most = max(soon)
    later = schedule.workers[: max(ahead, math.ceil(rules.hold_s / stream.step_s)) + 1]
    if most > stream.workers:
        at = soon.index(most)
        count, why = most, schedule.reasons[at]
        if at:
            why = f"{why}, in {at * stream.step_s:,.0f} s"
    elif max(later) < stream.workers and stream.since_s >= rules.hold_s:
        count, why = max(later), schedule.reasons[schedule.workers.index(max(later))]
    elif max(later) < stream.workers:
        count, why = stream.workers, f"{stream.workers} are held: changed {stream.since_s:,.0f} s ago"
    else:
        count, why = stream.workers, schedule.reasons[0]
    if rules.workers_per_ps <= 0:
        return Choice(count, ps, why)
    servers = math.ceil(count / rules.workers_per_ps)
    if count == stream.workers and servers != ps:
        if servers < ps and stream.since_s < rules.hold_s:
            return Choice(count, ps, why)
        why = f"{servers} servers are right for {count} workers, {rules.workers_per_ps:g} to each; {why}"
    return Choice(count, servers, why)


def chosen_roles(choice: Choice, ask: OnlineAsk) -> tuple[RolePlan, ...]:
    """What the choice changes of what the job has, within its limits; empty: nothing."""
    bounds = {each.role: each for each in ask.limits}
    wanted = {"worker": choice.workers, "ps": choice.ps}
    changed = []
    for role, count in wanted.items():
        bound, has = bounds.get(role), ask.now[role]
        if bound is None or bound.pinned is not None:
            continue
        count = min(max(count, bound.min, 1), bound.max)
        if count != has.replicas:
            changed.append(replace(has, replicas=count))
    return tuple(changed)


def recent(series: Sequence[Sequence[tuple[float, float]]], *, step_s: float, now: float) -> Floats | None:
    """Sums of several rates over the newest steps, oldest first, back to the first step that one of them lacks.

    series: (begin of a step, rate) each, on one grid of steps. None: the newest that all have ended long ago.
    """
    by_step = [
        {round(at / step_s): rate for at, rate in points if at + step_s <= now}     # whole steps alone
        for points in series
    ]
    common = set.intersection(*map(set, by_step)) if by_step else set()
    if not common or now - (max(common) + 1) * step_s > LATE_STEPS * step_s + FRESH_S:
        return None
    newest = oldest = max(common)
    while oldest - 1 in common:
        oldest -= 1
    return np.array([sum(rates[step] for rates in by_step) for step in range(oldest, newest + 1)])
