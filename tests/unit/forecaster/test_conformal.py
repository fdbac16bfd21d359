import numpy as np
import pytest

from services.forecaster.domain.conformal import adapted, offsets, scale_of, weighted_quantile


def covered(truth: "np.ndarray", level: float, *, power_of_noise: float, seed: int) -> float:
    rng = np.random.default_rng(seed)
    predicted = rng.uniform(10, 200, 2000)
    errors = rng.gamma(2.0, 1.0, 2000) - 2.0  # skewed
    came = predicted + errors * predicted**power_of_noise
    old = slice(0, 400)
    power, sides = offsets(predicted[old, None], came[old, None], np.ones(400), np.ones(1), level=level, floor=1.0)
    scale = scale_of(predicted[400:], power=power, floor=1.0)
    low, high = (predicted[400:] + scale * side[0] for side in sides)
    return float(np.mean((came[400:] >= low) & (came[400:] <= high)))


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_intervals_hold_what_they_promise_for_skewed_errors_that_grow_with_the_rate(level: float, power: float) -> None:
    found = [covered(np.zeros(0), level, power_of_noise=power, seed=seed) for seed in range(5)]
    assert np.mean(found) == pytest.approx(level, abs=0.04)


def test_the_quantile_is_conformal_and_weighted() -> None:
    values = np.arange(1.0, 10.0)
    assert weighted_quantile(values, np.ones(9), 0.9) == 9  # ceil(.9 · 10) = the 9th of 9
    assert weighted_quantile(values, np.ones(9), 0.5) == 5
    assert weighted_quantile(values, np.r_[np.zeros(8), 1.0], 0.1) == 9


def test_misses_widen_and_hits_narrow() -> None:
    rng = np.random.default_rng(0)
    calm, wild = rng.normal(0, 1, 100), rng.normal(0, 4, 100)
    wider = adapted(np.r_[calm, wild], np.ones(200), 0.1)
    narrower = adapted(np.r_[wild, calm], np.ones(200), 0.1)
    assert all(share < 0.08 for share in wider)
    assert all(share > 0.12 for share in narrower)
