"""What goes wrong: processes die, processes become slow, and whole nodes fail.

A process survives a day with probability .985, so one of n dies within a day with 1 − .985^n: 50 of them .53031, 100
of them .7794 (DLRover-RM's model). Here it is a Poisson process with that hazard: a job meets its k-th fault when the
process-days it has held reach the k-th of a series drawn for that job alone, so that two planners that hold as much
meet the same faults. A node fails by the clock, whatever it holds: when is drawn for that node alone.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

DAY_S = 86_400.0


class Recovery(StrEnum):
    """What a fault costs."""

    ELASTIC = "elastic"
    """A dead worker is replaced while the others train; a dead server costs a rollback to the last checkpoint."""
    RESTART = "restart"
    """The whole job starts again from its last checkpoint, at most `max_restarts` times."""
    NONE = "none"
    """The job has failed."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How often, and what then; the default is a cluster in which nothing happens."""

    death_per_day: float = 0.0
    """Probability that one process dies within a day; .015 is DLRover-RM's."""
    slow_per_day: float = 0.0
    """Probability that one worker becomes slow within a day."""
    slow_to: tuple[float, float] = (0.03, 0.7)
    """The speed it is left with, drawn evenly from here."""
    slow_for_s: float = 600.0
    """Until it is replaced, or well again."""
    node_failure_per_day: float = 0.0
    """Probability that one node fails within a day: whatever it holds dies, and it is away."""
    repair_s: float = 3600.0
    """Until a node that failed is back."""
    recovery: Recovery = Recovery.ELASTIC
    checkpoint_every_s: float = 600.0
    max_restarts: int = 3

    @property
    def death_hazard(self) -> float:
        """Per process and second."""
        return hazard(self.death_per_day)

    @property
    def slow_hazard(self) -> float:
        """Per worker and second."""
        return hazard(self.slow_per_day)

    @property
    def node_hazard(self) -> float:
        """Per node that is there, and second."""
        return hazard(self.node_failure_per_day)


def hazard(per_day: float) -> float:
    """The rate, per second, of a Poisson process that spares one day with 1 − `per_day`."""
    return -math.log1p(-per_day) / DAY_S if per_day else 0.0


def share_hit(per_day: float, processes: int, days: float = 1.0) -> float:
    """Share of jobs of so many processes that lose one: 1 − (1 − per_day)^(processes · days)."""
    return -math.expm1(processes * days * math.log1p(-per_day))


class Clock:
    """Process-seconds until the next event of one job: exponential steps in hazard, not in time."""

    __slots__ = ("_hazard", "_left", "_rng")

    def __init__(self, rate: float, rng: np.random.Generator) -> None:
        self._hazard = rate
        self._rng = rng
        self._left = float(rng.exponential()) if rate else math.inf

    def spend(self, process_seconds: float) -> None:
        """So many more were held."""
        self._left -= process_seconds * self._hazard

    def due_in(self, processes: int) -> float:
        """Seconds until the next event while so many are held."""
        held = processes * self._hazard
        return max(0.0, self._left) / held if held else math.inf

    def again(self) -> None:
        """It has happened: draw the next."""
        self._left = float(self._rng.exponential())
