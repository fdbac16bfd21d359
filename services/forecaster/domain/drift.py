"""Whether the series is still the one that the models were chosen for."""

from enum import StrEnum

import numpy as np

from services.forecaster.domain.series import Floats

LEAST = 6
"""New errors before a verdict."""
WORSE = 1.8
"""Times the backtest's mean error."""
Z = 4.0
"""Standard errors beyond the backtest's mean; errors follow each other, so three count as one."""
FOLLOW = 3
ONE_SIDED = 0.7
"""Share of the errors that all point the same way: the level moved."""
UNLIKE = 0.35
"""Fall of the likeness to the season before: its shape moved."""


class Drift(StrEnum):
    """What has changed since the models were chosen."""

    NONE = "none"
    LEVEL = "level"
    SEASON = "season"
    SPREAD = "spread"


def verdict(before: Floats, since: Floats, *, likeness: float = 0.0, likeness_before: float = 0.0) -> Drift:
    """From signed errors of the backtest and of the time since, oldest first.

    `likeness` is the correlation of the last season with the one before, and what it usually was.
    """
    if len(since) < LEAST or len(before) < LEAST:
        return Drift.NONE
    usual, now = float(np.abs(before).mean()), float(np.abs(since).mean())
    deviation = float(np.abs(before).std()) / np.sqrt(max(1.0, len(since) / FOLLOW)) + 1e-12
    if now <= WORSE * usual + 1e-12 or (now - usual) / deviation < Z:
        return Drift.NONE
    if abs(float(since.mean())) >= ONE_SIDED * now:
        return Drift.LEVEL
    return Drift.SEASON if likeness_before - likeness >= UNLIKE else Drift.SPREAD


def likeness_of(values: Floats, season: int) -> tuple[float, float]:
    """Correlation of the last season with the one before; and the median of the same for earlier pairs, up to 7."""
    pairs = min(8, len(values) // season - 1) if season >= 4 else 0
    found = []
    for back in range(pairs):
        end = len(values) - back * season
        last, former = values[end - season : end], values[end - 2 * season : end - season]
        spread = float(last.std() * former.std())
        found.append(float(((last - last.mean()) * (former - former.mean())).mean()) / spread if spread > 0 else 0.0)
    return (found[0], float(np.median(found[1:]))) if len(found) >= 2 else (0.0, 0.0)
