"""Which predictions are believed, and how far one may go beyond them.

A model says of an allocation why its prediction is an extrapolation. Asking for each of thousands takes longer than all
the rest, so the believed region is taken as a box around what the job has: along each axis the values up to the last
one that is not doubted. What is then proposed is asked about by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Allocation, JobView, Shapes, Throughput, doubts
from services.brain.domain.planning.grid import Axes
from services.brain.domain.planning.survey import Mask

T = TypeVar("T")

_MOST_MILLICORES, _MOST_COUNT = 2.0**20, 2.0**11
"""Of one process (a thousand cores), and of one role: a row's numbers lie beside each other in 62 bits."""

Box = tuple[tuple[float, float], ...]
"""From least to most of each axis."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Where predictions are believed, and what lies within one step."""

    believed: Box | None
    """None: not even what the job has now."""
    step: Box
    now: tuple[float, ...]
    """What the job has, by axis."""
    measured: tuple[tuple[float, ...], ...] = ()
    """What it has had, by axis: never an extrapolation, so the way back is always open."""

    def axes(self, of: Axes) -> Axes:
        """What is worth a look: all that is believed; where no more is than a step, its ends and what is next to now.

        Predictions take most of the time of a plan, and whoever steps into the unknown need not choose to the core.
        """
        had = [{each[axis] for each in self.measured} for axis in range(4)]
        near = [self._values(values, axis) for axis, values in enumerate(of)]
        return Axes(*(tuple(sorted({*values, *more})) for values, more in zip(near, had, strict=True)))

    def _values(self, values: tuple[float, ...], axis: int) -> tuple[float, ...]:
        low, high = self.step[axis]
        if self.believed is not None and (self.believed[axis][0] < low or self.believed[axis][1] > high):
            low, high = min(low, self.believed[axis][0]), max(high, self.believed[axis][1])
            return tuple(value for value in values if low - 1e-9 <= value <= high + 1e-9)
        near = [k for k, value in enumerate(values) if low - 1e-9 <= value <= high + 1e-9]
        at = min(near, key=lambda k: abs(values[k] - self.now[axis]))
        return tuple(values[k] for k in near if k in (near[0], at - 1, at, at + 1, near[-1]))

    def mask(self, shapes: Shapes, log_sd: np.ndarray[tuple[int], np.dtype[np.float64]], most_log_sd: float) -> Mask:
        """Believed, within a step, or measured."""
        stepped = within(self.step, shapes) | self.known(shapes)
        if self.believed is None:
            return stepped
        return stepped | (within(self.believed, shapes) & (log_sd <= most_log_sd))

    def is_step(self, shapes: Shapes, row: int) -> bool:
        """Whether it is within one step."""
        return bool(within(self.step, shapes.at(np.array([row])))[0])

    def known(self, shapes: Shapes) -> Mask:
        """Rows that were measured, to the thousandth of a core."""
        if not self.measured:
            return np.zeros(len(shapes), dtype=bool)
        keys = _keys(shapes)
        first, *others = _keys(Shapes(*np.array(self.measured, dtype=np.float64).T)).tolist()
        found: Mask = keys == first
        for each in others:
            found |= keys == each
        return found


def reach(job: JobView, of: Axes) -> Reach:
    """Around what the job has (a queued one: what it asks for).

    Many that wait ask for the same and are told of one model, again and again: of those it is remembered.
    """
    assert job.throughput is not None
    if job.queued and not job.measured:
        return _waiting(Same(job.throughput), job.now, of)
    return _around(job.throughput, job.now, of, tuple(_values(each) for each in job.measured if job.bounds.hold(each)))


class Same(Generic[T]):
    """As a key: the very same object, whatever it equals."""

    __slots__ = ("it",)

    def __init__(self, it: T) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.it is self.it

    def __hash__(self) -> int:
        return id(self.it)


@lru_cache(maxsize=128)
def _waiting(model: Same[Throughput], now: Allocation, of: Axes) -> Reach:
    return _around(model.it, now, of, ())


def _around(model: Throughput, now: Allocation, of: Axes, measured: tuple[tuple[float, ...], ...]) -> Reach:
    at = _values(now)
    step = tuple(_one_step(values, value) for values, value in zip(of, at, strict=True))
    return Reach(_believed(model, now, of, step), step, at, measured)


def one_step(count: int) -> int:
    """How far a count may move at once where nothing was measured: by one, or to twice as many."""
    return max(1, count)


def within(box: Box, shapes: Shapes) -> Mask:
    """Rows inside; axes that the box does not bound cost nothing."""
    inside = np.ones(len(shapes), dtype=bool)
    for (low, high), column in zip(box, (shapes.workers, shapes.ps, shapes.worker_cpu, shapes.ps_cpu), strict=True):
        if low > -np.inf:
            inside &= column >= low - 1e-9
        if high < np.inf:
            inside &= column <= high + 1e-9
    return inside


def _keys(shapes: Shapes) -> NDArray[np.int64]:
    """One number for each row, the same for the same row."""
    cores = np.rint(1000.0 * shapes.worker_cpu) * _MOST_MILLICORES + np.rint(1000.0 * shapes.ps_cpu)
    counts = shapes.workers * _MOST_COUNT + shapes.ps
    keys: NDArray[np.int64] = counts.astype(np.int64) * int(_MOST_MILLICORES**2) + cores.astype(np.int64)
    return keys


def _values(allocation: Allocation) -> tuple[float, float, float, float]:
    return float(allocation.workers), float(allocation.ps), allocation.worker_cpu, allocation.ps_cpu


def _one_step(values: Sequence[float], now: float) -> tuple[float, float]:
    """Twice as much, or the next value where that is farther; half as far down."""
    up = next((value for value in values if value > now + 1e-9), now)
    down = next((value for value in reversed(values) if value < now - 1e-9), now)
    return min(down, now - now // 2), max(up, now + now)


def _believed(model: Throughput, now: Allocation, of: Axes, step: Box) -> Box | None:
    """Values of each axis, the others as now, up to the last without a doubt; at least as far as a step, which may be
    taken anyway; open where there is no doubt at the end. None where there is a doubt about now."""
    # 1. Down and up each axis, what lies beyond a step; both ends of it are asked about first.
    sides = [
        (axis, beyond)
        for axis, (values, (low, high)) in enumerate(zip(of, step, strict=True))
        for beyond in (
            [each for each in reversed(values) if each < low - 1e-9],
            [each for each in values if each > high + 1e-9],
        )
    ]
    ends = [_moved(now, axis, beyond[k]) for axis, beyond in sides if beyond for k in (0, -1)]
    about_now, *about_ends = doubts(model, [now, *ends])
    if about_now:
        return None
    # 2. How many values of each side come before the first doubt, by bisection of all at once: farther is never surer.
    answers = iter(about_ends)
    sure, unsure = [], []
    for _, beyond in sides:
        first, last = (next(answers), next(answers)) if beyond else ("", "")
        sure.append(0 if first else (1 if last else len(beyond)))
        unsure.append(0 if first else (len(beyond) - 1 if last else len(beyond)))
    while between := [side for side in range(len(sides)) if sure[side] < unsure[side]]:
        middle = [(sure[side] + unsure[side]) // 2 for side in between]
        asked = [_moved(now, sides[side][0], sides[side][1][k]) for side, k in zip(between, middle, strict=True)]
        for side, k, doubt in zip(between, middle, doubts(model, asked), strict=True):
            if doubt:
                unsure[side] = k
            else:
                sure[side] = k + 1
    # 3. As limits.
    limits = [
        (np.inf if up else -np.inf) if count == len(beyond) else (beyond[count - 1] if count else step[axis][up])
        for up, (axis, beyond), count in zip((0, 1) * len(step), sides, sure, strict=True)
    ]
    return tuple(zip(limits[::2], limits[1::2], strict=True))


def _moved(now: Allocation, axis: int, value: float) -> Allocation:
    return Allocation(              # thousands of times in a plan: `replace` takes three times as long
        round(value) if axis == 0 else now.workers, round(value) if axis == 1 else now.ps,
        value if axis == 2 else now.worker_cpu, value if axis == 3 else now.ps_cpu,
        now.worker_memory_bytes, now.ps_memory_bytes, now.worker_gpus, now.gpu_kind,
    )  # fmt: skip
