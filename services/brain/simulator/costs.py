"""What changing a job costs it."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from recmesh.plugins.planning import Allocation, Overheads


class Change(StrEnum):
    """Kinds of change; several at once cost as much as the dearest."""

    WORKERS = "workers"
    PS = "ps"
    RESIZE = "resize"


def kinds(now: Allocation, then: Allocation) -> tuple[Change, ...]:
    """What differs."""
    found = []
    if now.workers != then.workers:
        found.append(Change.WORKERS)
    if now.ps != then.ps:
        found.append(Change.PS)
    if (now.worker_cpu, now.ps_cpu, now.worker_memory_bytes, now.ps_memory_bytes) != (
        then.worker_cpu, then.ps_cpu, then.worker_memory_bytes, then.ps_memory_bytes
    ):  # fmt: skip
        found.append(Change.RESIZE)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds: until new processes can train, and for which the whole job stands still at a change.

    New processes start beside the old ones, which go on; then the job pauses. `stop_s` is for a scheduler that stops
    the job, saves it, and starts it anew at its new size: the pause is drawn from that span, and covers all.
    """

    start_s: float = 30.0
    """Median of a log-normal with sd .3: placing a process, its image, interpreter and imports."""
    workers_s: float = 0.5
    ps_s: float = 2.0
    resize_s: float = 2.0
    restore_s: float = 20.0
    """Reading the last checkpoint after a server was lost."""
    checkpoint_s: float = 0.1
    """For which a checkpoint stops training; docs/BENCHMARKS.md has what was measured."""
    stop_s: tuple[float, float] | None = None

    def starting_s(self, rng: np.random.Generator) -> float:
        """One draw."""
        return self.start_s * float(np.exp(rng.normal(0.0, 0.3)))

    def pause_s(self, changes: tuple[Change, ...], rng: np.random.Generator) -> float:
        """One draw for all of them together."""
        if self.stop_s is not None:
            return float(rng.uniform(*self.stop_s))
        each = {Change.WORKERS: self.workers_s, Change.PS: self.ps_s, Change.RESIZE: self.resize_s}
        return max((each[change] for change in changes), default=0.0) * float(np.exp(rng.normal(0.0, 0.3)))


class Measured:
    """Mean pause of each kind of change so far: what brain believes that the next one will cost."""

    def __init__(self, believed: Overheads = Overheads()) -> None:  # noqa: B008 - frozen, so it is safe to share
        self._sums = {Change.WORKERS: believed.workers_s, Change.PS: believed.ps_s, Change.RESIZE: believed.resize_s}
        self._counts = dict.fromkeys(Change, 1)

    def note(self, changes: tuple[Change, ...], pause_s: float) -> None:
        """A change was made. Of several kinds at once each is charged with all: none of them alone is known."""
        for change in changes:
            self._sums[change] += pause_s
            self._counts[change] += 1

    def overheads(self) -> Overheads:
        """The belief counts as one measurement."""
        mean = {change: self._sums[change] / self._counts[change] for change in Change}
        return Overheads(mean[Change.WORKERS], mean[Change.PS], mean[Change.RESIZE])
