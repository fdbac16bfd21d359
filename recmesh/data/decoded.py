"""A task's rows after the transform: what readers keep, executors serve, and the materialised cache holds."""

from dataclasses import dataclass, field

import numpy as np

from recmesh.data.records import Batch, Int64


def _none() -> Int64:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Decoded:
    """A task's rows in order of position."""

    batch: Batch
    places: Int64 | None = None
    """[batch.size], ascending: at which of the task's positions each row stands. None: at each one."""
    bad: Int64 = field(default_factory=_none)
    """Positions whose records could not be read, ascending."""

    def within(self, lo: int, hi: int) -> Batch:
        """The rows that stand at positions [lo, hi) of the task."""
        if self.places is None:
            return self.batch.rows(lo, hi)
        first, last = np.searchsorted(self.places, [lo, hi])
        return self.batch.rows(int(first), int(last))

    def bad_within(self, lo: int, hi: int) -> int:
        """How many of these positions hold what could not be read."""
        first, last = np.searchsorted(self.bad, [lo, hi])
        return int(last - first)

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return self.batch.size_bytes + (0 if self.places is None else self.places.nbytes) + self.bad.nbytes
