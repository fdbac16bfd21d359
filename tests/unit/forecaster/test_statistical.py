"""Our reading of statsforecast's states, against its own forecasts."""

import numpy as np
import pytest

from recmesh.plugins.forecasting import SeriesView
from services.forecaster.domain.forecasters.intermittent import croston_sba, tsb
from services.forecaster.runtimes.statistical import AutoEts, Mstl, Pattern, ets_mean
from tests.unit.forecaster.builders import daily

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("form", "damped"),
    [
        ("ANN", False), ("AAN", False), ("AAN", True), ("ANA", False), ("AAA", True), ("MNM", False), ("MAM", False),
    ],
)  # fmt: skip
def test_forecasts_from_states_are_statsforecast_s_own(form: str, damped: bool) -> None:
    from statsforecast.models import AutoETS

    values = daily(24 * 6) + np.arange(144) * 0.2
    model = AutoETS(season_length=24 if form[2] != "N" else 1, model=form, damped=damped).fit(values)
    found = model.model_
    phi = float(found["par"][3]) if damped else 1.0
    leads = np.array([1, 2, 23, 24, 25, 50])
    made = ets_mean(np.asarray(found["states"])[-1:], leads, found["components"], int(found["m"]), phi)
    # statsforecast sums the powers of a damped trend as R's forecast does: from φ + φ on, where the book has φ + φ²
    assert made[0] == pytest.approx(model.predict(h=50)["mean"][leads - 1], rel=1e-3 if damped else 1e-6)


def test_what_repeats_is_taken_off_and_put_back() -> None:
    wave = 100 + 30 * np.sin(2 * np.pi * np.arange(48 * 9) / 48)
    for model in (AutoEts(), Mstl()):
        view = SeriesView(wave + RNG.normal(0, 0.1, len(wave)), 1800.0, (48,), (1, 24), np.ones(len(wave)))
        fitted = model.fit(view, np.random.default_rng(0))
        said = fitted.rolling(view.values, np.array([400]), np.array([1, 12, 24]))
        assert said[0] == pytest.approx(wave[[400, 411, 423]], abs=2.0), model.name
    assert Pattern.of(wave, 48).at(np.array([12]))[0] == pytest.approx(30, abs=0.1)


def test_intermittent_levels_are_statsforecast_s() -> None:
    from statsforecast.models import TSB, CrostonSBA

    values = np.where(RNG.uniform(size=200) < 0.3, RNG.poisson(5, 200) + 1.0, 0.0)
    assert croston_sba(values)[-1] == pytest.approx(CrostonSBA().forecast(y=values, h=1)["mean"][0], rel=1e-4)
    assert tsb(values)[-1] == pytest.approx(TSB(alpha_d=0.1, alpha_p=0.1).forecast(y=values, h=1)["mean"][0], rel=1e-4)
    assert croston_sba(np.zeros(5)).tolist() == tsb(np.zeros(5)).tolist() == [0] * 5
