"""The figure's arithmetic against what is known of the real sets; and that the choice beats what is naive there."""

import numpy as np
import pytest

from bench.criteo import DataMissing
from bench.forecast import NAIVE, Scores, _history, _leads, _origins, _score_alone
from bench.workloads.traffic import Traffic, sets
from recmesh.plugins.forecasting import Floats, Ints, SeriesView
from services.forecaster.domain.fitting import Asked
from services.forecaster.domain.forecast import wape
from services.forecaster.runtimes import models


@pytest.fixture(scope="module")
def by_name() -> dict[str, Traffic]:
    try:
        return {each.name: each for each in sets()}
    except DataMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize(
    ("name", "lead", "golden"),
    [("nyc_taxi", 1, (0.085, 0.243, 0.197)), ("server_res_eth1out_curve_6", 6, (0.088, 0.105, 0.119))],
)
def test_naive_errors_are_those_that_are_known(
    by_name: dict[str, Traffic], name: str, lead: int, golden: tuple[float, float, float]
) -> None:
    traffic = by_name[name]
    origins: Ints = np.arange(round(0.8 * len(traffic.values)), len(traffic.values) - lead + 1)
    truth = traffic.values[origins + lead - 1]
    scores = Scores.empty([lead], truth[:, None])
    for model in NAIVE:
        view = _history(traffic, int(origins[0]))
        fitted = models.BUILT_IN[model]().fit(
            _view(view.values, traffic.step_s, view.seasons), np.random.default_rng(0)
        )
        scores.others[model] = fitted.rolling(traffic.values, origins, np.array([lead]))
    found = [wape(truth, scores.others[model][:, 0]) for model in NAIVE]
    assert found == pytest.approx(golden, abs=0.0015)


def _view(values: Floats, step_s: float, seasons: tuple[int, ...]) -> SeriesView:
    return SeriesView(values, step_s, seasons, (1, 6), np.ones(len(values)))


def test_sets_that_repeat_are_told_from_those_that_do_not(by_name: dict[str, Traffic]) -> None:
    assert {name for name, each in by_name.items() if not each.repeats} == {
        "Twitter_volume_AMZN", "Twitter_volume_GOOG", "ec2_network_in_5abac7", "elb_request_count_8c0756",
        "purchase-01", "purchase-05", "purchase-06",
    }  # fmt: skip
    assert by_name["nyc_taxi"].autocorrelation(86_400) == pytest.approx(0.80, abs=0.01)
    assert by_name["hourly_bikesharing"].autocorrelation(7 * 86_400) == pytest.approx(0.87, abs=0.01)


@pytest.mark.parametrize("name", ["nyc_taxi", "purchase-03"])
def test_the_choice_is_a_fifth_better_than_the_best_naive(by_name: dict[str, Traffic], name: str) -> None:
    traffic = by_name[name]
    leads, origins = _leads(traffic), _origins(traffic, 30)
    scores = Scores.empty(leads, traffic.values[origins[:, None] + np.array(leads)[None, :] - 1])
    for row, origin in enumerate(origins.tolist()):
        told = models.predict(Asked(f"test {name}", _history(traffic, origin), leads[-1]))
        scores.chosen[row] = told.mean[np.array(leads) - 1]
    for model in NAIVE:
        _score_alone(traffic, scores, models.BUILT_IN[model](), 30, {})
    best = np.min([scores.wapes(scores.others[model]) for model in NAIVE], axis=0)
    assert (np.array(scores.wapes(scores.chosen)) < 0.8 * best).all()
