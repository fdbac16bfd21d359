"""From a history to a forecast, by the cheap models."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.plugins.forecasting import Fitted, Floats, Forecaster, Ints, SeriesView
from services.forecaster.domain.backtest import origins_for
from services.forecaster.domain.drift import Drift
from services.forecaster.domain.fitting import Asked, Kept, advance, drift_of, fit, is_stale, speak
from services.forecaster.domain.forecast import Predicted, wape
from services.forecaster.domain.history import History, leads_for, truth_at
from services.forecaster.runtimes import models
from services.forecaster.runtimes.models import BUILT_IN
from tests.unit.forecaster.builders import HOUR, daily, history

CHEAP: list[Forecaster] = [made for made in (make() for make in BUILT_IN.values()) if not made.dear]


def fitted(past: History, *, horizon: int = 24, drift: Drift = Drift.NONE) -> Kept:
    return fit(past, horizon=horizon, forecasters=CHEAP, rng=np.random.default_rng(0), drift=drift)


def told(past: History, *, horizon: int = 24, level: float = 0.8) -> Predicted:
    return speak(advance(fitted(past, horizon=horizon), past), past, horizon=horizon, level=level)


def test_a_daily_series_is_forecast_better_than_by_any_repetition_of_it() -> None:
    values = daily(24 * 40)
    cuts = range(24 * 35, 24 * 40 - 24, 7)
    said = np.array([told(history(values[:cut])).mean for cut in cuts])
    truth = np.array([values[cut : cut + 24] for cut in cuts])
    naive = np.array([values[cut - 168 : cut - 144] for cut in cuts])
    assert wape(truth, said) < 0.8 * wape(truth, naive)


def test_intervals_hold_about_what_they_promise() -> None:
    values = daily(24 * 60)
    kept, inside = fitted(history(values[: 24 * 45]), horizon=6), []
    for cut in range(24 * 45, 24 * 60 - 6, 3):
        past = history(values[:cut])
        kept = advance(kept, past)
        made = speak(kept, past, horizon=6, level=0.8)
        inside.append((made.low <= values[cut : cut + 6]) & (values[cut : cut + 6] <= made.high))
    assert 0.72 < np.mean(inside) < 0.88


@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 120), horizon=st.integers(1, 60), seed=st.integers(0, 99), zeros=st.floats(0, 1))
def test_any_history_is_answered_with_finite_values(count: int, horizon: int, seed: int, zeros: float) -> None:
    rng = np.random.default_rng(seed)
    values = np.where(rng.uniform(size=count) >= zeros, rng.poisson(3, count), 0).astype(np.float64)
    missing = rng.uniform(size=count) < 0.2
    made = told(history(values, missing=missing), horizon=horizon)
    for side in (made.mean, made.low, made.high):
        assert side.shape == (horizon,) and np.isfinite(side).all()
    assert made.model


def test_the_future_is_not_looked_at() -> None:
    values = daily(24 * 20)
    past = history(values[: 24 * 18])
    kept = fitted(past)
    one = speak(advance(kept, past), past, horizon=24, level=0.8)
    changed = values.copy()
    changed[24 * 18 :] = 0
    again = speak(advance(fitted(history(changed[: 24 * 18])), past), past, horizon=24, level=0.8)
    assert one.mean.tolist() == again.mean.tolist()


def test_a_history_that_lost_its_beginning_gives_nearly_the_same_forecast() -> None:
    values = daily(24 * 80)
    kept = fitted(history(values))
    shorter = replace(history(values).since(300), seasons=(24, 168))
    whole = speak(advance(kept, history(values)), history(values), horizon=24, level=0.8)
    cut = speak(advance(kept, shorter), shorter, horizon=24, level=0.8)
    assert cut.mean == pytest.approx(whole.mean, rel=0.02)


def test_after_a_lasting_shift_the_older_part_is_brought_to_the_new_level() -> None:
    values = daily(24 * 30, noise=2)
    values[24 * 24 :] *= 2
    past = history(values[: 24 * 29])
    made = told(past)
    assert wape(values[24 * 29 :], made.mean) < 0.06
    kept = fitted(past)
    assert kept.shift is None or kept.shift.factor == pytest.approx(2, rel=0.1)


def test_a_level_that_jumps_after_the_choice_is_a_drift_and_the_new_choice_follows() -> None:
    values = daily(24 * 40, noise=2)
    values[24 * 30 :] = values[24 * 30 :] * 0.3 + 400
    before = history(values[: 24 * 30])
    now = history(values[: 24 * 31])
    kept = advance(fitted(before, horizon=6), now)
    drift = drift_of(kept, now)
    assert drift is not Drift.NONE
    anew = fitted(now, horizon=6, drift=drift)
    made = speak(advance(anew, now), now, horizon=6, level=0.8)
    assert made.drift == drift.value and drift.value in made.note
    assert wape(values[24 * 31 : 24 * 31 + 6], made.mean) < 0.1


def test_a_series_as_it_was_does_not_drift() -> None:
    values = daily(24 * 40)
    kept = fitted(history(values[: 24 * 30]), horizon=6)
    for cut in range(24 * 30, 24 * 40, 5):
        kept = advance(kept, history(values[:cut]))
        assert drift_of(kept, history(values[:cut])) is Drift.NONE


def test_it_is_chosen_anew_when_much_came_or_more_is_asked() -> None:
    values = daily(24 * 40)
    kept = fitted(history(values[: 24 * 30]), horizon=6)
    assert not is_stale(kept, history(values[: 24 * 31]), horizon=6)
    assert is_stale(kept, history(values[: 24 * 31]), horizon=24)
    assert is_stale(kept, history(values[: 24 * 34]), horizon=6)
    assert is_stale(kept, replace(history(values[: 24 * 30]), step_s=60.0), horizon=6)


class _Fails:
    name, dear = "fails", False

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        raise ZeroDivisionError("of its own")


def test_a_model_that_breaks_costs_a_word_and_not_the_forecast() -> None:
    past = history(daily(200))
    kept = fit(past, horizon=2, forecasters=[*CHEAP, _Fails()], rng=np.random.default_rng(0))
    made = speak(kept, past, horizon=2, level=0.8)
    assert "fails failed: ZeroDivisionError: of its own" in made.note


class _BreaksLater:
    """The best there is, up to a moment."""

    name, dear = "breaks-later", False

    def __init__(self, values: Floats, end: int, broken: float | None) -> None:
        self._values, self._end, self._broken = values, end, broken

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        return self

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        if origins.max() > self._end:
            if self._broken is None:
                raise ZeroDivisionError("of its own")
            return np.full((len(origins), len(leads)), self._broken)
        return np.asarray(self._values[origins[:, None] + leads[None, :] - 1])


class _BreaksOnAll(_BreaksLater):
    """It learns from a part, and not from all."""

    name = "breaks-on-all"

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        if len(view.values) == self._end:
            raise ArithmeticError("too much")
        return super().fit(view, rng)


def test_a_chosen_model_that_cannot_learn_from_all_goes_on_as_it_was_tested_and_that_is_told() -> None:
    values, end = daily(24 * 20), 24 * 18
    best, past = _BreaksOnAll(values, end, None), history(values[:end])
    kept = fit(past, horizon=4, forecasters=[*CHEAP, best], rng=np.random.default_rng(0))
    assert kept.choice.used == ["breaks-on-all"]
    assert "breaks-on-all failed: ArithmeticError: too much (on all values" in speak(
        kept, past, horizon=4, level=0.8
    ).note


@pytest.mark.parametrize("broken", [None, np.nan])
def test_a_chosen_model_that_breaks_later_is_left_out_and_the_others_answer(
    broken: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    values, end = daily(24 * 20), 24 * 18
    best = _BreaksLater(values, end, broken)
    kept = fit(history(values[:end]), horizon=4, forecasters=[*CHEAP, best], rng=np.random.default_rng(0))
    assert kept.choice.used == ["breaks-later"]
    now = history(values[: end + 3])
    made = speak(advance(kept, now), now, horizon=4, level=0.8)
    assert made.broken == {"breaks-later"} and "breaks-later failed" in made.note
    assert made.model == "persistence" and made.mean.tolist() == [values[end + 2]] * 4
    monkeypatch.setattr(models, "forecasters", lambda wanted, *, dear: (*CHEAP, best))
    models.adopt("breaks", kept)
    for _ in range(2):
        told = models.predict(Asked("breaks", now, 4))
        assert not told.broken and "breaks-later failed" in told.note
        assert wape(values[end + 3 : end + 7], told.mean) < 0.1


def test_truth_is_unknown_where_nothing_came_or_was_observed() -> None:
    past = History(np.arange(5.0), 100, HOUR, (), np.array([False, True, False, False, False]))
    found = truth_at(past, np.array([101, 104]), (1, 2))
    assert np.array_equal(found, [[np.nan, 2], [4, np.nan]], equal_nan=True)


@given(st.integers(1, 2000), st.sampled_from([(), (24,), (24, 168)]), st.integers(1, 300))
def test_every_backtest_leaves_something_to_learn_from_and_a_value_to_judge_by(
    count: int, seasons: tuple[int, ...], horizon: int
) -> None:
    origins = origins_for(count, seasons=seasons, horizon=horizon)
    assert all(1 <= origin < count for origin in origins)
    assert bool(len(origins)) == (count > 1)


@given(st.integers(1, 5000), st.sampled_from([60.0, 300.0, HOUR, 7000.0]))
def test_leads_reach_the_horizon_and_no_farther_than_half_as_much_again(horizon: int, step_s: float) -> None:
    leads = leads_for(horizon, step_s)
    assert leads[0] == 1 and horizon <= leads[-1] <= 1.5 * horizon + 1
    assert list(leads) == sorted(set(leads)) and len(leads) < 40
