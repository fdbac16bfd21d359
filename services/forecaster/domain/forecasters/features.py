"""What the lagged regression looks at: the last values, and what followed them a season before.

Row i stands for origin t_i and lead h_i: everything is known before t_i, and the target is value t_i + h_i - 1.
"""

from dataclasses import dataclass

import numpy as np

from recmesh.plugins.forecasting import Floats, Ints

LAST = (0, 1, 2, 3, 5, 8)
WINDOWS = (4, 12, 36)
CYCLES = 3
"""Seasons back that are looked at one by one."""
MEMORY = 0.25
"""Of the profile, an exponential mean over the same moments of earlier seasons: what each older one weighs less."""
REMEMBERED = 8
"""Seasons of the profile."""
RATIOS = (1, 4, 12)
"""Windows over which today is compared with the profile."""
NEIGHBOURS = (-2, -1, 1, 2)


@dataclass(frozen=True, slots=True)
class Sums:
    """Means of any window in constant time."""

    total: Floats

    @staticmethod
    def of(values: Floats) -> "Sums":
        """Of a series."""
        return Sums(np.concatenate([[0.0], np.cumsum(values)]))

    def mean(self, lo: Ints, hi: Ints) -> Floats:
        """Over [lo, hi), clipped to what there is; of one value at least."""
        last = len(self.total) - 1
        lo = np.clip(lo, 0, last - 1)
        hi = np.clip(hi, lo + 1, last)
        found: Floats = (self.total[hi] - self.total[lo]) / (hi - lo)
        return found


def profile(values: Floats, season: int) -> Floats:
    """Mean over the same moments of up to `REMEMBERED` seasons up to each moment, newer ones weighing more, (n,).

    It ends at a fixed age, so that a history that lost its beginning has the same profile.
    """
    made, total = np.zeros(len(values)), np.zeros(len(values))
    for age in range(min(REMEMBERED, -(-len(values) // season))):
        weight, first = (1 - MEMORY) ** age, age * season
        made[first:] += weight * values[: len(values) - first]
        total[first:] += weight
    return made / total


@dataclass(frozen=True, slots=True)
class Past:
    """A series, its windows and its profiles, made once for all leads."""

    values: Floats
    sums: Sums
    usual: tuple[tuple[int, Floats, Sums], ...]
    """(season, profile, its sums), shortest season first."""

    @staticmethod
    def of(values: Floats, seasons: tuple[int, ...]) -> "Past":
        """Of a series."""
        profiles = [(season, profile(values, season)) for season in seasons]
        return Past(values, Sums.of(values), tuple((season, made, Sums.of(made)) for season, made in profiles))


def columns(past: Past, origins: Ints, leads: Ints, *, floor: float) -> Floats:
    """The regressors, (rows, columns); the first is 1. `floor` keeps ratios to a profile near 0 finite."""
    values, sums = past.values, past.sums
    last, target = origins - 1, origins + leads - 1

    def at(series: Floats, index: Ints) -> Floats:
        """Never later than the last known value; before the first, the first."""
        found: Floats = series[np.clip(np.minimum(index, last), 0, None)]
        return found

    made = [np.ones(len(origins))]
    made += [at(values, last - back) for back in LAST]
    made += [sums.mean(origins - window, origins) for window in WINDOWS]
    for season, usual, usual_sums in past.usual:
        back = -(-leads // season) * season
        cycles = [at(values, target - back - cycle * season) for cycle in range(CYCLES)]
        made += cycles
        made += [at(values, last - back - cycle * season) for cycle in range(CYCLES)]
        made.append(np.median(cycles, axis=0))  # one holiday among the seasons before does not move it
        made += [at(values, target - back + near) for near in NEIGHBOURS]
        wide = max(1, season // 96)
        first = np.minimum(target - back - wide, last - 2 * wide)
        made.append(sums.mean(first, np.minimum(target - back + wide + 1, origins)))
        here = at(usual, target - back)
        made += [here, at(usual, last - back)]
        for window in RATIOS:
            then = usual_sums.mean(origins - window - back, origins - back)
            made.append(here * np.clip(sums.mean(origins - window, origins) / np.maximum(then, floor), 0.2, 5.0))
    return np.stack(made, axis=1)
