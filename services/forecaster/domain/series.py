"""Rates on a regular grid."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recmesh.runtime.errors import InvalidArgument, Violation

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
MAX_POINTS = 10_000
"""Of one observation; longer histories come in several."""
MIN_STEP_S, MAX_STEP_S = 0.1, 7 * 86_400.0
MAX_AHEAD_S = 3600.0
"""A value that is later than now by more is no measurement; clocks may be off by minutes."""
RECENT_HALF_LIFE_S = 12 * 3600.0
"""In the choice of a series' step: time that was covered so much earlier counts half."""
ALIKE = 0.8
"""A finer step that covers this share of what the best one does is taken."""


@dataclass(frozen=True, slots=True)
class Point:
    """Mean rate over [at, at + step)."""

    at: float
    value: float


@dataclass(frozen=True, slots=True)
class Grid:
    """A rate for every step from `start` on, without gaps."""

    start: float
    step_s: float
    values: Floats
    missing: Bools | None = None
    """Which of the values were not observed and are filled in, (n,); none: all were."""
    coarse: Bools | None = None
    """Which of them are part of a mean over a longer time; none: no one is."""

    @property
    def filled(self) -> int:
        """How many of the values were missing and were filled in."""
        return 0 if self.missing is None else int(self.missing.sum())

    @property
    def unseen(self) -> Bools | None:
        """Which of the values were not measured on this step: filled in, or part of a longer mean; none: all were."""
        masks = [each for each in (self.missing, self.coarse) if each is not None]
        return np.logical_or.reduce(masks) if masks else None

    @property
    def end(self) -> float:
        """The first moment after the last value."""
        return self.start + len(self.values) * self.step_s


def snapped(at: float, step_s: float) -> float:
    """The step that a moment lies in. Steps are counted from the epoch, so all series of a step agree."""
    return math.floor(at / step_s + 1e-9) * step_s


def checked(series: str, step_s: float, points: Iterable[Point], *, now: float, snap: bool = True) -> list[Point]:
    """The points by step, the last of a step wins; InvalidArgument names what is wrong. Without `snap`, by moment."""
    violations: list[Violation] = []
    if not series or len(series) > 200:
        violations.append(Violation("series", "is empty or longer than 200 characters"))
    if not MIN_STEP_S <= step_s <= MAX_STEP_S:
        violations.append(Violation("step_s", f"{step_s:g} is not in {MIN_STEP_S:g}..{MAX_STEP_S:g}"))
    given = list(points)
    if len(given) > MAX_POINTS:
        violations.append(Violation("points", f"{len(given)} points; at most {MAX_POINTS} at a time"))
    for index, point in enumerate(given[:MAX_POINTS]):
        if not (math.isfinite(point.at) and 0 <= point.at < 1e11):
            violations.append(Violation(f"points[{index}].at", f"{point.at} is not a moment in unix seconds"))
        elif point.at > now + MAX_AHEAD_S:
            violations.append(
                Violation(f"points[{index}].at", f"{point.at:.0f} is {point.at - now:.0f} s in the future; is it in s?")
            )
        if not (math.isfinite(point.value) and point.value >= 0):
            violations.append(Violation(f"points[{index}].value", f"{point.value} is not a rate from 0 up"))
    if violations:
        raise InvalidArgument("the observation is refused", violations=violations[:20])
    by_step = {snapped(point.at, step_s) if snap else point.at: point.value for point in given}
    return [Point(at, by_step[at]) for at in sorted(by_step)]


@dataclass(frozen=True, slots=True)
class Covered:
    """How much of a span of time a series has values of, on one of its steps."""

    step_s: float
    at: float
    """The span's middle."""
    seconds: float


def main_step(covered: Sequence[Covered]) -> float | None:
    """The step that most of the recent past is measured on, and of those that do alike the finest; none without spans.

    One value on another step must not hide a long history, and one that is no longer measured gives way in time.
    """
    newest = max((each.at for each in covered), default=0.0)
    scores: dict[float, float] = {}
    for each in covered:
        worth = each.seconds * 0.5 ** ((newest - each.at) / RECENT_HALF_LIFE_S)
        scores[each.step_s] = scores.get(each.step_s, 0.0) + worth
    best = max(scores.values(), default=0.0)
    return min((step_s for step_s, score in scores.items() if score >= ALIKE * best), default=None)


def regular(points: Sequence[Point], *, step_s: float, own_step_s: float) -> Grid:
    """The points on a grid of `step_s`, a multiple of their own step.

    A step holds the mean of what was observed in it. A gap of up to three steps is bridged by a
    straight line; a longer one takes the values one week before, or one day where no week is, as a
    line through a night would hide the daily cycle.
    """
    if not points:
        return Grid(0.0, step_s, np.zeros(0))
    if step_s < own_step_s - 1e-9:
        raise InvalidArgument(
            "cannot forecast on a finer step than was observed",
            violations=[Violation("step_s", f"{step_s:g} is below the series' own {own_step_s:g}")],
        )
    start = snapped(points[0].at, step_s)
    moments = np.array([point.at for point in points])
    index = np.floor(moments / step_s + 1e-9).astype(np.int64) - round(start / step_s)
    count = int(index[-1]) + 1
    sums = np.bincount(index, weights=np.array([point.value for point in points]), minlength=count)
    seen = np.bincount(index, minlength=count)
    values = np.full(count, np.nan)
    np.divide(sums, seen, out=values, where=seen > 0)
    return Grid(start, step_s, without_gaps(values, step_s), missing=seen == 0)


def without_gaps(values: Floats, step_s: float) -> Floats:
    """What `regular` says of gaps, which are NaN."""
    missing = np.isnan(values)
    if not missing.any():
        return values
    known = np.flatnonzero(~missing)
    line = np.interp(np.arange(len(values)), known, values[known])
    filled = np.where(missing, line, values)
    day = round(86_400 / step_s)
    if day < 1 or abs(day * step_s - 86_400) > 1e-6:
        return filled
    edges = np.flatnonzero(np.diff(np.concatenate([[False], missing, [False]]).astype(np.int8)))
    for lo, hi in edges.reshape(-1, 2):
        back = 7 * day if lo >= 7 * day else day
        if hi - lo > 3 and lo >= back:
            for first in range(lo, hi, back):  # in order, so that a longer gap repeats the season before it
                last = min(first + back, hi)
                filled[first:last] = filled[first - back : last - back]
    return filled


@dataclass(frozen=True, slots=True)
class SeriesInfo:
    """What is stored of a series."""

    series: str
    step_s: float
    points: int
    first: float
    last: float
    last_value: float
