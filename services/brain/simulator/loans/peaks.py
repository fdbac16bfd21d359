"""Promotion peaks on a series of requests: those of each day, which a forecaster can learn, and some that nobody
announced."""

from dataclasses import dataclass

import numpy as np

from recmesh.plugins.planning import Floats

DAY_MIN = 1440


@dataclass(frozen=True, slots=True)
class Promotions:
    """Begin at a time of day, rise within `ramp_min`, and end as they began."""

    at_min: int = 20 * 60
    lasts_min: int = 90
    ramp_min: int = 5
    factor: float = 1.6
    surprises_per_week: float = 1.0
    surprise_factor: float = 1.25


def with_promotions(rates: Floats, rules: Promotions, rng: np.random.Generator) -> Floats:
    """Per minute, (minutes,), like `rates`: a promotion each day, a little different each time; surprises from the
    generator."""
    made = np.ones(len(rates))
    days = -(-len(rates) // DAY_MIN)
    for day in range(days):
        begins = day * DAY_MIN + rules.at_min + int(rng.integers(-5, 6))
        factor = 1.0 + (rules.factor - 1.0) * float(rng.uniform(0.85, 1.15))
        _lift(made, begins, rules.lasts_min + int(rng.integers(-10, 11)), rules.ramp_min, factor)
        if rng.random() < rules.surprises_per_week / 7:
            begins = day * DAY_MIN + int(rng.integers(0, DAY_MIN))
            _lift(made, begins, int(rng.integers(20, 60)), rules.ramp_min, rules.surprise_factor)
    return rates * made


def _lift(made: Floats, begins: int, lasts: int, ramp: int, factor: float) -> None:
    minutes = np.arange(max(0, begins), min(len(made), begins + lasts))
    if not len(minutes):
        return
    inside = np.minimum(minutes - begins + 1, begins + lasts - minutes) / ramp
    made[minutes] *= 1.0 + (factor - 1.0) * np.clip(inside, 0.0, 1.0)
