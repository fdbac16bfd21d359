"""A small forecaster: what comes differs from yesterday's and last week's as it does now, by least squares per lead.

Fitted once, on what came before the calibration days; the quantile and the spread come from its own errors of the last
days that were known at the beginning of each day, relative to the level (split conformal, rolling). It reads nothing
that came after a forecast's origin.
"""

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Floats
from services.brain.simulator.online.forecasts import Given

RIDGE = 1e-4
WEEK = 7


def seasonal(
    rates: Floats, *, per_day: int, first: int, last: int, ahead: int = 72, quantile: float = 0.8, noted_days: int = 7
) -> Given:
    """Forecasts at each step from `first` up to but not `last`, `ahead` steps long; `rates` is (steps,).

    Raises:
        ValueError: fewer than four days come before `first`.
    """
    if first < 4 * per_day:
        raise ValueError(f"a forecast needs 4 days before it, there are {first / per_day:.1f}")
    noted = min(noted_days * per_day, first // 4)
    fitted_until = first - noted
    weekly = fitted_until >= 3 * WEEK * per_day
    longest = (WEEK if weekly else 1) * per_day
    begin = fitted_until - noted if fitted_until - noted > longest else longest
    origins = np.arange(begin, last)
    mean = np.empty((len(origins), ahead))
    for lead in range(ahead):
        fit_at = np.arange(longest, fitted_until - lead)
        weights = _fitted(_features(rates, fit_at, lead, per_day, weekly), rates[fit_at + lead])
        mean[:, lead] = _features(rates, origins, lead, per_day, weekly) @ weights
    mean = np.maximum(mean, 0.02 * float(rates[:fitted_until].mean()))
    upper, spread = _calibrated(rates, mean, begin, first, last, noted=noted, per_day=per_day, quantile=quantile)
    return Given(first, mean[first - begin :], upper, spread)


def _features(rates: Floats, origins: NDArray[np.int64], lead: int, per_day: int, weekly: bool) -> Floats:
    """Of each origin: the last values, and what stood there and at the target a day and a week before, (origins, n)."""
    now = origins - 1
    target = origins + lead
    columns = [np.ones(len(origins)), rates[now], rates[now - 1], rates[now - 5], rates[now - 11]]
    for back in (per_day, WEEK * per_day) if weekly else (per_day,):
        columns += [rates[np.minimum(target, now + back) - back], rates[np.maximum(now - back, 0)]]
    return np.stack(columns, axis=1)


def _fitted(features: Floats, actual: Floats) -> Floats:
    scale = np.maximum(features.std(axis=0), 1e-9)
    scale[0] = 1.0
    scaled = features / scale
    gram = scaled.T @ scaled / len(scaled)
    found: Floats = np.linalg.solve(gram + RIDGE * np.eye(len(gram)), scaled.T @ actual / len(scaled)) / scale
    return found


def _calibrated(
    rates: Floats, mean: Floats, begin: int, first: int, last: int, *, noted: int, per_day: int, quantile: float
) -> tuple[Floats, Floats]:
    """Quantile and spread of the origins from `first` on, from errors that were known by their day's start."""
    ahead = mean.shape[1]
    upper, spread = np.empty((last - first, ahead)), np.empty((last - first, ahead))
    for start in range(first, last, per_day):
        day = slice(start - first, min(start + per_day, last) - first)
        made = mean[start - begin : min(start + per_day, last) - begin]
        for lead in range(ahead):
            known = np.arange(max(begin, start - lead - noted), start - lead)
            told = mean[known - begin, lead]
            errors = (rates[known + lead] - told) / told
            level = min(1.0, quantile * (1 + 1 / len(errors)))
            upper[day, lead] = made[:, lead] * (1 + float(np.quantile(errors, level)))
            spread[day, lead] = made[:, lead] * float(errors.std())
    return np.maximum(upper, 0.0), spread
