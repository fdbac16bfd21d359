"""When rows are due: their own time, faster or slower, counted from the first one. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pace:
    """A file's time on the clock of the replay."""

    speed: float
    """Seconds of the file's time in a second; 0: as fast as it goes."""
    first: float
    """Event time of the first row."""
    began: float
    """When that one was due."""

    def due(self, times: F64) -> F64:
        """[rows], ascending: a row that is older than one before it is due together with that one."""
        if not self.speed:
            return np.full(len(times), self.began)
        at: F64 = np.maximum.accumulate(self.began + np.maximum(times - self.first, 0.0) / self.speed)
        return at


def rounds_apart(first: float, last: float, rows: int) -> float:
    """By how much a repetition of the file is later than the round before: its span and one mean step."""
    return (last - first) * rows / (rows - 1) if rows > 1 else 1.0
