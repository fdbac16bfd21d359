"""The columns by which schemes are compared, as in KALE's table 3 (MATH section 2)."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np

from services.brain.simulator.online.engine import MINUTE_S, Course

WORST = 10.0
"""What something over nothing counts in a ratio; nothing over nothing counts 1."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Of one scheme, summed over series."""

    minutes: int
    violation_minutes: int
    """In which lag was above the SLO."""
    lag_minutes: float
    """Accumulated lag: the lag at the end of each minute, in minutes, summed."""
    lag_max_minutes: float
    down_minutes: float
    worker_hours: float
    """A worker is a GPU in KALE's table."""
    changes: int
    corrections: int

    @property
    def violation_rate(self) -> float:
        """Of all minutes."""
        return self.violation_minutes / self.minutes

    @property
    def mean_lag_s(self) -> float:
        """Over all minutes."""
        return 60.0 * self.lag_minutes / self.minutes

    @property
    def compared(self) -> tuple[float, float, float, float]:
        """Violation rate, accumulated lag, downtime, worker-hours."""
        return self.violation_rate, self.lag_minutes, self.down_minutes, self.worker_hours

    def document(self) -> dict[str, float]:
        """All of them by name."""
        return {**asdict(self), "violation_rate": self.violation_rate, "mean_lag_s": self.mean_lag_s}


def columns(course: Course, *, slo_s: float) -> Columns:
    """Of one replay."""
    return Columns(
        len(course.lag_s), int((course.lag_s > slo_s).sum()), float(course.lag_s.sum()) / MINUTE_S,
        float(course.lag_s.max(initial=0.0)) / MINUTE_S, float(course.down_s.sum()) / 60.0,
        float(course.worker_s.sum()) / 3600.0, course.changes, course.corrections,
    )  # fmt: skip


def total(parts: Iterable[Columns]) -> Columns:
    """Over several series; of the greatest lag the greatest."""
    all_parts = list(parts)
    added = {
        name: sum(getattr(each, name) for each in all_parts)
        for name in ("minutes", "violation_minutes", "lag_minutes", "down_minutes", "worker_hours", "changes",
                     "corrections")
    }  # fmt: skip
    return Columns(lag_max_minutes=max(each.lag_max_minutes for each in all_parts), **added)


def ratios(mine: Columns, theirs: Columns) -> tuple[float, float, float, float]:
    """Each compared column over the other's."""
    a, b, c, d = (ratio(*pair) for pair in zip(mine.compared, theirs.compared, strict=True))
    return a, b, c, d


def ratio(mine: float, theirs: float) -> float:
    """Something over nothing counts WORST, nothing over nothing 1."""
    return mine / theirs if theirs > 0 else (WORST if mine > 0 else 1.0)


def geometric_mean(values: Iterable[float]) -> float:
    """0 where one of them is."""
    found = np.array(list(values))
    return float(np.exp(np.mean(np.log(found)))) if (found > 0).all() else 0.0
