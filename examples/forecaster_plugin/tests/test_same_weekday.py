"""The contract that every model must keep, and what this one is for."""

import numpy as np
from same_weekday import SameWeekday

from recmesh.plugins.forecasting import SeriesView
from recmesh.plugins.forecasting_contract import check_forecaster


def view(days: int, *, season: int = 24) -> SeriesView:
    """Hours of a wave, the last day twice as high."""
    values = 100 + 50 * np.sin(2 * np.pi * np.arange(24 * days) / 24)
    return SeriesView(values, 3600.0, (season,) if season < len(values) else (), (1, 2, 4), np.ones(len(values)))


def test_it_keeps_the_contract() -> None:
    """With a season, with hardly one, with none."""
    check_forecaster(SameWeekday, [view(10), view(2), view(1)])


def test_a_wave_goes_on() -> None:
    """As it has always been."""
    (said,) = check_forecaster(SameWeekday, [view(10)])
    assert said is not None
    assert np.allclose(said[0], 100 + 50 * np.sin(2 * np.pi * np.array([0, 1, 3]) / 24))
