from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import Schedule, StreamView
from services.brain.domain.streams import STREAM_PLANNERS
from services.brain.domain.streams.answer import answered, held
from services.brain.domain.streams.fallback import Band
from services.brain.simulator.online.comparison import adequate, burst, by_season, judged
from services.brain.simulator.online.engine import Setting, replay
from services.brain.simulator.online.forecasts import Given
from services.brain.simulator.online.metrics import columns, geometric_mean, ratios, total

DAY = 288


def linear(workers: Floats) -> Floats:
    return workers * 100.0


@dataclass
class At:
    """Changes to a count at a time, seconds; notes what it was shown."""

    counts: dict[int, int]
    name: str = "at"
    seen: list[StreamView] = field(default_factory=list)

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        self.seen.append(stream)
        count = next((self.counts[at] for at in sorted(self.counts, reverse=True) if stream.now >= at), stream.workers)
        return held(stream, count, "as told")


def flat(steps: int, rate: float) -> Given:
    made = np.full((steps, 6), rate)
    return Given(0, made, made, np.zeros_like(made))


def days(count: float = 8.0) -> Floats:
    minutes = np.arange(round(count * 1440))
    rng = np.random.default_rng(0)
    noise = np.repeat(rng.normal(0, 30, len(minutes) // 5 + 1), 5)[: len(minutes)]
    made: Floats = np.maximum(1200 + 700 * np.sin(2 * np.pi * minutes / 1440) + noise, 10.0)
    return made


def test_a_restart_stops_training_for_just_as_long_and_what_came_waits() -> None:
    arriving = np.full(60, 300.0)
    course = replay(arriving, flat(12, 300.0), At({600: 5}), Setting(linear, restart_s=630.0), first=0, last=60)
    assert course.down_s.sum() == 630.0 and course.changes == 1
    assert course.lag_s[19] == 600.0                    # minutes 10 to 20 were not trained at all
    assert course.backlog[20] == 300 * 660 - 500 * 30   # the last half minute was trained
    drained = 10 + (630 + 300 * 630 / 200) / 60          # 500/s are trained, 300/s come
    assert np.flatnonzero(course.lag_s > 0)[-1] == int(drained) - 1
    assert list(course.workers[[9, 10, 59]]) == [4, 5, 5]


def test_while_new_workers_start_the_old_ones_train_and_both_are_paid() -> None:
    arriving = np.full(30, 300.0)
    setting = Setting(linear, restart_s=1.0, lead_s=90.0)
    course = replay(arriving, flat(6, 300.0), At({600: 6, 1200: 4}), setting, first=0, last=30)
    assert course.backlog[10] == 0 and course.worker_s[10] == 6 * 60
    assert course.worker_s[9] == 4 * 60 and course.worker_s[20] == 4 * 60      # those that go need no lead
    assert course.down_s.sum() == 2.0


def test_one_change_at_a_time() -> None:
    arriving = np.full(60, 300.0)
    planner = At({0: 5, 300: 6, 600: 7})
    course = replay(arriving, flat(12, 300.0), planner, Setting(linear, restart_s=900.0), first=0, last=60)
    assert [minute for minute, _, _ in course.reasons] == [0, 15]
    assert not [each for each in planner.seen if 0 < each.now < 900]


def test_a_schedule_is_followed_until_the_next_plan() -> None:
    class Steps:
        name = "steps"

        def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
            plan = np.array([4, 5, 6, 4, 4, 4])
            return answered(stream, plan, ("",) * 6, stream.demand)

    setting = Setting(linear, restart_s=0.0, plan_every_s=900.0)
    course = replay(np.full(30, 300.0), flat(6, 300.0), Steps(), setting, first=0, last=30)
    assert list(course.workers[::5]) == [4, 5, 6, 4, 5, 6]


def test_nothing_waits_with_as_many_workers_as_the_peak_needs() -> None:
    case = judged("days", days(), step_s=300.0, share=(0.8, 1.0))
    setting = Setting(linear)
    planner = adequate(case, setting)
    found = columns(case.under(planner, setting), slo_s=1200.0)
    assert found.lag_minutes == found.down_minutes == found.violation_rate == 0.0
    assert found.worker_hours == pytest.approx(planner.count * (case.last - case.first) / 60)
    assert linear(np.array([planner.count - 1.0]))[0] <= case.arriving.max()


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(STREAM_PLANNERS))
def test_what_comes_later_changes_no_decision_before_it(name: str) -> None:
    arriving, changed = days(10), days(10)
    at = round(0.95 * len(arriving)) // 5 * 5
    changed[at:] = changed[at:][::-1] * 2
    setting = replace(Setting(linear), fallback=Band())
    courses = [
        judged("days", each, step_s=300.0, share=(0.9, 1.0)).under(STREAM_PLANNERS[name](), setting)
        for each in (arriving, changed)
    ]
    before = at - round(0.9 * len(arriving))
    made = [[each for each in course.reasons if each[0] <= at] for course in courses]
    assert made[0] == made[1] and len(made[0]) > 0
    assert (courses[0].workers[:before] == courses[1].workers[:before]).all()
    assert (courses[0].lag_s[:before] == courses[1].lag_s[:before]).all()
    assert (courses[0].lag_s != courses[1].lag_s).any()


@settings(max_examples=10, deadline=None)
@given(st.integers(5 * DAY, 7 * DAY - 1), st.integers(0, 20))
def test_a_forecast_reads_nothing_after_its_origin(origin: int, more: int) -> None:
    rates = days().reshape(-1, 5).mean(axis=1)
    changed = rates.copy()
    changed[origin:] = 9e9 + more
    mine, theirs = (by_season(each, DAY, 5 * DAY, 7 * DAY).at(origin) for each in (rates, changed))
    assert (mine.mean == theirs.mean).all() and (mine.upper == theirs.upper).all()
    assert (mine.spread == theirs.spread).all()


def test_the_forecast_is_better_than_yesterday_and_its_quantile_holds_for_its_share() -> None:
    rates = days(16).reshape(-1, 5).mean(axis=1)
    first, last = 12 * DAY, 15 * DAY
    found = by_season(rates, DAY, first, last)
    told = np.array([found.at(step).mean[5] for step in range(first, last)])
    upper = np.array([found.at(step).upper[5] for step in range(first, last)])
    actual = rates[first + 5 : last + 5]
    assert np.abs(told - actual).mean() < np.abs(rates[first + 5 - DAY : last + 5 - DAY] - actual).mean()
    assert 0.75 <= (actual <= upper).mean() <= 0.85


def test_a_burst_that_no_forecast_knows_is_over_sooner_with_a_fallback() -> None:
    quiet = judged("days", days(), step_s=300.0, share=(0.9, 1.0))
    case = burst(quiet, at=quiet.first + 120, minutes=20, times=5.0)
    setting = Setting(linear, restart_s=1.0, lead_s=10.0)
    lags = [
        case.under(STREAM_PLANNERS["kale-literal"](), replace(setting, fallback=band)).lag_s for band in (None, Band())
    ]
    assert lags[1].sum() < 0.5 * lags[0].sum()


@pytest.mark.long
@pytest.mark.parametrize(("times", "minutes"), [(1.6, 300), (5.0, 20)])
def test_with_long_stops_a_fallback_is_never_much_worse_than_none(times: float, minutes: int) -> None:
    quiet = judged("days", days(), step_s=300.0, share=(0.95, 1.0))
    case = burst(quiet, at=quiet.first + 60, minutes=minutes, times=times)
    setting = Setting(linear, restart_s=600.0)
    bare, told = (
        columns(case.under(STREAM_PLANNERS["horizon"](), replace(setting, fallback=band)), slo_s=1200.0)
        for band in (None, Band())
    )
    assert told.corrections > 0 and told.lag_minutes <= 1.1 * bare.lag_minutes + 10.0
    assert told.violation_minutes <= 1.1 * bare.violation_minutes + 5
    assert told.worker_hours <= 1.5 * bare.worker_hours, "more comes than was forecast, and is not left to wait"


def test_ratios_are_of_totals_and_nothing_over_nothing_is_one() -> None:
    course = replay(np.full(60, 300.0), flat(12, 300.0), At({600: 5}), Setting(linear), first=0, last=60)
    idle = replay(np.full(60, 300.0), flat(12, 300.0), At({}), Setting(linear), first=0, last=60)
    mine, none = columns(course, slo_s=300.0), columns(idle, slo_s=300.0)
    assert ratios(mine, none)[:3] == (10.0, 10.0, 10.0) and ratios(none, none)[:3] == (1.0, 1.0, 1.0)
    assert ratios(total([mine, mine]), mine) == pytest.approx((1.0, 2.0, 2.0, 2.0))
    assert geometric_mean((4.0, 0.25, 1.0)) == pytest.approx(1.0)
