from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.plugins.planning import Allocation, Floats, Shapes
from recmesh.plugins.streams import StreamPlanner, StreamView
from services.brain.domain.streams.autopilot import Autopilot
from services.brain.domain.streams.fallback import Band, Measured, believed, corrected, decided, leaves_to_planner
from services.brain.domain.streams.horizon import Horizon, Weights, blocks, left_over
from services.brain.domain.streams.hpa import Hpa
from services.brain.domain.streams.kale import Kale, fewest, literal, wanted
from services.brain.domain.streams.lag import Outlook, outlook
from services.brain.domain.streams.madu import Madu
from services.brain.domain.streams.stabilise import Stability, stabilised
from services.brain.domain.throughput.forms import KALE_ASYNC_RATIO, KALE_SYNC_RATIO, Rows

TEN_MIN_S = 600.0
RNG = np.random.default_rng(0)


def kale_a10(workers: Floats) -> Floats:
    """MATH section 2: M 16384, θ (0.00035, 2.5726, 0.9824, 0.02786)."""
    made: Floats = 16384 / (0.00035 + 2.5726 / workers + 0.9824 / workers**2 + 0.02786 * workers)
    return made


def linear(workers: Floats) -> Floats:
    return workers * 100.0


def view(demand: list[float], *, workers: int = 4, step_s: float = TEN_MIN_S, **more: object) -> StreamView:
    return StreamView("j", 0.0, step_s, np.array(demand, dtype=np.float64), linear, workers=workers, **more)  # type: ignore[arg-type]  # by keyword


@pytest.mark.parametrize(("wrong", "field"), [
    ({"demand": [1.0, float("nan")]}, "demand"), ({"demand": [-1.0]}, "demand"), ({"demand": []}, "demand"),
    ({"demand": [1.0], "step_s": 0.0}, "step_s"), ({"demand": [1.0], "workers": -1}, "workers"),
    ({"demand": [1.0], "expected": np.ones(2)}, "expected"), ({"demand": [1.0], "spread": np.array([-1.0])}, "spread"),
    ({"demand": [1.0], "past": np.ones(3), "past_workers": np.ones(2)}, "past_workers"),
    ({"demand": [1.0], "backlog": float("inf")}, "backlog"), ({"demand": [1.0], "drain_s": 0.0}, "drain_s"),
    ({"demand": [1.0], "least": 5, "most": 4}, "least and most"), ({"demand": [1.0], "lead_s": float("nan")}, "lead_s"),
])
def test_a_view_that_no_job_can_have_is_refused_by_its_field(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be"):
        view(**wrong)  # type: ignore[arg-type]  # what is wrong is the point


# KALE


def test_the_models_maximum_is_where_it_was_computed() -> None:
    made = kale_a10(np.array([8.0, 9.0, 10.0, 11.0]))
    assert made == pytest.approx([29_249.05, 29_839.94, 30_005.46, 29_854.13], abs=0.01)


def test_without_a_term_in_workers_more_are_always_faster() -> None:
    """MATH section 2: T4's form has none, and f(10) = 13,266.34. Its coefficients are not published: they are those of
    the A10, slower by one factor."""
    rows = Rows.of(Shapes.of([Allocation(workers, 1, 1.0, 1.0) for workers in range(1, 65)]), 16384 / np.arange(1, 65))
    shape = np.array([0.00035, 2.5726, 0.9824, 0.0])
    slower = 16384 / 13_266.34 / KALE_SYNC_RATIO.step_s(rows, shape)[9]
    made = KALE_SYNC_RATIO.rate(rows, slower * shape)
    assert made[9] == pytest.approx(13_266.34) and (np.diff(made) > 0).all()


@pytest.mark.parametrize("rate", [1_265.8, 605.8], ids=["A10", "T4"])
@given(shares=st.tuples(st.floats(0.01, 1.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0)))
def test_of_one_asynchronous_worker_only_the_sum_of_the_coefficients_counts(
    rate: float, shares: tuple[float, float, float]
) -> None:
    """MATH section 2: published per sample, and of ambiguous order."""
    coefficients = np.array(shares) / sum(shares) / rate
    one = Rows.of(Shapes.of([Allocation(1, 1, 1.0, 1.0)]), 1.0)
    assert KALE_ASYNC_RATIO.rate(one, coefficients)[0] == pytest.approx(rate)


def test_the_fewest_workers_are_searched_up_to_the_maximum_only() -> None:
    found = fewest(kale_a10, np.array([29_000.0, 29_800.0, 30_000.0, 30_100.0]), least=1, most=64)
    assert list(found.workers) == [8, 9, 10, 10]
    assert list(found.met) == [True, True, True, False]


def test_no_demand_needs_the_least_and_bounds_are_kept() -> None:
    assert list(fewest(linear, np.array([0.0, 1e9]), least=2, most=5).workers) == [2, 5]
    with pytest.raises(ValueError, match="no count to choose"):
        fewest(linear, np.array([1.0]), least=5, most=4)


@given(st.lists(st.floats(0, 40_000), min_size=1, max_size=20), st.integers(1, 12), st.integers(0, 20))
def test_one_worker_less_would_not_meet_the_demand(demand: list[float], least: int, more: int) -> None:
    found = fewest(kale_a10, np.array(demand), least=least, most=least + more)
    for load, count, met in zip(demand, found.workers, found.met, strict=True):
        assert least <= count <= least + more
        made = kale_a10(np.arange(least, count + 1, dtype=np.float64))
        assert (made[-1] > load or load == 0) == met
        assert (made[:-1] <= load).all()


def test_a_backlog_adds_to_demand_until_it_should_be_gone() -> None:
    stream = view([100.0] * 4, backlog=120_000.0, drain_s=1200.0)
    assert list(wanted(stream)) == [200.0, 200.0, 100.0, 100.0]
    assert Kale().schedule(stream, RNG).workers[0] > literal().schedule(stream, RNG).workers[0]


def test_a_demand_that_cannot_be_met_gets_the_best_there_is_and_says_so() -> None:
    found = Kale().schedule(StreamView("j", 0.0, 600.0, np.full(3, 30_100.0), kale_a10, workers=10), RNG)
    assert set(found.workers) == {10} and all(found.unmet)
    assert "cannot be met" in found.reasons[0]


def test_parameter_servers_follow_at_the_ratio() -> None:
    found = Kale().schedule(view([450.0, 450.0, 850.0, 850.0], workers=5, workers_per_ps=2.0), RNG)
    assert found.workers == (5, 5, 9, 9) and found.ps == (3, 3, 5, 5)


# Algorithm 1


def smoothed(plan: list[int], tau_min: float, *, to_the_letter: bool = True, **more: object) -> list[int]:
    stream = view([count * 100.0 - 50 for count in plan], **({"workers": plan[0]} | more))  # type: ignore[arg-type]  # by keyword
    return list(stabilised(np.array(plan), stream, Stability(tau_s=tau_min * 60, literal=to_the_letter)))


@pytest.mark.parametrize(
    ("plan", "tau_min", "expected"),
    [
        ([4, 4, 5, 6, 6, 6], 15, [4, 4, 6, 6, 6, 6]),
        ([4, 5, 6, 7, 8], 15, [4, 6, 6, 8, 8]),
        ([8, 7, 6, 5, 4], 15, [8, 8, 8, 8, 4]),
        ([6, 6, 3, 6, 6], 15, [6, 6, 6, 6, 6]),
        ([4, 4, 9, 4, 4], 15, [4, 4, 4, 4, 4]),
        ([4, 4, 5, 6, 6, 6], 10, [4, 4, 5, 6, 6, 6]),
    ],
)
def test_short_segments_take_the_larger_neighbour(plan: list[int], tau_min: float, expected: list[int]) -> None:
    assert smoothed(plan, tau_min) == expected


def test_a_slow_descent_does_not_cascade() -> None:
    assert smoothed([8, 7, 6, 5, 4], 15, to_the_letter=False) == [8, 8, 6, 6, 4]


def test_a_peak_is_not_clipped_where_its_backlog_would_stay() -> None:
    assert smoothed([4, 4, 9, 4, 4], 15, to_the_letter=False) == [4, 4, 9, 4, 4]


def test_a_peak_is_clipped_where_its_backlog_is_soon_gone() -> None:
    """Demand passes 4 workers by a hair for one step, and leaves half of them idle after it."""
    demand = [350.0, 350.0, 405.0, 200.0, 200.0, 200.0]
    stream = view(demand, workers=4, lag_slo_s=1200.0)
    mended = stabilised(np.array([4, 4, 5, 4, 4, 4]), stream, Stability(tau_s=900))
    assert list(mended) == [4] * 6


def test_the_running_count_is_the_segment_that_contains_now() -> None:
    assert smoothed([5, 6, 6], 15, workers=6, since_s=600.0) == [6, 6, 6]


def test_a_smaller_change_than_rho_is_left_alone() -> None:
    stream = view([350.0, 450.0, 550.0, 550.0])
    assert list(stabilised(np.array([4, 5, 6, 6]), stream, Stability(rho=2, tau_s=900, literal=True))) == [4, 5, 6, 6]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=20), st.floats(0, 3600))
def test_the_mended_form_goes_below_need_only_where_what_waits_clears(plan: list[int], since_s: float) -> None:
    stream = view([count * 100.0 - 1 for count in plan], workers=plan[0], since_s=since_s)
    mended = stabilised(np.array(plan), stream, Stability(tau_s=900))
    assert mended[0] == plan[0] and mended[-1] == plan[-1]
    if (mended < np.array(plan)).any():
        assert outlook(stream, mended).lag_s.max() <= 2 * stream.lag_slo_s
    assert set(mended) <= set(plan)


# Lag


def test_a_change_stops_training_and_what_came_waits() -> None:
    stream = view([300.0, 300.0, 300.0], workers=4, restart_s=60.0)
    kept, changed = outlook(stream, np.array([4, 4, 4])), outlook(stream, np.array([5, 5, 5]))
    assert kept.changes == 0 and kept.backlog[0] == 0
    assert changed.changes == 1 and changed.backlog[0] == max(0, 300 * 600 - 500 * 540)
    assert outlook(stream, np.array([3, 3, 3])).backlog[0] == 300 * 60


def test_new_workers_are_of_no_use_before_their_lead() -> None:
    stream = view([400.0, 400.0], workers=2, lead_s=300.0)
    assert outlook(stream, np.array([4, 4])).backlog[0] == (400 - 200) * 300


def test_lag_above_the_slo_is_counted_as_long_as_it_lasts() -> None:
    found = outlook(view([400.0] * 5, workers=2), np.array([2] * 5))
    assert found.lag_s == pytest.approx([300, 600, 900, 1200, 1500])
    assert found.violation_s == TEN_MIN_S


# Horizon


def day(steps: int = 72, *, step_s: float = 1200.0, **more: object) -> StreamView:
    hours = np.arange(steps) * step_s / 3600
    demand = 1200 + 700 * np.sin(2 * np.pi * hours / 24)
    return view(list(demand), workers=13, step_s=step_s, most=28, **more)


def looked_at(planner: StreamPlanner, stream: StreamView) -> Outlook:
    return outlook(stream, np.array(planner.schedule(stream, RNG).workers))


def over(ours: Outlook, theirs: Outlook) -> Floats:
    found: Floats = np.array(ours.columns) / np.maximum(np.array(theirs.columns), 1e-9)
    return found


def test_where_changes_are_dear_it_makes_fewer_and_none_where_they_cost_all() -> None:
    stream = day(restart_s=600.0, lead_s=60.0)
    ours, theirs = looked_at(Horizon(), stream), looked_at(Kale(), stream)
    never = looked_at(Horizon(weights=Weights(stop=1e6)), stream)
    assert 0 < ours.changes < theirs.changes and ours.lag_s.sum() < theirs.lag_s.sum()
    assert never.changes <= 1


def test_where_changes_are_free_it_takes_what_demand_needs() -> None:
    stream = day()
    planned = np.array(Horizon(weights=Weights(change_s=0.0, lag=100.0)).schedule(stream, RNG).workers)
    near = slice(0, 12)                                     # single steps; farther away several are one
    assert (planned[near] == np.ceil(stream.demand / 100.0)[near]).all()


def test_lag_that_is_dear_is_worked_off_sooner() -> None:
    stream = view([1000.0] * 24, workers=11, step_s=300.0, most=28, backlog=400_000.0, restart_s=60.0)
    cheap, dear = (looked_at(Horizon(weights=Weights(lag=each, waiting=each)), stream) for each in (0.05, 20.0))
    assert dear.lag_s.sum() < cheap.lag_s.sum() and dear.worker_s > cheap.worker_s


@pytest.mark.parametrize("excess", [-30.0, -5.0, 0.0, 5.0, 30.0])
def test_what_is_left_over_is_the_mean_over_the_forecasts_errors(excess: float) -> None:
    drawn = np.maximum(np.random.default_rng(4).normal(excess, 10.0, 400_000), 0.0).mean()
    assert left_over(np.array([[excess]]), 10.0)[0, 0] == pytest.approx(drawn, abs=0.06)
    assert left_over(np.array([[excess]]), 0.0)[0, 0] == max(excess, 0.0)


def test_a_forecast_that_is_less_certain_gets_more_workers() -> None:
    def planned(spread: float) -> tuple[int, ...]:
        stream = view([990.0] * 12, workers=10, most=28)
        stream = replace(stream, expected=stream.demand, spread=np.full(12, spread))
        return tuple(Horizon().schedule(stream, RNG).workers)

    certain, unsure = planned(0.0), planned(400.0)
    assert min(unsure) > max(certain)


def test_a_peak_is_prepared_for_before_it_comes_when_a_change_takes_long() -> None:
    stream = view([900.0] * 6 + [1900.0] * 18, workers=10, step_s=300.0, most=28, restart_s=600.0)
    workers = Horizon().schedule(stream, RNG).workers
    assert max(workers[:6]) > 19 - 1 and looked_at(Horizon(), stream).violation_s == 0


@given(st.integers(1, 400), st.integers(1, 9))
def test_blocks_hold_all_steps_and_no_stop_reaches_beyond_its_own(steps: int, least: int) -> None:
    found = blocks(steps, least=least)
    assert found.sum() == steps and (found[:-1] >= least).all() and found[-1] >= 1


def closed_loop(planner: StreamPlanner, demand: Floats, *, step_s: float, restart_s: float) -> Outlook:
    """Plans anew before each step, from what is running and waiting then, with a forecast that is a little off."""
    rng = np.random.default_rng(1)
    workers, since_s, waits, ahead = 13, 3600.0, 0.0, 24
    counts, backlog = [], []
    for step in range(len(demand) - ahead):
        forecast = demand[step : step + ahead] * (1 + 0.03 * rng.standard_normal(ahead)) * 1.03
        stream = view(
            list(forecast),
            workers=workers,
            step_s=step_s,
            most=28,
            since_s=since_s,
            backlog=waits,
            restart_s=restart_s,
            past=demand[max(0, step - 6) : step + 1],
        )
        chosen = planner.schedule(stream, rng).workers[0]
        truth = view([float(demand[step])], workers=workers, step_s=step_s, backlog=waits, restart_s=restart_s)
        waits = float(outlook(truth, np.array([chosen])).backlog[0])
        since_s = since_s + step_s if chosen == workers else step_s
        workers = chosen
        counts.append(chosen)
        backlog.append(waits)
    lag_s = np.array(backlog) / demand[: len(counts)]
    changes = int(np.count_nonzero(np.diff([13, *counts])))
    return Outlook(np.array(backlog), lag_s, sum(counts) * step_s, changes, float((lag_s > 1200).sum()) * step_s)


def test_planning_anew_at_each_step_horizon_costs_less_than_kale_in_every_column() -> None:
    hours = np.arange(132) / 6
    demand = 1200 + 700 * np.sin(2 * np.pi * hours / 24)
    ours, theirs = (closed_loop(each, demand, step_s=600.0, restart_s=600.0) for each in (Horizon(), Kale()))
    ratios = over(ours, theirs)
    assert max(ratios) <= 1.0 and np.exp(np.mean(np.log(np.maximum(ratios, 0.01)))) <= 0.9


# The peers


def test_hpa_keeps_within_its_tolerance_and_grows_beyond_it() -> None:
    near = view([1.0], workers=10, past=np.array([840.0]))
    far = view([1.0], workers=10, past=np.array([960.0]))
    assert Hpa().schedule(near, RNG).workers == (10,)
    assert Hpa().schedule(far, RNG).workers[0] > 10


def test_hpa_grows_by_one_over_the_target_while_a_backlog_hides_the_demand() -> None:
    stream = view([1.0], workers=8, step_s=60.0, lead_s=60.0, past=np.array([5000.0]), backlog=1.0)
    assert Hpa().schedule(stream, RNG).workers == (10,)


def test_hpa_shrinks_only_when_five_minutes_wanted_less() -> None:
    low, high = np.array([800.0, *[100.0] * 4]), np.array([100.0] * 5)
    held, shrunk = (
        Hpa().schedule(view([1.0], workers=10, step_s=60.0, past=past, past_workers=np.full(5, 10.0)), RNG).workers[0]
        for past in (low, high)
    )
    assert held == 10 and shrunk == 2


@pytest.mark.parametrize("faster", [30.0, 480.0])
def test_a_day_that_is_told_faster_gets_the_same_plan(faster: float) -> None:
    """Only the cost of a change as such is in seconds that do not follow from the job."""
    usual, quick = Weights(), replace(Weights(), change_s=Weights().change_s / faster)
    slow = day(restart_s=10.0, lead_s=300.0, backlog=9_600.0)
    slow = replace(slow, expected=slow.demand, spread=np.full(72, 40.0))
    fast = replace(
        slow, step_s=slow.step_s / faster, restart_s=10.0 / faster, lead_s=300.0 / faster, backlog=9_600.0 / faster,
        drain_s=slow.drain_s / faster, lag_slo_s=slow.lag_slo_s / faster,
    )  # fmt: skip
    assert Horizon(weights=quick).schedule(fast, RNG).workers == Horizon(weights=usual).schedule(slow, RNG).workers


@pytest.mark.parametrize(("statistic", "expected"), [("peak", 900.0), ("percentile", 860.0), ("mean", 1500.0 * 4 / 7)])
def test_autopilot_looks_at_a_statistic_of_its_window(statistic: str, expected: float) -> None:
    past = np.array([5000.0, 100.0, 900.0, 500.0])
    planner = Autopilot(statistic=statistic, window_s=1800.0, half_life_s=600.0)  # type: ignore[arg-type]  # a literal
    weighted = (100 * 0.25 + 900 * 0.5 + 500) / 1.75
    assert planner.estimate(past, 600.0) == pytest.approx(weighted if statistic == "mean" else expected)


def test_madu_adds_uncertainty_and_shrinks_only_by_enough() -> None:
    sure = view([450.0] * 3, workers=5, expected=np.full(3, 400.0), spread=np.zeros(3))
    unsure = view([450.0] * 3, workers=5, expected=np.full(3, 400.0), spread=np.full(3, 100.0))
    assert Madu().schedule(sure, RNG).workers[0] < Madu().schedule(unsure, RNG).workers[0]
    slightly = view([850.0] * 3, workers=20, expected=np.full(3, 1690.0), spread=np.zeros(3))
    assert Madu().schedule(slightly, RNG).workers == (20, 20, 20)


@settings(max_examples=30)
@given(st.lists(st.floats(0, 5000), min_size=2, max_size=12), st.integers(1, 20), st.floats(0, 1e6))
def test_a_madu_without_a_spread_still_plans_within_bounds(demand: list[float], workers: int, backlog: float) -> None:
    found = Madu().schedule(view(demand, workers=workers, most=20, backlog=backlog, past=np.array(demand)), RNG)
    assert all(1 <= count <= 20 for count in found.workers)


# When the forecast was wrong


def planned(stream: StreamView) -> tuple[int, ...]:
    return Kale().schedule(stream, RNG).workers


def after(stream: StreamView, rate: float, lag_s: float = 0.0) -> tuple[tuple[int, ...], tuple[str, ...]]:
    found = corrected(stream, Kale().schedule(stream, RNG), Measured(rate, lag_s), Band())
    return found.workers, found.reasons


def test_within_the_band_the_schedule_stands() -> None:
    stream = view([350.0] * 4, workers=4, step_s=300.0)
    assert after(stream, rate=340.0)[0] == planned(stream)


def test_a_lag_that_grows_in_spite_of_the_forecast_is_answered_at_once() -> None:
    stream = view([350.0] * 4, workers=4, step_s=300.0, backlog=60_000.0, drain_s=1200.0)
    workers, reasons = after(stream, rate=500.0, lag_s=700.0)
    assert workers[0] == workers[1] > planned(stream)[0] and workers[2:] == planned(stream)[2:]
    assert "lag is 700 s" in reasons[0] and "by measurement" in reasons[0]


def test_full_workers_get_help_and_idle_ones_go() -> None:
    stream = view([350.0] * 4, workers=4, step_s=300.0)
    assert after(stream, rate=520.0)[0][0] == 7
    assert after(stream, rate=100.0)[0][0] == 2


def test_idle_workers_that_are_there_ahead_of_a_peak_stay() -> None:
    stream = view([350.0, 350.0, 900.0, 900.0], workers=10, step_s=300.0)
    assert planned(stream)[2] == 10
    assert after(stream, rate=100.0)[0] == (2, 2, 10, 10)


def test_a_schedule_that_already_answers_is_not_lowered() -> None:
    stream = view([900.0] * 4, workers=4, step_s=300.0)
    assert after(stream, rate=395.0)[0] == planned(stream) == (10,) * 4


@given(st.floats(0, 5000), st.floats(0, 5000), st.floats(0, 1e6))
def test_a_correction_stays_within_bounds_and_says_why(rate: float, lag_s: float, backlog: float) -> None:
    stream = view([350.0] * 4, workers=4, least=2, most=9, backlog=backlog)
    workers, reasons = after(stream, rate, lag_s)
    assert all(2 <= count <= 9 for count in workers) and all(reasons)


def test_where_a_stop_is_long_the_planner_is_told_what_comes_and_overruled_by_nothing() -> None:
    stream = view([350.0] * 6, workers=4, step_s=300.0, restart_s=600.0, backlog=60_000.0, expected=np.full(6, 300.0))
    late, band = Measured(500.0, 700.0), Band()
    assert leaves_to_planner(stream, band) and not leaves_to_planner(replace(stream, restart_s=60.0), band)
    found = decided(Kale(), stream, late, band, RNG)
    assert found.workers == planned(believed(stream, late, band)) != after(stream, 500.0, 700.0)[0]
    assert all("lag is 700 s" in reason and "500/s that come" in reason for reason in found.reasons)
    calm = decided(Kale(), replace(stream, backlog=0.0), Measured(350.0, 5.0), band, RNG)
    assert calm.reasons == Kale().schedule(replace(stream, backlog=0.0), RNG).reasons
    quick = decided(Kale(), replace(stream, restart_s=0.1), late, band, RNG)
    assert quick.workers == after(replace(stream, restart_s=0.1), 500.0, 700.0)[0]


def test_what_comes_stands_for_the_forecast_for_some_stops_and_never_lowers_it() -> None:
    stream = view([350.0] * 4 + [600.0] * 6, workers=4, step_s=300.0, restart_s=600.0, expected=np.full(10, 300.0))
    seen = believed(stream, Measured(500.0, 700.0), Band())
    assert seen.demand.tolist() == [500.0] * 4 + [600.0] * 6, "three stops are six steps"
    assert seen.expected is not None and seen.expected.tolist() == [500.0] * 6 + [300.0] * 4
    assert stream.demand[0] == 350.0, "the view itself stays"


def test_workers_that_idle_are_told_of_until_more_is_forecast() -> None:
    stream = view([350.0, 350.0, 900.0], workers=4, step_s=300.0, restart_s=600.0)
    assert believed(stream, Measured(100.0, 0.0), Band()).demand.tolist() == [100.0, 100.0, 900.0]
    assert believed(stream, Measured(350.0, 0.0), Band()) is stream, "within the band"
