from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.runtime.errors import InvalidArgument
from services.forecaster.domain.forecast import Ask, Predicted, answer, wape
from services.forecaster.domain.season import season_for
from services.forecaster.domain.series import Covered, Grid, Point, checked, main_step, regular, snapped

HOUR = 3600.0


def hours(values: list[float | None]) -> list[Point]:
    return [Point(at * HOUR, value) for at, value in enumerate(values) if value is not None]


def test_points_fall_on_their_step_and_the_last_one_of_a_step_wins() -> None:
    points = checked("qps", 60, [Point(119.9, 1), Point(60, 2), Point(0, 3)], now=200)
    assert points == [Point(0, 3), Point(60, 2)]


def test_a_step_of_a_tenth_does_not_lose_values_to_rounding() -> None:
    points = checked("qps", 0.1, [Point(index * 0.1, 1) for index in range(1000)], now=200)
    assert len(points) == 1000


@pytest.mark.parametrize(
    ("series", "step_s", "point", "path"),
    [
        ("", 60, Point(0, 1), "series"),
        ("qps", 0, Point(0, 1), "step_s"),
        ("qps", 0.01, Point(0, 1), "step_s"),
        ("qps", float("nan"), Point(0, 1), "step_s"),
        ("qps", 60, Point(1000 + 3700, 1), "points[0].at"),
        ("qps", 60, Point(0, -1), "points[0].value"),
        ("qps", 60, Point(0, float("nan")), "points[0].value"),
        ("qps", 60, Point(float("inf"), 1), "points[0].at"),
        ("qps", 60, Point(-5, 1), "points[0].at"),
    ],
)
def test_every_wrong_field_of_an_observation_is_named(series: str, step_s: float, point: Point, path: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        checked(series, step_s, [point], now=1000)
    assert [violation.path for violation in caught.value.violations] == [path]


def test_a_clock_that_is_minutes_ahead_is_no_reason_to_refuse() -> None:
    assert checked("qps", 60, [Point(1200, 1)], now=1000) == [Point(1200, 1)]


def test_the_step_that_covers_most_of_the_recent_past_is_the_main_one() -> None:
    day = [Covered(60.0, hour * 3600.0, 3600.0) for hour in range(24)]
    assert main_step([]) is None
    assert main_step([*day, Covered(30.0, 90_000.0, 30.0)]) == 60.0     # one value hides no history
    assert main_step([*day, Covered(30.0, 4 * 86_400.0, 30.0)]) == 60.0     # nor does it after some days of silence
    both = [*day, *(replace(each, step_s=10.0) for each in day)]
    assert main_step(both) == 10.0
    changed = [*day, *(Covered(300.0, each.at + 86_400.0, each.seconds) for each in day)]
    assert main_step(changed) == 300.0      # the other is no longer measured


def test_a_short_gap_is_bridged_by_a_line() -> None:
    grid = regular(hours([1, None, None, 4]), step_s=HOUR, own_step_s=HOUR)
    assert grid.values.tolist() == [1, 2, 3, 4]
    assert grid.filled == 2


def test_a_long_gap_takes_the_day_before() -> None:
    day = [float(hour) for hour in range(24)]
    second: list[float | None] = [*day]
    second[5:12] = [None] * 7
    grid = regular(hours([*day, *second]), step_s=HOUR, own_step_s=HOUR)
    assert grid.values.tolist() == day * 2


def test_a_long_gap_takes_the_week_before_where_there_is_one() -> None:
    values = [float(hour) for hour in range(168)]
    second: list[float | None] = [*values]
    second[30:60] = [None] * 30
    grid = regular(hours([*values, *second]), step_s=HOUR, own_step_s=HOUR)
    assert grid.values.tolist() == values * 2
    assert grid.missing is not None and np.flatnonzero(grid.missing).tolist() == list(range(198, 228))


def test_a_coarser_grid_holds_means() -> None:
    grid = regular(hours([1, 3, 5, None, 9]), step_s=2 * HOUR, own_step_s=HOUR)
    assert grid.values.tolist() == [2, 5, 9]


def test_a_finer_grid_than_was_observed_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="step"):
        regular(hours([1, 2]), step_s=60, own_step_s=HOUR)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.data())
def test_a_grid_has_no_holes_and_no_values_outside_those_seen(values: list[float], data: st.DataObject) -> None:
    kept = sorted(data.draw(st.sets(st.sampled_from(range(len(values))), min_size=1)))
    points = [Point(index * HOUR, values[index]) for index in kept]
    grid = regular(points, step_s=HOUR, own_step_s=HOUR)
    seen = [point.value for point in points]
    assert len(grid.values) == kept[-1] - kept[0] + 1
    assert np.isfinite(grid.values).all()
    assert min(seen) - 1e-6 <= grid.values.min() and grid.values.max() <= max(seen) + 1e-6


@pytest.mark.parametrize(
    ("count", "step_s", "wanted_s", "seasons"),
    [
        (336, HOUR, 0, (24, 168)), (185, HOUR, 0, (24, 168)), (184, HOUR, 0, (24,)), (48, HOUR, 0, (24,)),
        (47, HOUR, 0, ()), (1000, 7000.0, 0, ()), (14, 86_400.0, 0, (7,)), (10, HOUR, 5 * HOUR, (5,)),
        (9, HOUR, 5 * HOUR, ()),
    ],
)  # fmt: skip
def test_the_seasons_are_those_that_the_history_is_long_enough_for(
    count: int, step_s: float, wanted_s: float, seasons: tuple[int, ...]
) -> None:
    assert season_for(np.ones(count), step_s=step_s, wanted_s=wanted_s).all == seasons


def test_three_hours_of_minutes_have_the_season_that_they_show_and_a_wander_has_none() -> None:
    every_ten = 5 + 3 * (np.arange(180) % 10 == 0) + np.random.default_rng(0).normal(0, 0.1, 180)
    assert season_for(every_ten, step_s=60).all == (10,)
    wander = 100 + np.random.default_rng(1).normal(0, 1, 180).cumsum()
    assert season_for(wander, step_s=60).all == ()


def test_a_season_that_is_no_multiple_of_the_step_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="season"):
        season_for(np.ones(100), step_s=HOUR, wanted_s=1.5 * HOUR)


def test_wape_is_the_share_that_is_wrong() -> None:
    assert wape(np.array([10.0, 10.0]), np.array([8.0, 11.0])) == pytest.approx(0.15)
    assert wape(np.zeros(3), np.zeros(3)) == 0
    assert wape(np.zeros(3), np.ones(3)) == 1


def test_rates_are_never_negative_and_the_mean_lies_in_its_interval() -> None:
    grid = Grid(0, HOUR, np.ones(4), missing=np.array([False, True, False, False]))
    predicted = Predicted("m", mean=np.array([-1.0, 5.0]), low=np.array([-9.0, 6.0]), high=np.array([-0.5, 4.0]))
    made = answer(Ask("qps", 2), grid, predicted, season_for(np.ones(4), step_s=HOUR), skipped=0, made=7)
    assert [(point.low, point.mean, point.high) for point in made.points] == [(0, 0, 0), (5, 5, 5)]
    assert made.points[0].at == 4 * HOUR
    assert "1 of 4 values were missing" in made.note


def test_what_is_past_is_not_forecast() -> None:
    grid = Grid(0, HOUR, np.ones(4))
    steady = Predicted("m", np.ones(3), np.ones(3), np.ones(3))
    made = answer(Ask("qps", 1), grid, steady, season_for(np.ones(4), step_s=HOUR), skipped=2, made=7)
    assert [point.at for point in made.points] == [6 * HOUR]


def test_a_forecast_of_a_series_that_went_silent_says_how_old_it_is() -> None:
    """Its steps are past for who asks without a moment, and would be taken for those to come."""
    grid = Grid(0, 60.0, np.ones(10))
    steady = Predicted("m", np.ones(2), np.ones(2), np.ones(2))

    def note(made_s: float, now: float = 0.0) -> str:
        season = season_for(np.ones(10), step_s=60.0)
        return answer(Ask("qps", 1, now=now), grid, steady, season, skipped=1 if now else 0, made=made_s).note

    assert "old" not in note(600.0 + 300)
    assert "the newest rate is 7 min old, and the forecast begins where it ends" in note(600.0 + 420)
    assert "is 65 days old" in note(600.0 + 65 * 86_400)
    assert "old" not in note(1200.0, now=660.0), "who asks of a moment gets that moment"


def test_moments_of_a_step_share_it() -> None:
    assert {snapped(at, 60) for at in (60, 61, 119.9)} == {60}


def test_what_rates_usually_repeat_after_comes_before_week_and_day_where_it_can_be_seen() -> None:
    assert season_for(np.ones(400), step_s=10.0, usual_s=600.0).steps == 60
    assert season_for(np.ones(100), step_s=10.0, usual_s=600.0).steps == 1, "it was not seen twice"
    assert season_for(np.ones(14 * 48), step_s=HOUR, usual_s=600.0).steps == 7 * 24, "shorter than a step"
    assert season_for(np.ones(400), step_s=10.0, usual_s=600.0, wanted_s=300.0).steps == 30
