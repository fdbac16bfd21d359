"""Direct multi-step ridge regression on lags and seasonal profiles, fitted for absolute errors.

One regression per lead in `SeriesView.leads`; leads in between take the mean of their neighbours', by distance.
The model for traffic that has a daily or weekly cycle and wanders around it: the regressors hold today's level, what
the profile says of the target, and the two multiplied.
"""

from dataclasses import dataclass

import numpy as np

from recmesh.plugins.forecasting import Fitted, Floats, Ints, SeriesView, Unfit
from services.forecaster.domain.forecasters.features import CYCLES, REMEMBERED, Past, columns

REACH = 20_000
"""Newest steps that are learned from."""
ROWS = 4_000
"""Of them at most, evenly spread."""
RIDGE = 3e-4
"""Of standardised regressors; errors hardly move between 1e-4 and 1e-2."""
ROUNDS = 2
"""Reweighted least squares: enough for the absolute error."""
MEMORY_SEASONS = REMEMBERED + CYCLES + 1
"""Seasons before the first origin that predictions look back on."""
LEAST_ROWS = 24


@dataclass(frozen=True, slots=True)
class _Lagged:
    seasons: tuple[int, ...]
    leads: Ints
    coefficients: Floats
    """(leads, columns)"""
    floor: float
    ceiling: float
    """Predictions beyond this were never near anything seen."""

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        back = MEMORY_SEASONS * max(self.seasons, default=8) + int(leads.max()) + 40
        first = max(0, int(origins.min()) - back)
        values, origins = values[first : int(origins.max())], origins - first
        starts, ahead = (each.ravel() for each in np.meshgrid(origins, leads, indexing="ij"))
        regressors = columns(Past.of(values, self.seasons), starts, ahead, floor=self.floor)
        above = np.clip(np.searchsorted(self.leads, leads), 0, len(self.leads) - 1)
        below = np.clip(np.where(self.leads[above] > leads, above - 1, above), 0, None)
        span = np.maximum(self.leads[above] - self.leads[below], 1)
        share = np.clip((leads - self.leads[below]) / span, 0.0, 1.0)[:, None]
        each = self.coefficients[below] * (1 - share) + self.coefficients[above] * share
        made = np.einsum("olc,lc->ol", regressors.reshape(len(origins), len(leads), -1), each)
        bounded: Floats = np.clip(made, 0.0, self.ceiling)
        return bounded


@dataclass(frozen=True, slots=True)
class Lagged:
    """`most` seasons are looked at, the shortest first; Unfit with fewer."""

    name: str = "lagged"
    most: int = 1
    dear: bool = False

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """One regression per lead. Unfit when fewer rows than regressors are there."""
        if len(view.seasons) < self.most:
            raise Unfit(f"{len(view.seasons)} season(s)")
        seasons = view.seasons[: self.most]
        values, weights = view.values, view.weights
        known = values[weights > 0]
        if not len(known):
            raise Unfit("every value was filled in")
        floor = max(0.05 * float(known.mean()), 1e-12)
        leads = np.array(view.leads, dtype=np.int64)
        past = Past.of(values, seasons)
        learned, kept = [], []
        for lead in leads:
            rows = _rows(weights, seasons, int(lead))
            if len(rows) < LEAST_ROWS:
                break
            regressors = columns(past, rows, np.full(len(rows), lead), floor=floor)
            age = (len(values) - rows) / max(len(values), 1)
            worth = weights[rows + lead - 1] * 0.5 ** (2 * age)
            learned.append(_least_absolute(regressors, values[rows + lead - 1], worth))
            kept.append(lead)
        if not kept:
            raise Unfit(f"{len(values)} values are too few to learn from")
        return _Lagged(seasons, np.array(kept), np.array(learned), floor, 3.0 * float(values.max()) + floor)


def lagged_week() -> Lagged:
    """A day and a week."""
    return Lagged("lagged-week", most=2)


def autoregressive() -> Lagged:
    """No season: the last values alone."""
    return Lagged("autoregressive", most=0)


def _rows(weights: Floats, seasons: tuple[int, ...], lead: int) -> Ints:
    """Origins whose target is worth learning from, after one longest season if at all possible."""
    last = len(weights) - lead
    first = max(max(seasons, default=0), 12)
    if 2 * first > last and len(seasons) > 1:
        first = seasons[0]
    rows = np.arange(max(first, last - REACH), last + 1)
    rows = rows[weights[rows + lead - 1] > 0] if len(rows) else rows
    if len(rows) > ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, ROWS).astype(np.int64)]
    return rows


def _least_absolute(regressors: Floats, target: Floats, worth: Floats) -> Floats:
    """Coefficients, (columns,), with the least Σ worth·|error| + ridge, by iteratively reweighted least squares."""
    centre = np.average(regressors, axis=0, weights=worth)
    spread = np.sqrt(np.average((regressors - centre) ** 2, axis=0, weights=worth))
    spread += 1e-9 * max(1e-12, float(np.abs(centre).max()))
    centre[0], spread[0] = 0.0, 1.0
    scaled = (regressors - centre) / spread
    ridge = np.diag(np.r_[1e-9, np.full(scaled.shape[1] - 1, RIDGE)])
    weights, found = worth / worth.mean(), np.zeros(scaled.shape[1])
    for _ in range(ROUNDS + 1):
        weighted = scaled * weights[:, None]
        found = np.linalg.solve(weighted.T @ scaled / len(target) + ridge, weighted.T @ target / len(target))
        wrong = np.abs(target - scaled @ found)
        least = 0.3 * float(np.median(wrong)) + 1e-9 * (float(np.abs(target).mean()) + 1e-12)
        weights = worth / np.maximum(wrong, least)
        weights /= weights.mean()
    found /= spread
    found[0] -= float(centre @ found)
    return found
