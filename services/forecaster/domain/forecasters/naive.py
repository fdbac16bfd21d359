"""The models to beat: the last value, the same moment of the season before, means."""

from dataclasses import dataclass

import numpy as np

from recmesh.plugins.forecasting import Fitted, Floats, Ints, SeriesView, Unfit

RECENT = 12
"""Values that the recent mean is taken over."""


@dataclass(frozen=True, slots=True)
class _Persistence:
    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        return np.repeat(values[origins - 1][:, None], len(leads), axis=1)


@dataclass(frozen=True, slots=True)
class Persistence:
    """The last value, carried forward."""

    name: str = "persistence"
    dear: bool = False

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """Nothing is learned."""
        return _Persistence()


@dataclass(frozen=True, slots=True)
class _Mean:
    window: int

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        total = np.concatenate([[0.0], np.cumsum(values)])
        first = np.maximum(origins - self.window, 0)
        return np.repeat(((total[origins] - total[first]) / (origins - first))[:, None], len(leads), axis=1)


@dataclass(frozen=True, slots=True)
class RecentMean:
    """The mean of the last values."""

    name: str = "recent-mean"
    dear: bool = False

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """Nothing is learned."""
        return _Mean(RECENT)


@dataclass(frozen=True, slots=True)
class LongMean:
    """The mean of all that is known: what a series that is mostly zero comes to."""

    name: str = "mean"
    dear: bool = False

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """The history's length."""
        return _Mean(len(view.values))


@dataclass(frozen=True, slots=True)
class _Seasonal:
    season: int

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        back = -(-leads // self.season) * self.season
        index = origins[:, None] + (leads - 1 - back)[None, :]
        found: Floats = values[np.where(index < 0, origins[:, None] - 1, index)]
        return found


@dataclass(frozen=True, slots=True)
class DayNaive:
    """The same moment of the shortest season before (a day)."""

    name: str = "day-naive"
    dear: bool = False

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """The season's length; Unfit without one."""
        if not view.seasons:
            raise Unfit("no season")
        return _Seasonal(view.seasons[0])


@dataclass(frozen=True, slots=True)
class WeekNaive:
    """The same moment of the longest of several seasons before (a week)."""

    name: str = "week-naive"
    dear: bool = False

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """The season's length; Unfit with fewer than two seasons."""
        if len(view.seasons) < 2:
            raise Unfit("no second season")
        return _Seasonal(view.seasons[-1])
