"""Which past a forecast repeats."""

from dataclasses import dataclass

import numpy as np

from recmesh.runtime.errors import InvalidArgument, Violation
from services.forecaster.domain.series import Floats

DAY_S, WEEK_S = 86_400.0, 7 * 86_400.0
SEEN_OF_DAY, SEEN_OF_WEEK = 2.0, 1.1
"""Seasons of history from which on one is looked at. A day needs two, as a night and a downward trend look alike; a
week that was seen once and a bit is left to the backtest, which has a day's season to compare it with."""
CLEAR = 0.6
"""Autocorrelation from which on a season shorter than a day is believed."""
SHORTEST, REPEATS = 4, 4
"""Of such a season: steps, and how often it must have been seen."""


@dataclass(frozen=True, slots=True)
class Season:
    """`all` in steps, shortest first; empty: nothing repeats."""

    all: tuple[int, ...]
    note: str

    @property
    def steps(self) -> int:
        """The longest; 1 is none."""
        return max(self.all, default=1)

    def seconds(self, step_s: float) -> float:
        """Length of the longest; 0 for none."""
        return self.steps * step_s if self.all else 0.0


def season_for(values: Floats, *, step_s: float, wanted_s: float = 0.0, usual_s: float = 0.0) -> Season:
    """The seasons that a history is long enough for; the backtest says which of them help.

    A day from two days on and a week from eight days on; `usual_s` from two of them on, too. With less, a shorter
    season where one is clear (a job that runs every ten minutes). `wanted_s` overrules.
    """
    count = len(values)
    if wanted_s:
        steps = round(wanted_s / step_s)
        if steps < 1 or abs(steps * step_s - wanted_s) > 1e-6 * step_s:
            raise InvalidArgument(
                "cannot use the season",
                violations=[Violation("season_s", f"{wanted_s:g} is not a multiple of the step {step_s:g}")],
            )
        if steps == 1:
            return Season((), "no season, as asked")
        if count < 2 * steps:
            lack = f"the asked season of {wanted_s:g} s needs {2 * steps} values, there are {count}"
            return Season((), f"{lack}: no season")
        return Season((steps,), f"season of {wanted_s:g} s as asked")
    found, names = [], []
    usual = ((f"season of {usual_s:g} s", usual_s, 2.0),) if usual_s else ()
    for name, length_s, seen in (*usual, ("day", DAY_S, SEEN_OF_DAY), ("week", WEEK_S, SEEN_OF_WEEK)):
        steps = round(length_s / step_s)
        if steps >= 2 and abs(steps * step_s - length_s) < 1e-6 and count >= seen * steps:
            found.append(steps)
            names.append(name)
    if found:
        return Season(tuple(found), f"looks back a {' and a '.join(names)}")
    few = "1 value is less than two days" if count == 1 else f"{count} values are less than two days"
    short = shorter_season(values)
    if short:
        return Season((short,), f"{few}: season of {short * step_s:g} s, as it repeats")
    return Season((), f"{few}: no season")


def shorter_season(values: Floats) -> int:
    """The lag with the highest autocorrelation of what is left of a line, in steps; 0 when none is clear."""
    count = len(values)
    longest = count // REPEATS
    if longest < SHORTEST:
        return 0
    place = np.arange(count, dtype=np.float64)
    left = values - np.polyval(np.polyfit(place, values, 1), place)
    power = float(left @ left)
    if power <= 1e-9 * float(values @ values):
        return 0
    spectrum = np.fft.rfft(left, 2 * count)
    likeness = np.fft.irfft(np.abs(spectrum) ** 2)[: longest + 2] / power * count / (count - np.arange(longest + 2))
    peaks = [
        lag for lag in range(SHORTEST, longest + 1)
        if likeness[lag] >= CLEAR and likeness[lag] >= max(likeness[lag - 1], likeness[lag + 1])
        and likeness[1:lag].min() < CLEAR / 2  # a slow wander has no valley before its peak
    ]  # fmt: skip
    return max(peaks, key=lambda lag: float(likeness[lag])) if peaks else 0
