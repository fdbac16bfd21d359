"""Intervals of series whose errors tell too little: sporadic ones, and those of few values."""

import numpy as np
import pytest

from services.forecaster.domain.empirical import errors_for, guessed, is_sporadic
from services.forecaster.domain.forecast import Ask, Forecast, ForecastPoint, Predicted, answer
from services.forecaster.domain.scaling import high_quantile
from services.forecaster.domain.season import season_for
from services.forecaster.domain.series import Floats, Grid
from tests.unit.forecaster.builders import daily, history
from tests.unit.forecaster.test_fitting import told

MINUTE = 60.0


def sporadic(count: int, *, share: float, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    made: Floats = np.where(rng.uniform(size=count) < share, rng.gamma(2.0, 10.0, count), 0.0)
    return made


def answered(values: Floats, made: Predicted) -> Forecast:
    grid, horizon = Grid(0.0, MINUTE, values), len(made.mean)
    return answer(Ask("s", horizon), grid, made, season_for(values, step_s=MINUTE), skipped=0, made=0.0)


@pytest.mark.parametrize(("share", "level"), [(0.03, 0.8), (0.3, 0.8), (0.03, 0.98)])
def test_the_interval_of_a_sporadic_series_holds_what_it_promises(share: float, level: float) -> None:
    values = sporadic(6000, share=share)
    past, rest = values[:4000], values[4000:]
    points = answered(past, told(history(past, step_s=MINUTE), horizon=30, level=level)).points
    assert {point.low for point in points} == {0.0}
    assert len({point.high for point in points}) == 1       # it does not jump from step to step
    inside = float(((rest >= points[0].low) & (rest <= points[0].high)).mean())
    assert level - 0.03 <= inside <= max(level, 1 - share) + (1 - level) / 2 + 0.03
    assert min(point.mean for point in points) > 0


def test_a_sporadic_series_of_which_nine_of_ten_are_zero_has_an_interval_of_zeros() -> None:
    values = sporadic(4000, share=0.03)
    made = answered(values, told(history(values, step_s=MINUTE), horizon=4))
    assert {(point.low, point.high) for point in made.points} == {(0.0, 0.0)}
    assert "sporadic" in made.note
    assert high_quantile(made.points[0], level=0.8, quantile=0.9) == 0.0
    assert high_quantile(made.points[0], level=0.8, quantile=0.7) == 0.0
    assert high_quantile(made.points[0], level=0.8, quantile=0.5) == made.points[0].mean


def test_a_quantile_is_of_the_mean_where_the_interval_holds_it() -> None:
    assert high_quantile(ForecastPoint(0, 5.0, 0.0, 9.0), level=0.8, quantile=0.9) == 9.0


def test_zeros_that_can_be_foreseen_are_not_sporadic() -> None:
    nights = np.where(np.arange(480) % 24 < 14, 0.0, 50.0)
    assert not is_sporadic(history(nights))
    bursts = np.zeros(3000)
    bursts[1000:1400] = 80.0
    assert not is_sporadic(history(bursts, step_s=MINUTE))
    assert not is_sporadic(history(daily(500)))
    assert not is_sporadic(history(np.r_[np.zeros(9), 1.0], step_s=MINUTE))     # too few to tell
    assert is_sporadic(history(np.zeros(100), step_s=MINUTE))


def test_the_lower_end_is_zero_where_nothing_comes_between_it_and_the_least_that_came() -> None:
    rng = np.random.default_rng(0)      # of which intervals from errors begin at .02, .13 and 1.07
    bursts, sizes = np.repeat(rng.uniform(size=150) < 0.1, 20), np.repeat(rng.uniform(20, 60, 150), 20)
    values = np.where(bursts, sizes, 0.0)
    assert not is_sporadic(history(values, step_s=MINUTE))
    low = told(history(values[:2950], step_s=MINUTE), horizon=10).low
    assert ((low <= 0) | (low >= 20)).all()


@pytest.mark.parametrize("count", range(1, 11))
def test_an_interval_of_few_values_has_two_sides_and_says_that_it_is_a_guess(count: int) -> None:
    values = np.where(np.arange(count) % 2, 101.0, 100.0)
    made = told(history(values, step_s=MINUTE), horizon=3)
    assert (made.low < made.mean - 1.0).all() and (made.high > made.mean + 1.0).all()
    assert "is a guess" in made.note


def test_guesses_narrow_with_values_and_errors_and_widen_with_the_level() -> None:
    def half(count: int, *, level: float = 0.8, errors: int = 0) -> float:
        return float(guessed(np.full(count, 100.0), np.full(1, 100.0), MINUTE, level=level, errors=errors)[0])

    assert half(1) == pytest.approx(50.0)
    assert half(1) > half(2) > half(8) > half(8, errors=4) > half(8, errors=errors_for(0.8)) == 0.0
    assert half(1, level=0.98) > half(1) > half(1, level=0.6)


def test_guesses_follow_the_scatter_of_values_and_of_counts() -> None:
    wild = guessed(np.array([10.0, 200.0, 90.0]), np.full(1, 100.0), MINUTE, level=0.8, errors=0)
    assert wild[0] > 150
    silent = guessed(np.zeros(3), np.zeros(2), MINUTE, level=0.8, errors=0)
    assert (silent > 0).all() and (silent < 0.05).all()     # about one event in a minute


def test_enough_errors_are_those_that_hold_the_quantile() -> None:
    assert [errors_for(level) for level in (0.5, 0.8, 0.9, 0.999)] == [8, 9, 19, 30]


def test_a_daily_series_of_weeks_is_no_guess() -> None:
    assert "guess" not in told(history(daily(24 * 20)), horizon=6).note
