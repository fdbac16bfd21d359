"""Online jobs: what a schedule means for now, and how one is made from a forecast, or without one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recmesh.plugins.planning import Floats, Resources
from recmesh.plugins.streams import Schedule, StreamView
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from services.brain.app import scheduling as scheduling_module
from services.brain.app.book import Book
from services.brain.app.jobs import Jobs
from services.brain.app.scheduling import Scheduling
from services.brain.domain.model import Free, Job, Plan, Profile, RoleLimits, RolePlan, RoleUse
from services.brain.domain.online import FRESH_S, Demand, OnlineAsk, Rules, choose, recent
from services.brain.domain.warmstart import WarmStart
from services.brain.store import SqlStore
from tests.unit.brain.test_deciding import HandClock

NOW = 100_000.0
UNKNOWN = Free()
RULES = Rules("kale", step_s=60.0, steps=10, hold_s=180.0, series=("topic/clicks",))


def view(workers: int, *, since_s: float = 1e4, lead_s: float = 0.0) -> StreamView:
    return StreamView("j", NOW, 60.0, np.ones(10), lambda count: 100.0 * count, workers, since_s=since_s, lead_s=lead_s)


def schedule(*workers: int) -> Schedule:
    return Schedule(workers, tuple(f"step {step}" for step in range(len(workers))), (False,) * len(workers))


@pytest.mark.parametrize(
    ("counts", "workers", "lead_s", "since_s", "chosen"),
    [
        ((2, 2, 2, 2, 2), 2, 0.0, 1e4, 2),
        ((4, 2, 2, 2, 2), 2, 0.0, 1e4, 4),          # more at once
        ((2, 2, 5, 2, 2), 2, 0.0, 1e4, 2),          # not before they are needed
        ((2, 2, 5, 2, 2), 2, 120.0, 1e4, 5),        # but so long before as they take to come
        ((1, 1, 1, 1, 1), 4, 0.0, 1e4, 1),          # fewer, as none is needed for long
        ((1, 1, 1, 3, 1), 4, 0.0, 1e4, 3),          # as few as are needed within that time
        ((1, 1, 1, 4, 1), 4, 0.0, 1e4, 4),          # none goes that is needed again so soon
        ((1, 1, 1, 1, 1), 4, 0.0, 100.0, 4),        # nor after another change a moment ago
    ],
)
def test_what_a_schedule_means_for_now(
    counts: tuple[int, ...], workers: int, lead_s: float, since_s: float, chosen: int
) -> None:
    found = choose(view(workers, since_s=since_s, lead_s=lead_s), schedule(*counts), RULES, ps=1)
    assert found.workers == chosen and found.ps == 1


@pytest.mark.parametrize(
    ("workers", "has", "since_s", "servers"),
    [
        (5, 1, 0.0, 3),         # with workers
        (2, 1, 0.0, 1),         # right as they are
        (4, 1, 0.0, 2),         # a first plan had too few: at once
        (4, 7, 100.0, 7),       # too many, but something has changed a moment ago
        (4, 7, 180.0, 2),
    ],
)
def test_servers_follow_workers_at_the_ratio_and_come_to_it_without_them(
    workers: int, has: int, since_s: float, servers: int
) -> None:
    stream = view(2 if workers != 4 else 4, since_s=since_s)
    found = choose(stream, schedule(*[workers] * 5), replace(RULES, workers_per_ps=2.0), ps=has)
    assert (found.workers, found.ps) == (workers, servers)
    assert ("servers are right" in found.why) == (workers == 4 and servers != has)
    assert choose(stream, schedule(*[workers] * 5), RULES, ps=has).ps == has, "no ratio is asked for"


def test_the_past_is_of_whole_steps_that_all_series_have_back_to_the_first_gap() -> None:
    first = [(60.0 * step, float(step)) for step in range(20) if step != 12]
    second = [(60.0 * step, 100.0) for step in range(18)]
    found = recent([first, second], step_s=60.0, now=18 * 60.0 + 5.0)
    np.testing.assert_allclose(found, [113.0, 114.0, 115.0, 116.0, 117.0])    # type: ignore[arg-type]  # it is there
    np.testing.assert_allclose(recent([first], step_s=60.0, now=20 * 60.0 - 1.0)[-1], 18.0)    # type: ignore[index]
    assert recent([second], step_s=60.0, now=21 * 60.0) is None, "they ended long ago"
    assert recent([], step_s=60.0, now=0.0) is None


class FakeForecaster:
    def __init__(self) -> None:
        self.away: Exception | None = None
        self.mean = np.full(10, 250.0)
        self.asked: list[tuple[str, int, float, float]] = []

    async def forecast(
        self, series: str, *, steps: int, step_s: float, now: float, level: float
    ) -> tuple[Floats, Floats, str]:
        self.asked.append((series, steps, step_s, level))
        if self.away is not None:
            raise self.away
        return self.mean, self.mean + 40.0, "SeasonalNaive"

    async def history(self, series: str, *, since: float, step_s: float) -> Sequence[tuple[float, float]]:
        if self.away is not None:
            raise self.away
        newest = NOW // step_s - 1
        return [(step_s * (newest - back), 100.0) for back in range(60, -1, -1)]


class Brain:
    def __init__(self, folder: Path, quotas: dict[str, Resources] | None = None) -> None:
        self.store = SqlStore(f"sqlite:///{folder}/brain.sqlite")
        self.store.open()
        self.clock, self.forecaster = HandClock(NOW), FakeForecaster()
        self.told: list[Plan] = []
        self.book = Book(quotas, clock=self.clock)
        self.scheduling = Scheduling(
            self.store, self.forecaster, self.book, clock=self.clock, seed=7, told=self._tell
        )

    async def _tell(self, plan: Plan) -> None:
        self.told.append(plan)


@pytest.fixture
def brain(tmp_path: Path) -> Brain:
    return Brain(tmp_path)


def ask(workers: int = 1, *, rules: Rules = RULES, free: Free = UNKNOWN, most: int = 8, **measured: float) -> OnlineAsk:
    seen = {"arrivals_per_s": 100.0, "trained_per_s": 100.0 * workers, "occupied": 1.0, "since_s": 1e4} | measured
    return OnlineAsk(
        Job("j", owner="ads", batch_size=50), [RoleLimits("worker", 1, most), RoleLimits("ps", 1, 4)],
        {"worker": RolePlan("worker", workers, 1.0, 0), "ps": RolePlan("ps", 1, 1.0, 0)},
        rules, Demand(**seen), free,   # type: ignore[arg-type]  # numbers by name
    )  # fmt: skip


@pytest.mark.asyncio
async def test_workers_for_what_is_forecast_are_asked_for_before_it_comes(brain: Brain) -> None:
    brain.forecaster.mean = np.array([90.0, 90.0, *[380.0] * 8])
    look, plan = await brain.scheduling.schedule(ask(2))
    assert plan is None and look.reason == "KEEP"
    look, plan = await brain.scheduling.schedule(ask(2, lead_s=150.0))
    assert plan is not None and [(role.role, role.replicas) for role in plan.roles] == [("worker", 5)]
    assert brain.forecaster.asked[-1][:3] == ("topic/clicks", 10, 60.0)
    assert brain.forecaster.asked[-1][3] == pytest.approx(0.6)
    assert [step.workers for step in look.schedule][:3] == [2, 2, 5] and look.schedule[2].demand == 420.0
    assert "in 120 s" in look.why and "SeasonalNaive" in look.why and brain.told == [plan]
    stored = brain.store.look("j")
    assert stored is not None and stored.schedule == look.schedule and stored.plan_id == plan.plan_id


@pytest.mark.asyncio
async def test_without_a_forecast_what_comes_now_is_planned_for_and_it_says_why(brain: Brain) -> None:
    brain.forecaster.away = NotFound("series 'topic/clicks' is unknown")
    look, plan = await brain.scheduling.schedule(ask(1, arrivals_per_s=350.0))
    assert plan is not None and plan.roles[0].replicas == 5, "350/s at 85 % of 100/s each, by measurement"
    assert "no forecast (series 'topic/clicks' is unknown): 350/s" in look.why
    brain.forecaster.away = Unavailable("forecaster is away")
    _, plan = await brain.scheduling.schedule(ask(1, arrivals_per_s=50.0))
    assert plan is None


@pytest.mark.asyncio
async def test_lag_in_spite_of_the_forecast_is_answered_by_measurement_unless_switched_off(brain: Brain) -> None:
    brain.forecaster.mean = np.full(10, 50.0)
    late = ask(2, arrivals_per_s=500.0, lag_s=900.0, backlog=120_000)
    look, plan = await brain.scheduling.schedule(late)
    assert plan is not None and plan.roles[0].replicas > 5 and "in spite of the forecast" in look.why
    _, plan = await brain.scheduling.schedule(replace(late, rules=replace(RULES, fallback=False)))
    assert plan is None, "by the forecast two can train what comes, and what waits besides"


@pytest.mark.asyncio
async def test_speed_is_learned_from_workers_that_had_enough_to_do(brain: Brain) -> None:
    speeds = {1: 100.0, 2: 180.0, 3: 230.0, 4: 250.0}
    for workers, rate in speeds.items():
        for _ in range(3):
            brain.clock.advance(60.0)
            await brain.scheduling.schedule(ask(workers, trained_per_s=0.9 * rate, occupied=0.9))
            await brain.scheduling.schedule(ask(workers, trained_per_s=1.0, occupied=0.1))    # hardly anything to do
    brain.forecaster.mean = np.full(10, 180.0)     # 220 with the quantile
    look, plan = await brain.scheduling.schedule(ask(1, trained_per_s=90.0, occupied=0.9))
    assert plan is not None and plan.roles[0].replicas == 3, look.why
    assert look.fit.form and {point.workers for point in look.fit.points} == {1, 2, 3, 4}
    assert look.schedule[0].capacity == pytest.approx(230.0, rel=0.1)


@pytest.mark.asyncio
async def test_nothing_is_said_before_anything_is_known_of_the_workers(brain: Brain) -> None:
    look, plan = await brain.scheduling.schedule(ask(1, trained_per_s=0.0, occupied=0.0))
    assert plan is None and look.reason == "UNCERTAIN"


@pytest.mark.asyncio
async def test_workers_without_work_go_by_what_they_did_before(brain: Brain) -> None:
    await brain.scheduling.schedule(ask(3, arrivals_per_s=290.0))
    brain.forecaster.mean = np.zeros(10)
    idle = ask(3, arrivals_per_s=0.0, trained_per_s=0.0, occupied=0.0)
    _, plan = await brain.scheduling.schedule(idle)
    assert plan is not None and plan.roles[0].replicas == 1


@pytest.mark.asyncio
async def test_room_and_quota_bound_the_count_and_what_was_given_is_booked(tmp_path: Path) -> None:
    brain = Brain(tmp_path, {"ads": Resources(6.0, 1e12)})
    brain.forecaster.mean = np.full(10, 1000.0)
    look, plan = await brain.scheduling.schedule(ask(1, free=Free(cpu=2.0)))
    assert plan is not None and plan.roles[0].replicas == 3
    assert "there is room for 3 of 8" in look.why and all(step.unmet for step in look.schedule)
    assert brain.book.room(Free(cpu=10.0)).cpu == 8.0
    _, plan = await brain.scheduling.schedule(ask(3, arrivals_per_s=290.0, free=Free(cpu=100.0)))
    assert plan is not None and plan.roles[0].replicas == 5, "6 cores of the quota, one of them its server's"


@pytest.mark.asyncio
async def test_of_a_dry_run_nothing_is_booked_and_no_plan_is_told(brain: Brain) -> None:
    look, plan = await brain.scheduling.schedule(ask(1, rules=replace(RULES, dry_run=True)))
    assert plan is not None and look.chosen == plan.roles and not look.plan_id
    assert brain.book.room(Free(cpu=10.0)).cpu == 10.0
    assert brain.told == [] and brain.store.plans() == [] and brain.store.decisions() == []
    assert brain.store.look("j") == look


@pytest.mark.asyncio
async def test_what_is_on_its_way_through_the_workers_does_not_wait(brain: Brain) -> None:
    """Messages of some seconds are always under way: they are no backlog that holds idle workers, or calls for more."""
    brain.forecaster.mean = np.full(10, 500.0)
    idle = ask(8, arrivals_per_s=100.0, occupied=0.9, trained_per_s=720.0, backlog=100 * FRESH_S)
    look, plan = await brain.scheduling.schedule(idle)
    assert plan is not None and plan.roles[0].replicas == 2 and "in spite of the forecast" in look.why
    _, plan = await brain.scheduling.schedule(replace(idle, rules=replace(RULES, planner="hpa")))
    assert plan is None or plan.roles[0].replicas < 8


@pytest.mark.asyncio
async def test_those_that_wait_for_quota_come_before_workers_for_the_stream(tmp_path: Path) -> None:
    brain = Brain(tmp_path, {"ads": Resources(10.0, 1e12)})
    await brain.scheduling.schedule(ask(1, arrivals_per_s=90.0))
    waiter = Job("waits", owner="ads", priority=5)
    limits = [RoleLimits("worker", 4, 8, cpu=1.0), RoleLimits("ps", 4, 4, cpu=1.0)]
    with pytest.raises(ResourceExhausted):
        await Jobs(brain.store, brain.book, rule=WarmStart(), clock=brain.clock, told=brain._tell).plan(
            waiter, [*limits, RoleLimits("data", 1, 1, cpu=1.0)], Free()
        )
    brain.forecaster.mean = np.full(10, 1000.0)
    _, plan = await brain.scheduling.schedule(ask(1, arrivals_per_s=90.0))
    assert plan is None or plan.roles[0].replicas < 3


@pytest.mark.asyncio
async def test_servers_at_the_ratio_take_room_too_and_stay_where_workers_are_pinned(brain: Brain) -> None:
    brain.forecaster.mean = np.full(10, 1000.0)
    rules = replace(RULES, workers_per_ps=2.0)
    _, plan = await brain.scheduling.schedule(ask(2, rules=rules, free=Free(cpu=3.0)))
    assert plan is not None and {role.role: role.replicas for role in plan.roles} == {"worker": 4, "ps": 2}
    brain.forecaster.mean = np.full(10, 10.0)
    pinned = ask(8, rules=rules, arrivals_per_s=10.0)
    pinned.now["ps"] = RolePlan("ps", 4, 1.0, 0)
    limits = [RoleLimits("worker", 1, 8, pinned=8), RoleLimits("ps", 1, 4)]
    _, plan = await brain.scheduling.schedule(replace(pinned, limits=limits))
    assert plan is None


@pytest.mark.asyncio
async def test_a_first_plan_off_the_ratio_is_mended_though_no_worker_comes_or_goes(brain: Brain) -> None:
    brain.forecaster.mean = np.full(10, 330.0)
    rules = replace(RULES, workers_per_ps=2.0)
    look, plan = await brain.scheduling.schedule(ask(4, rules=rules, arrivals_per_s=330.0))
    assert plan is not None and [(role.role, role.replicas) for role in plan.roles] == [("ps", 2)]
    assert look.reason == "GROW" and "2 servers are right for 4 workers" in look.why
    mended = ask(4, rules=rules, arrivals_per_s=330.0)
    mended.now["ps"] = RolePlan("ps", 2, 1.0, 0)
    look, plan = await brain.scheduling.schedule(mended)
    assert plan is None and look.reason == "KEEP"
    mended.now["ps"] = RolePlan("ps", 4, 1.0, 0)
    look, plan = await brain.scheduling.schedule(mended)
    assert plan is not None and plan.roles[0].replicas == 2 and look.reason == "SHRINK"
    limits = [RoleLimits("worker", 1, 8), RoleLimits("ps", 1, 4, pinned=1)]
    _, plan = await brain.scheduling.schedule(replace(ask(4, rules=rules, arrivals_per_s=330.0), limits=limits))
    assert plan is None, "a count that somebody fixed stays"


@pytest.mark.asyncio
async def test_lag_that_a_long_stop_caused_is_no_reason_for_another(brain: Brain) -> None:
    brain.forecaster.mean = np.full(10, 330.0)
    after_a_stop = ask(5, arrivals_per_s=390.0, lag_s=700.0, backlog=100_000, pause_s=600.0)
    _, plan = await brain.scheduling.schedule(replace(after_a_stop, rules=replace(RULES, planner="horizon")))
    assert plan is None, "five clear it sooner than a change would"
    moments = replace(after_a_stop, measured=replace(after_a_stop.measured, pause_s=0.1))
    _, plan = await brain.scheduling.schedule(replace(moments, rules=replace(RULES, planner="horizon")))
    assert plan is not None and plan.roles[0].replicas > 5


@pytest.mark.asyncio
async def test_what_workers_can_do_is_no_speed_of_the_job(brain: Brain) -> None:
    brain.store.put_profile(Profile("j", NOW - 5.0, 2, 1, samples_per_s=80.0, roles=(
        RoleUse(RolePlan("worker", 2, 1.0, 0)), RoleUse(RolePlan("ps", 1, 1.0, 0)),
    )))
    await brain.scheduling.schedule(ask(2, trained_per_s=80.0, occupied=0.5))
    newest = brain.store.profiles("j")[-1]
    assert (newest.samples_per_s, newest.capacity_per_s, newest.is_steady) == (80.0, 160.0, False)
    assert [use.has.role for use in newest.roles] == ["worker", "ps"]


@pytest.mark.asyncio
async def test_a_job_that_has_ended_is_refused_and_forgotten(brain: Brain) -> None:
    await brain.scheduling.schedule(ask(2))
    brain.book.forget("j")
    with pytest.raises(FailedPrecondition, match="has ended"):
        await brain.scheduling.schedule(ask(2))
    assert brain.scheduling._workers == {}


@pytest.mark.asyncio
async def test_a_planner_that_is_not_there_and_wrong_numbers_are_named(brain: Brain) -> None:
    with pytest.raises(InvalidArgument, match="oracle"):
        await brain.scheduling.schedule(ask(rules=replace(RULES, planner="oracle")))
    with pytest.raises(InvalidArgument) as refused:
        await brain.scheduling.schedule(ask(rules=replace(RULES, steps=1), occupied=float("nan")))
    assert {item.path for item in refused.value.violations} == {"rules.steps", "measured.occupied"}


class _Breaks:
    name = "breaks"

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        raise ZeroDivisionError("of its own")


class _Short(_Breaks):
    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        return Schedule((), (), ())


class _Asks(_Breaks):
    def __init__(self, path: str) -> None:
        pass


@pytest.mark.asyncio
async def test_a_planner_of_somebody_elses_that_breaks_is_named_and_moves_nothing(
    brain: Brain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an error of the caller's, which jobmaster notes for the job's user."""
    kinds = {"breaks": _Breaks, "short": _Short, "asks": _Asks}
    monkeypatch.setattr(scheduling_module, "load", lambda group, name, built_in: kinds[name])
    with pytest.raises(FailedPrecondition, match="the planner 'breaks' broke: ZeroDivisionError: of its own"):
        await brain.scheduling.schedule(ask(rules=replace(RULES, planner="breaks")))
    with pytest.raises(FailedPrecondition, match="the planner 'short' broke"):
        await brain.scheduling.schedule(ask(rules=replace(RULES, planner="short", fallback=False)))
    with pytest.raises(InvalidArgument, match="asks cannot be made: TypeError"):
        await brain.scheduling.schedule(ask(rules=replace(RULES, planner="asks")))
    assert brain.told == [] and brain.store.look("j") is None
