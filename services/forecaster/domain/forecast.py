"""What a forecast says, and how wrong the last ones were."""

import math
from dataclasses import dataclass, replace

import numpy as np

from recmesh.runtime.errors import InvalidArgument, Violation
from services.forecaster.domain.season import Season
from services.forecaster.domain.series import Floats, Grid

MAX_HORIZON = 10_000
DEFAULT_HORIZON = 24
DEFAULT_LEVEL = 0.8
MIN_LEVEL, MAX_LEVEL = 0.5, 0.999
OLD_STEPS, OLD_S = 6, 60.0
"""A history that ended longer ago (the more of the two) is told to be old: rates may be heard a few steps late."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What was asked; `horizon` steps from the end of the history on."""

    series: str
    horizon: int
    step_s: float = 0.0
    level: float = 0.8
    now: float = 0.0
    season_s: float = 0.0


def checked_ask(ask: Ask) -> Ask:
    """With defaults for what was left out; InvalidArgument names each field that is wrong."""
    filled = replace(ask, horizon=ask.horizon or DEFAULT_HORIZON, level=ask.level or DEFAULT_LEVEL)
    violations = []
    if not filled.series:
        violations.append(Violation("series", "is empty"))
    if not 1 <= filled.horizon <= MAX_HORIZON:
        violations.append(Violation("horizon", f"{filled.horizon} is not in 1..{MAX_HORIZON}"))
    if not MIN_LEVEL <= filled.level <= MAX_LEVEL:
        violations.append(Violation("level", f"{filled.level:g} is not in {MIN_LEVEL:g}..{MAX_LEVEL:g}"))
    for name in ("step_s", "now", "season_s"):
        value = getattr(filled, name)
        if not math.isfinite(value) or value < 0:
            violations.append(Violation(name, f"{value} is not a number from 0 up"))
    if violations:
        raise InvalidArgument("cannot forecast", violations=violations)
    return filled


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """Mean rate over [at, at + step), and the interval that holds what comes with the asked probability.

    Of sporadic series the mean may lie above `high`.
    """

    at: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """An answer."""

    series: str
    step_s: float
    points: tuple[ForecastPoint, ...]
    model: str
    season_s: float
    level: float
    history: int
    error_wape: float
    note: str
    made: float = 0.0
    drift: str = "none"
    """What has changed since the models were chosen: none, level, season or spread."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """The models' word on the next steps."""

    model: str
    """Those that answered, joined by `+`, in alphabetical order."""
    mean: Floats
    low: Floats
    high: Floats
    error: float = 1.0
    """WAPE of the same models in the rolling-origin test and since."""
    drift: str = "none"
    note: str = ""
    broken: frozenset[str] = frozenset()
    """Chosen models that broke, and had no part in it."""
    sporadic: bool = False
    """The interval is one of values, mostly zeros, and need not hold the mean."""


def wape(actual: Floats, predicted: Floats) -> float:
    """Σ|a − f| / Σ|a|; 0 when both are all zero, and 1 when only the truth is (or nothing is known)."""
    if not len(actual):
        return 1.0
    total = float(np.abs(actual).sum())
    wrong = float(np.abs(actual - predicted).sum())
    if total == 0:
        return 0.0 if wrong == 0 else 1.0
    return wrong / total


def answer(ask: Ask, grid: Grid, predicted: Predicted, season: Season, *, skipped: int, made: float) -> Forecast:
    """Rates are never negative, and the mean lies in its interval but for sporadic series, of which most values may be
    zeros while the mean is not. The first `skipped` steps are past. `made`: when it is answered, in unix seconds."""
    low = np.clip(predicted.low, 0.0, None)
    mean = np.clip(predicted.mean, 0.0, None)
    high = np.clip(predicted.high, 0.0, None)
    if not predicted.sporadic:
        low, high = np.minimum(low, mean), np.maximum(high, mean)
    points = tuple(
        ForecastPoint(
            at=grid.end + step * grid.step_s,
            mean=float(mean[step]),
            low=float(low[step]),
            high=float(high[step]),
        )
        for step in range(skipped, len(mean))
    )
    notes = [season.note]
    if predicted.note:
        notes.append(predicted.note)
    if grid.filled:
        notes.append(f"{grid.filled} of {len(grid.values)} values were missing and are filled in")
    if grid.coarse is not None:
        notes.append(f"{int(grid.coarse.sum())} older values are part of longer means, and not tested on")
    if skipped:
        notes.append(f"the history ends {skipped} step(s) before now")
    elif not ask.now and made - grid.end > max(OLD_STEPS * grid.step_s, OLD_S):
        notes.append(f"the newest rate is {_told_s(made - grid.end)} old, and the forecast begins where it ends")
    return Forecast(
        series=ask.series,
        step_s=grid.step_s,
        points=points,
        model=predicted.model,
        season_s=season.seconds(grid.step_s),
        level=ask.level,
        history=len(grid.values),
        error_wape=predicted.error,
        note="; ".join(notes),
        made=made,
        drift=predicted.drift,
    )


def _told_s(age_s: float) -> str:
    minutes = age_s / 60
    if minutes < 120:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 48 * 60 else f"{minutes / 1440:,.0f} days"
