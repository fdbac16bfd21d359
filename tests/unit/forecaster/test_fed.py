"""The transformer learns, and says the same again."""

import numpy as np
import pytest

from recmesh.plugins.forecasting import SeriesView
from services.forecaster.domain.forecast import wape
from services.forecaster.runtimes.fed import Fed


def view() -> SeriesView:
    place = np.arange(1600)
    values = 100 + 40 * np.sin(2 * np.pi * place / 24) + 20 * np.sin(2 * np.pi * place / 7)  # the 7 is no season of it
    return SeriesView(values, 3600.0, (24,), (1, 6), np.ones(1600))


@pytest.mark.slow
def test_it_learns_what_the_seasons_do_not_say_and_is_deterministic_under_a_seed() -> None:
    origins, leads = np.arange(1400, 1580), np.array([1, 3, 6])
    truth = view().values[origins[:, None] + leads[None, :] - 1]
    naive = wape(truth, view().values[origins[:, None] + leads[None, :] - 1 - 24])
    model = Fed(steps=60)
    said = model.fit(view(), np.random.default_rng(0)).rolling(view().values, origins, leads)
    assert wape(truth, said) < 0.7 * naive
    again = model.fit(view(), np.random.default_rng(0)).rolling(view().values, origins, leads)
    assert np.array_equal(said, again)


def test_beyond_its_output_the_season_before_goes_on() -> None:
    fitted = Fed(steps=1).fit(view(), np.random.default_rng(0))
    said = fitted.rolling(view().values, np.array([1500]), np.array([97, 120]))
    # 97 steps ahead is the 1st of the 5th day, 120 the 24th of it: the newest known moments of the same hours
    assert said[0].tolist() == view().values[[1500 - 24, 1500 - 1]].tolist()


def test_on_two_weeks_of_minutes_it_ends_when_its_time_is_over() -> None:
    minutes = np.arange(14 * 1440)
    values = 100 + 60 * np.sin(2 * np.pi * minutes / 1440)
    long = SeriesView(values, 60.0, (1440, 7 * 1440), (1, 10, 60), np.ones(len(values)), seconds=1e-6)
    fitted = Fed(steps=10**9).fit(long, np.random.default_rng(0))       # so many take years
    said = fitted.rolling(values, np.array([len(values)]), np.array([1, 10, 60]))
    assert wape(values[:60][[0, 9, 59]], said[0]) < 0.05, "untrained it repeats the season before, at today's level"
