import numpy as np

from services.forecaster.domain.unusual import HOLIDAY_WEIGHT, level_shift, weights_of
from tests.unit.forecaster.builders import daily


def test_a_holiday_weighs_less_and_filled_values_nothing() -> None:
    values = daily(24 * 42, noise=1)
    values[24 * 20 : 24 * 21] *= 0.4
    missing = np.zeros(len(values), dtype=bool)
    missing[5:8] = True
    weights = weights_of(values, missing, day=24)
    assert (weights[24 * 20 : 24 * 21] == HOLIDAY_WEIGHT).all()
    assert (weights[5:8] == 0).all()
    assert (weights == HOLIDAY_WEIGHT).sum() == 24


def test_a_level_that_jumped_is_found_where_and_how_far() -> None:
    values = daily(24 * 20, noise=2)
    values[24 * 14 :] *= 1.6
    found = level_shift(values, day=24)
    assert found is not None
    assert abs(found.at - 24 * 14) <= 6
    assert abs(found.factor - 1.6) < 0.1


def test_weekends_growth_and_noise_are_no_shift() -> None:
    for seed in range(5):
        values = daily(24 * 28, seed=seed)
        assert level_shift(values, day=24) is None
        assert level_shift(values * np.linspace(1, 2, len(values)), day=24) is None
        assert level_shift(values[: 24 * 7 - 1], day=24) is None
    assert level_shift(np.zeros(24 * 28), day=24) is None
