"""Workers of online jobs: each asks every step, and is answered by a planner over the forecast of what comes in."""

import asyncio
import math
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np

from recmesh.plugins.planning import Floats, Reason, Resources, Throughput
from recmesh.plugins.registry import BrokenPlugin, UnknownPlugin, load, names
from recmesh.plugins.streams import GROUP, Schedule, StreamPlanner, StreamView
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, MeshError, Violation
from recmesh.runtime.telemetry import Metrics, get_logger
from services.brain.app.book import Book, counted
from services.brain.app.jobs import check_job
from services.brain.domain import online
from services.brain.domain.model import Fit, Look, Plan, Profile, ScheduleStep
from services.brain.domain.online import Coming, OnlineAsk
from services.brain.domain.streams import STREAM_PLANNERS
from services.brain.domain.streams.fallback import Band, Measured, decided
from services.brain.domain.views import ANY_GPU, learned
from services.brain.peers import Forecaster
from services.brain.store import SqlStore

MAX_LIVE = 20_000
"""Jobs whose past counts are remembered; those that asked longest ago go."""
MOST_STEPS = 240
"""Of a schedule: planners weigh every step against every count."""
UNSEEN = "its workers have not had enough to do yet for their speed to be seen"
MAX_TOLD = 1000
"""Past counts of one job."""

_log = get_logger(__name__)
_metrics = Metrics("brain")
_schedules = _metrics.counter(
    "schedules", "Looks at online jobs, by planner and what was decided", labels=["planner", "reason"]
)
_unforecast = _metrics.counter("unforecast_schedules", "Schedules that were made without a forecast")


class Scheduling:
    """What a job had in the past is kept in memory: after a restart, planners that look at it see less for a while."""

    def __init__(
        self, store: SqlStore, forecaster: Forecaster, book: Book, *, clock: Clock, seed: int,
        told: Callable[[Plan], Awaitable[None]], band: Band | None = None,
    ) -> None:  # fmt: skip
        self._store, self._forecaster, self._book = store, forecaster, book
        self._clock, self._seed, self._told, self._band = clock, seed, told, band or Band()
        self._workers: dict[str, deque[tuple[float, float]]] = {}
        """By job: (when, how many) it had."""

    async def schedule(self, ask: OnlineAsk) -> tuple[Look, Plan | None]:
        """What the job should change to now; None: nothing. What is chosen is stored before it is given out.

        Of a dry run the look alone is stored, and nothing is booked or told. InvalidArgument for a planner that there
        is not, FailedPrecondition for one that breaks.
        """
        planner = _planner(ask.rules.planner)
        _check(ask)
        ask = replace(ask, job=self._book.placed(ask.job))
        job_id, now = ask.job.job_id, self._clock.now()
        self._refuse_ended(job_id)
        had = self._had(ask, now)
        await self._remember(ask, now)
        coming, past, (model, fit, shown) = await asyncio.gather(
            self._coming(ask, now), self._past(ask, now), asyncio.to_thread(self._learned, ask, now)
        )
        rates = online.speed(ask, model, shown=shown)
        async with self._book.choosing:
            self._book.see(job_id, ask.job.payer, ask.now.values(), whole=False)
            look, plan = _unknown(ask, now, fit), None
            if rates is not None:
                stream = online.view(
                    ask, coming, rates, now=now, most=self._most(ask), past=past,
                    past_workers=_past_workers(ask, had, now, past),
                )
                look, plan = await asyncio.to_thread(self._choose, planner, stream, ask, coming, rates.note, fit)
            if plan is not None and not ask.rules.dry_run:
                self._book.give(job_id, ask.job.payer, plan.roles, cluster=ask.free.cluster)
        self._refuse_ended(job_id)
        if plan is not None and not ask.rules.dry_run:
            await asyncio.to_thread(self._store.put_plan, plan)
        await asyncio.to_thread(self._store.put_look, look)
        if plan is not None and not ask.rules.dry_run:
            await self._told(plan)
        _schedules.labels(ask.rules.planner, look.reason).inc()
        return look, plan

    def _refuse_ended(self, job_id: str) -> None:
        """A job may end while it is asked about. The book knows that before `forget` is called."""
        if self._book.has_ended(job_id):
            self.forget(job_id)
            raise FailedPrecondition(f"job {job_id!r} has ended", reason="JOB_ENDED")

    def forget(self, job_id: str) -> None:
        """The job has ended."""
        self._workers.pop(job_id, None)

    # -- what is known -----------------------------------------------------------------------------------

    def _had(self, ask: OnlineAsk, now: float) -> Sequence[tuple[float, float]]:
        """How many workers it had, and when, this moment included."""
        had = self._workers.pop(ask.job.job_id, None) or deque(maxlen=MAX_TOLD)
        self._workers[ask.job.job_id] = had
        while len(self._workers) > MAX_LIVE:
            self._workers.pop(next(iter(self._workers)))
        had.append((now, float(ask.now["worker"].replicas)))
        return tuple(had)

    async def _remember(self, ask: OnlineAsk, now: float) -> None:
        """What its workers could have trained, where that was to be seen: that is what its model is learned from."""
        measured, worker, ps = ask.measured, ask.now["worker"], ask.now["ps"]
        if measured.capacity <= 0 or measured.occupied < online.OCCUPIED_ENOUGH:
            return
        told = await asyncio.to_thread(self._store.profiles, ask.job.job_id, limit=1)
        like = told[-1] if told else Profile(
            ask.job.job_id, now, 0, 0, owner=ask.job.owner, namespace=ask.job.namespace
        )
        shown = replace(
            like, at=now, workers=worker.replicas, ps=ps.replicas, batch_size=ask.job.batch_size,
            samples_per_s=measured.trained_per_s, capacity_per_s=measured.capacity, worker_cpu_limit=worker.cpu,
            ps_cpu_limit=ps.cpu, hardware=(worker.gpu_kind or ANY_GPU) if worker.gpu else "cpu", is_steady=False,
        )  # fmt: skip
        await asyncio.to_thread(self._store.put_profile, shown)

    def _learned(self, ask: OnlineAsk, now: float) -> tuple[Throughput | None, Fit, float]:
        """A model of its speed, where it has shown enough, what people see of that, and what one worker did last."""
        shown = [
            replace(each, samples_per_s=each.capacity_per_s, is_steady=True)
            for each in self._store.shown(ask.job.job_id) if each.capacity_per_s > 0
        ]
        model, fit = learned(shown, now=now) if shown else (None, Fit(unknown=UNSEEN))
        return model, fit, shown[-1].samples_per_s / max(1, shown[-1].workers) if shown else 0.0

    async def _coming(self, ask: OnlineAsk, now: float) -> Coming:
        rules = ask.rules
        if not rules.series:
            return online.steady(ask.measured.arrivals_per_s, rules.steps, why="no series is named")
        try:
            found = await asyncio.gather(*(
                self._forecaster.forecast(
                    name, steps=rules.steps, step_s=rules.step_s, now=now, level=max(0.5, 2 * rules.quantile - 1)
                )
                for name in rules.series
            ))
        except MeshError as error:
            _unforecast.inc()
            return online.steady(ask.measured.arrivals_per_s, rules.steps, why=error.message)
        expected = np.sum([mean for mean, _, _ in found], axis=0)
        # Of several topics the deviations are taken as independent: they add up as squares do.
        above = np.sqrt(np.sum([np.maximum(0.0, high - mean) ** 2 for mean, high, _ in found], axis=0))
        demand = expected + above
        models = ", ".join(sorted({model for _, _, model in found}))
        return Coming(
            demand, expected, online.spread_of(expected, demand, rules.quantile),
            f"{models} expects {expected[0]:,.0f}/s now and {expected.max():,.0f}/s at most",
        )

    async def _past(self, ask: OnlineAsk, now: float) -> Floats | None:
        """Of demand; None where it is not known."""
        rules = ask.rules
        since = now - online.PAST_S - rules.step_s
        try:
            found = await asyncio.gather(*(
                self._forecaster.history(name, since=since, step_s=rules.step_s) for name in rules.series
            ))
        except MeshError:
            return None
        return online.recent(found, step_s=rules.step_s, now=now)

    def _most(self, ask: OnlineAsk) -> int:
        """Workers within the limits, what is free, and what is left of the owner's quota to jobs that train; what is
        there stays. Each takes its share of a parameter server with it."""
        worker, ps = ask.now["worker"], ask.now["ps"]
        bound = next((each for each in ask.limits if each.role == "worker"), None)
        if bound is None or bound.pinned is not None:
            return worker.replicas if bound is None else bound.pinned or worker.replicas
        one = counted(replace(worker, replicas=1))
        if ask.rules.workers_per_ps > 0:
            one = one.plus(counted(replace(ps, replicas=1)), 1.0 / ask.rules.workers_per_ps)
        kinds = [worker.gpu_kind or ANY_GPU] if worker.gpu else []
        rooms = [self._book.room(ask.free, but=ask.job.job_id, kinds=kinds), self._book.to_grow(ask.job.payer)]
        more = min([_times(one, room) for room in rooms if room is not None], default=math.inf)
        return math.floor(min(bound.max, worker.replicas + max(0.0, more)))

    # -- choosing ----------------------------------------------------------------------------------------

    def _choose(
        self, planner: StreamPlanner, stream: StreamView, ask: OnlineAsk, coming: Coming, note: str, fit: Fit
    ) -> tuple[Look, Plan | None]:
        rng = np.random.default_rng([self._seed, int(stream.now)])
        measured = Measured(ask.measured.arrivals_per_s, ask.measured.lag_s)
        try:
            if ask.rules.fallback:
                schedule = decided(planner, stream, measured, self._band, rng)
            else:
                schedule = planner.schedule(stream, rng)
            choice = online.choose(stream, schedule, ask.rules, ps=ask.now["ps"].replicas)
        except Exception as error:      # somebody else's planner; the job keeps its workers, and notes why
            _log.exception("the planner %s broke over job %s", ask.rules.planner, ask.job.job_id)
            raise FailedPrecondition(
                f"the planner {ask.rules.planner!r} broke: {type(error).__name__}: {error}", reason="BROKEN_PLANNER"
            ) from error
        roles = online.chosen_roles(choice, ask)
        grows = choice.workers > stream.workers
        more = grows or (choice.workers == stream.workers and choice.ps > ask.now["ps"].replicas)
        reason = Reason.KEEP if not roles else Reason.GROW if more else Reason.SHRINK
        if schedule.unmet[0] and not grows:
            reason = Reason.NO_ROOM if _room(stream, schedule, ask) else Reason.PINNED
        if ask.rules.dry_run:
            coming = replace(coming, note=f"{coming.note}; a dry run: nothing is changed")
        why = "; ".join(each for each in (choice.why, _room(stream, schedule, ask), coming.note, note) if each)
        rates = stream.rates(np.array([float(choice.workers)]))
        plan = None
        if roles:
            plan = Plan(
                roles, planner.name, why, plan_id=uuid.uuid4().hex, job_id=ask.job.job_id, at=stream.now,
                samples_per_s=float(rates[0]),
            )  # fmt: skip
        look = _look(ask, stream.now, reason, why, fit)
        return replace(
            look, chosen=roles, plan_id=plan.plan_id if plan and not ask.rules.dry_run else "",
            expected_samples_per_s=float(rates[0]),
            schedule=steps_of(stream, schedule, coming), step_s=stream.step_s,
        ), plan


def _room(stream: StreamView, schedule: Schedule, ask: OnlineAsk) -> str:
    """Why there are not more workers than there may be, where more are needed."""
    bound = next((each for each in ask.limits if each.role == "worker"), None)
    if bound is None or not schedule.unmet[0] or stream.most >= (bound.pinned or bound.max):
        return ""
    most = bound.pinned or bound.max
    return f"there is room for {stream.most} of {most} (what is free, or left of the owner's quota)"


def steps_of(stream: StreamView, schedule: Schedule, coming: Coming) -> tuple[ScheduleStep, ...]:
    """The schedule for people."""
    capacity = stream.rates(np.array(schedule.workers, dtype=np.float64))
    return tuple(
        ScheduleStep(
            stream.now + step * stream.step_s, float(coming.demand[step]), float(coming.expected[step]), count,
            float(capacity[step]), schedule.reasons[step], schedule.unmet[step],
        )
        for step, count in enumerate(schedule.workers)
    )


def _unknown(ask: OnlineAsk, now: float, fit: Fit) -> Look:
    return _look(ask, now, Reason.UNCERTAIN, "what its workers can train is not known yet", fit)


def _past_workers(
    ask: OnlineAsk, had: Sequence[tuple[float, float]], now: float, past: Floats | None
) -> Floats | None:
    """Of the steps of `past`; before the first that is known as it was then."""
    if past is None:
        return None
    moments, counts = (np.array(each) for each in zip(*had, strict=True))
    begins = now - (len(past) - np.arange(len(past))) * ask.rules.step_s
    held: Floats = counts[np.clip(np.searchsorted(moments, begins, side="right") - 1, 0, len(counts) - 1)]
    return held


def _times(one: Resources, room: Resources) -> float:
    """How often it fits; what needs nothing fits any number of times."""
    parts = [(one.cpu, room.cpu), (one.memory_bytes, room.memory_bytes)]
    parts += [(many, room.gpus.get(kind, 0.0)) for kind, many in one.gpus.items()]
    return min([has / needs for needs, has in parts if needs > 0], default=math.inf)


def _look(ask: OnlineAsk, now: float, reason: Reason, why: str, fit: Fit) -> Look:
    return Look(
        job_id=ask.job.job_id, at=now, planner=ask.rules.planner, reason=reason.name, why=why,
        samples_per_s=ask.measured.trained_per_s, now=tuple(ask.now.values()), fit=fit,
    )


def planners() -> list[str]:
    """Names of those that jobs may be scaled by, packages' own among them."""
    return names(GROUP, STREAM_PLANNERS)


def _planner(name: str) -> StreamPlanner:
    """InvalidArgument when there is none of that name, or it cannot be loaded or made."""
    try:
        found: Callable[[], StreamPlanner] = load(GROUP, name, STREAM_PLANNERS)
        return found()
    except (UnknownPlugin, BrokenPlugin) as error:
        why = str(error)
    except Exception as error:      # somebody else's class
        why = f"{name} cannot be made: {type(error).__name__}: {error}"
    violation = Violation("scaling.planner", why)
    raise InvalidArgument("the job cannot be scaled", reason="BAD_PLANNER", violations=[violation])


def _check(ask: OnlineAsk) -> None:
    check_job(ask.job, ask.limits)
    violations = [
        Violation(f"now.{role}", "is missing or 0") for role in ("worker", "ps")
        if role not in ask.now or not ask.now[role].replicas
    ]  # fmt: skip
    rules, measured = ask.rules, ask.measured
    for name in ("step_s", "drain_s", "lag_slo_s"):
        if not 0 < getattr(rules, name) < math.inf:
            violations.append(Violation(f"rules.{name}", f"{getattr(rules, name)} is not above 0"))
    if not 2 <= rules.steps <= MOST_STEPS:
        violations.append(Violation("rules.steps", f"{rules.steps} is not from 2 to {MOST_STEPS}"))
    if not 0.5 <= rules.quantile < 1:
        violations.append(Violation("rules.quantile", f"{rules.quantile} is not from 0.5 to below 1"))
    for name in ("hold_s", "workers_per_ps"):
        if not 0 <= getattr(rules, name) < math.inf:
            violations.append(Violation(f"rules.{name}", f"{getattr(rules, name)} is not a number from 0 up"))
    for name in ("arrivals_per_s", "trained_per_s", "occupied", "lag_s", "since_s", "pause_s", "lead_s"):
        if not 0 <= getattr(measured, name) < math.inf:
            violations.append(Violation(f"measured.{name}", f"{getattr(measured, name)} is not a number from 0 up"))
    if violations:
        raise InvalidArgument("cannot schedule", violations=violations)

