"""Series that are mostly zero: how much comes at a time, and how often.

statsforecast has both methods; these few lines spare the cheap path its import of seconds, and say the level at every
moment in one pass.
"""

from dataclasses import dataclass

import numpy as np

from recmesh.plugins.forecasting import Fitted, Floats, Ints, SeriesView, Unfit

LEAST_ZEROS = 0.3
SIZE_STEP, CHANCE_STEP = 0.1, 0.1
"""Smoothing constants; .1 is Croston's, and statsforecast's."""
NEWEST = 5_000
"""Steps that are looked back on."""


@dataclass(frozen=True, slots=True)
class _Levels:
    by_interval: bool

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        first = max(0, int(origins.min()) - NEWEST)
        levels = (croston_sba if self.by_interval else tsb)(values[first : int(origins.max())])
        return np.repeat(levels[origins - 1 - first][:, None], len(leads), axis=1)


@dataclass(frozen=True, slots=True)
class CrostonSba:
    """Croston's method with Syntetos and Boylan's correction (2005)."""

    name: str = "croston-sba"
    dear: bool = False

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """Unfit for series that are rarely zero."""
        return _fitted(view, by_interval=True)


@dataclass(frozen=True, slots=True)
class Tsb:
    """Teunter, Syntetos and Babai (2011): the chance of a value fades while none comes."""

    name: str = "tsb"
    dear: bool = False

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """Unfit for series that are rarely zero."""
        return _fitted(view, by_interval=False)


def _fitted(view: SeriesView, *, by_interval: bool) -> Fitted:
    zeros = float((view.values == 0).mean())
    if zeros < LEAST_ZEROS:
        raise Unfit(f"{zeros:.0%} zeros")
    return _Levels(by_interval)


def croston_sba(values: Floats) -> Floats:
    """The forecast after each value, (n,): (1 − α/2)·size/interval; 0 before the first that is not 0."""
    made, size, interval, since = np.zeros(len(values)), 0.0, 0.0, 1
    for at, value in enumerate(values.tolist()):
        if value > 0:
            size = value if not size else size + SIZE_STEP * (value - size)
            interval = float(since) if not interval else interval + SIZE_STEP * (since - interval)
            since = 1
        else:
            since += 1
        made[at] = (1 - SIZE_STEP / 2) * size / interval if interval else 0.0
    return made


def tsb(values: Floats) -> Floats:
    """The forecast after each value, (n,): size × chance; 0 before the first that is not 0."""
    made, size, chance = np.zeros(len(values)), 0.0, float(values[0] > 0) if len(values) else 0.0
    for at, value in enumerate(values.tolist()):
        if value > 0:
            size = value if not size else size + SIZE_STEP * (value - size)
        if at:
            chance += CHANCE_STEP * (float(value > 0) - chance)
        made[at] = size * chance
    return made
