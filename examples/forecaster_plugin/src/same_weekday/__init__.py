"""A forecast model for recmesh: the median of the same moments of earlier seasons, moved to today's level."""

from dataclasses import dataclass

import numpy as np

from recmesh.plugins.forecasting import Fitted, Floats, Ints, SeriesView, Unfit

CYCLES = 4
RECENT = 6


@dataclass(frozen=True)
class _Median:
    season: int

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        """(origins, leads)"""
        made = np.empty((len(origins), len(leads)))
        for row, origin in enumerate(origins.tolist()):
            known = values[:origin]
            recent = np.arange(max(0, origin - RECENT), origin)
            level = known[recent].mean() - self._usual(known, recent).mean()
            made[row] = np.maximum(self._usual(known, origin - 1 + leads) + level, 0.0)
        return made

    def _usual(self, known: Floats, moments: Ints) -> Floats:
        """Median of the same moments of the seasons before that are known; of the first value where none is."""
        ahead = np.maximum(moments - len(known), -1) // self.season + 1
        back = (np.maximum(ahead, 1)[None, :] + np.arange(CYCLES)[:, None]) * self.season
        found: Floats = np.median(known[np.clip(moments[None, :] - back, 0, None)], axis=0)
        return found


@dataclass(frozen=True)
class SameWeekday:
    """The longest season is the week, where the history has one."""

    name: str = "same-weekday"
    dear: bool = False

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """Unfit without a season."""
        if not view.seasons:
            raise Unfit("it has no season")
        return _Median(view.seasons[-1])
