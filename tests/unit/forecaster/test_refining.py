"""Dear models where they pay."""

from collections.abc import Sequence

import numpy as np
import pytest

from recmesh.plugins.forecasting import Fitted, Floats, Forecaster, Ints, SeriesView
from services.forecaster.domain.budget import GAIN, Worth, next_to_refine
from services.forecaster.domain.fitting import Asked
from services.forecaster.domain.forecast import wape
from services.forecaster.runtimes import models
from tests.unit.forecaster.builders import daily, history

DAY = 86_400.0


def test_the_series_with_the_most_traffic_that_is_wrong_comes_first() -> None:
    small, sure, wrong = Worth("small", 10, 0.3), Worth("sure", 1000, 0.01), Worth("wrong", 1000, 0.3)
    assert next_to_refine([small, sure, wrong], now=0) == wrong


def test_what_brought_nothing_and_what_nobody_asks_for_waits() -> None:
    tried = Worth("tried", 1000, 0.3).found(-0.1, 30, now=1000)
    assert next_to_refine([tried], now=1000) is None
    asked = Worth("tried", 1000, 0.3, asked=5, gain=-0.1, seconds=30, tried_at=1000)
    fresh = Worth("fresh", 100, 0.3)
    assert next_to_refine([asked, fresh], now=1000) == fresh
    assert next_to_refine([asked, fresh], now=1000 + 10 * DAY) == asked  # forgotten: the series may have changed


def test_a_trial_is_forgotten_by_half_each_day() -> None:
    tried = Worth("s", 100, 0.5, gain=0.0, seconds=10, tried_at=1000)
    assert tried.per_second(1000) == 0
    assert tried.per_second(1000 + DAY) == pytest.approx(100 * 0.5 * GAIN / 2 / 10)


class _Knows:
    """Dear, and right: it has seen the series without its noise."""

    name, dear = "knows", True

    def __init__(self, truth: Floats) -> None:
        self._truth = truth

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        return _Truth(self._truth)


class _Truth:
    def __init__(self, truth: Floats) -> None:
        self._truth = truth

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        return np.asarray(self._truth[origins[:, None] + leads[None, :] - 1])


def test_a_dear_model_that_is_better_answers_from_then_on_and_one_that_is_not_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = daily(24 * 30)
    asked = Asked("refined", history(values[: 24 * 25]), 12)
    cheap = models.forecasters((), dear=False)

    def known(dear_models: Sequence[Forecaster]) -> None:
        monkeypatch.setattr(
            models, "forecasters", lambda wanted, *, dear: (*cheap, *dear_models) if dear else cheap
        )

    known([_Knows(np.full(len(values), 1.0))])
    refined = models.refine(asked)
    assert refined.kept is None and refined.gain < 0.02 and refined.seconds > 0
    known([_Knows(values)])
    refined = models.refine(asked)
    assert refined.kept is not None and refined.gain > 0.9
    models.adopt("refined", refined.kept)
    told = models.predict(asked)
    assert "knows" in told.model
    assert wape(values[24 * 25 : 24 * 25 + 12], told.mean) < 0.001
