"""Series of a known make."""

import numpy as np

from services.forecaster.domain.fitting import History
from services.forecaster.domain.season import season_for
from services.forecaster.domain.series import Bools, Floats

HOUR = 3600.0


def daily(count: int, *, seed: int = 0, noise: float = 3.0, level: float = 100.0, step_s: float = HOUR) -> Floats:
    """A day's wave with quiet weekends, and noise that has a memory."""
    rng = np.random.default_rng(seed)
    place = np.arange(count) * step_s / 86_400
    shape = 1 + 0.5 * np.sin(2 * np.pi * place) - 0.2 * (place % 7 >= 5)
    wander = np.zeros(count)
    for at in range(1, count):
        wander[at] = 0.7 * wander[at - 1] + rng.normal(0, noise)
    made: Floats = np.maximum(level * shape + wander, 0.0)
    return made


def history(values: Floats, *, step_s: float = HOUR, start: int = 0, missing: Bools | None = None) -> History:
    return History(values, start, step_s, season_for(values, step_s=step_s).all, missing)
