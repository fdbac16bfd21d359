"""Intervals from the values themselves, where errors of forecasts tell too little: sporadic series, and short ones."""

import math
from statistics import NormalDist

import numpy as np
from scipy.special import stdtrit

from services.forecaster.domain.conformal import LEAST_ERRORS, weighted_quantile
from services.forecaster.domain.history import History
from services.forecaster.domain.series import Bools, Floats

MOSTLY_ZERO = 0.5
"""Share of zeros from which on a series is judged by squared errors."""
RECENT = 10_000
"""Newest steps that a sporadic series' interval is made of."""
LEAST_VALUES = 30
"""With fewer, nothing is called sporadic."""
FORESEEN = 0.5
"""Share of the variance of being zero that the step before, or the moment of the day, may explain of a sporadic one."""
ENOUGH_ERRORS = 30
"""So many suffice for any level."""
UNKNOWN = 0.5
"""Half the width of an interval of .8 after one value, as a share of it; it shrinks with the root of their number."""
MOST_T = 6.0
"""Standard deviations: two values must not ask for hundreds of replicas."""


def is_sporadic(history: History) -> bool:
    """Whether the newest values are mostly zero, and neither the value before nor the moment of the season tells when.

    Of such a series hardly any error is below the mean's own height, so that intervals from errors leave out the zero.
    """
    values, seen = history.values[-RECENT:], history.observed[-RECENT:]
    if seen.sum() < LEAST_VALUES:
        return False
    active = (values > 0).astype(np.float64)
    share = float(active[seen].mean())
    if 1 - share <= MOSTLY_ZERO:
        return False
    if share == 0:
        return True
    both = seen[1:] & seen[:-1]
    if both.sum() >= LEAST_VALUES:
        before, after = active[:-1][both] - share, active[1:][both] - share
        if float((before * after).mean()) > FORESEEN * share * (1 - share):
            return False
    return all(_told_by_moment(active, seen, season) <= FORESEEN for season in history.seasons)


def _told_by_moment(active: Floats, seen: Bools, season: int) -> float:
    """Share of the variance that a profile of the season explains, less what it does of chance."""
    place = np.arange(len(active))[seen] % season
    count = np.bincount(place, minlength=season)
    profile = np.bincount(place, weights=active[seen], minlength=season)[count > 0] / count[count > 0]
    mean, by_chance = float(active[seen].mean()), float((count > 0).sum()) / len(place)
    explained = float(np.average((profile - mean) ** 2, weights=count[count > 0])) / (mean * (1 - mean))
    return (explained - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0


def of_values(history: History, *, level: float) -> tuple[float, float]:
    """The quantiles (1 ∓ level)/2 of the newest values, the oldest of which count half: the same for every lead."""
    values, seen = history.values[-RECENT:], history.observed[-RECENT:]
    weights = 0.5 ** (np.arange(len(values))[::-1] / max(1, len(values) - 1))[seen]
    share = (1 + level) / 2
    return (-weighted_quantile(-values[seen], weights, share), weighted_quantile(values[seen], weights, share))


def errors_for(level: float) -> int:
    """How many errors make an interval: the (1 + level)/2 quantile is among them, and they are no handful."""
    return min(max(math.ceil(2 / (1 - level) - 1e-9) - 1, LEAST_ERRORS), ENOUGH_ERRORS)


def guessed(known: Floats, mean: Floats, step_s: float, *, level: float, errors: int) -> Floats:
    """Half the width of an interval, (steps,), while only so many `errors` are known; 0 when they suffice.

    The largest of a prediction interval of values that scatter as the `known` ones do (Student's t), what a count of
    so many events scatters by (Poisson; rates are per second), and a share of the rate.
    """
    lacks = 1 - errors / errors_for(level)
    if lacks <= 0:
        return np.zeros(len(mean))
    count = max(1, len(known))
    end = NormalDist().inv_cdf((1 + level) / 2)
    rate = np.maximum(mean, float(known.mean()) if len(known) else 0.0)
    spread = 0.0
    if count > 1:
        t = min(float(stdtrit(count - 1, (1 + level) / 2)), MOST_T)
        spread = t * float(known.std(ddof=1)) * math.sqrt(1 + 1 / count)
    counts = end * np.sqrt(rate * step_s + 1) / step_s
    share = UNKNOWN * end / NormalDist().inv_cdf(0.9) / math.sqrt(count) * rate
    made: Floats = math.sqrt(lacks) * np.maximum(np.maximum(counts, share), spread)
    return made
