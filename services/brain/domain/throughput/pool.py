"""What jobs of one model have shown, together: what one that has shown little yet is believed to do.

Jobs of a model differ by a factor (their data and features are their own). It is taken from the first size that a job
has in common with others; a job that has none yet is taken as it is. To relate it by what the common model says of its
size instead would let that model confirm itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.brain.domain.throughput.observations import Observation

Size = tuple[int, int, float, float]
"""Workers, servers, cores of each."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Windows at one size."""

    total: float
    """Of the logarithms of their rates."""
    windows: float
    at: float
    """When the last came."""

    @property
    def rate(self) -> float:
        """Geometric mean."""
        return math.exp(self.total / self.windows)


class Pool:
    """Of one model, on one kind of hardware, with one batch size."""

    def __init__(self) -> None:
        self.seen: dict[Size, Seen] = {}
        self._alone: dict[Size, int] = {}
        """Sizes that one job alone has had, and which: it is not to be compared with itself."""

    def add(
        self, job: int, size: Size, *, log: float, windows: float, at: float, factor: float | None
    ) -> float | None:
        """A job's mean logarithm of so many windows at a size, and its own factor (a logarithm) if that is known.

        Returns the factor, None while the job has no size in common with others.
        """
        before = self.seen.get(size)
        if before is None:
            self.seen[size], self._alone[size] = Seen((log - (factor or 0.0)) * windows, windows, at), job
            return factor
        if self._alone.get(size) != job:
            self._alone.pop(size, None)
            factor = log - before.total / before.windows if factor is None else factor
        self.seen[size] = Seen(before.total + (log - (factor or 0.0)) * windows, before.windows + windows, at)
        return factor


def pooled(jobs: Sequence[Sequence[Observation]]) -> list[Observation]:
    """Observations of several jobs, all of one batch, mode and kind of hardware, as if of one; in the order of time."""
    pool, factors, like = Pool(), dict[int, float | None](), dict[Size, Observation]()
    listed = sorted((each.at, k, i) for k, job in enumerate(jobs) for i, each in enumerate(job))
    for at, k, i in listed:
        each = jobs[k][i]
        size = (each.workers, each.ps, each.worker_cpu, each.ps_cpu)
        log = math.log(each.samples_per_s)
        factors[k] = pool.add(k, size, log=log, windows=each.windows, at=at, factor=factors.get(k))
        like[size] = each
    found = [
        replace(like[size], samples_per_s=seen.rate, windows=seen.windows, at=seen.at, breakdown=None)
        for size, seen in pool.seen.items()
    ]
    return sorted(found, key=lambda each: each.at)
