"""Jobs that wait for room in their owner's quota: who is before whom, and what each needs.

A job waits by asking again: brain keeps no job that has given up. Those of higher `priority` come first, then those
that were submitted first. What those before a job need is kept back from it, so that small late ones do not overtake a
large early one for ever; of a kind that the earlier ones do not need, it may have what is there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from recmesh.plugins.planning import Resources
from recmesh.runtime.clock import Clock
from services.brain.domain.model import Job, RoleLimits

PATIENCE_S = 60.0
"""A job that has not asked for so long waits no more; jobmaster asks every ten seconds at most."""
LEAST_S = 600.0
"""So long the least that a job may begin with is good: similar jobs that end meanwhile may change its sizes."""
MAX_WAITING = 20_000
"""Those that asked longest ago go."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A job that was refused, and the least that it may begin with."""

    job: Job
    limits: tuple[RoleLimits, ...]
    least: Resources
    first_asked: float
    known: float
    """When `least` was worked out."""
    heard: float

    @property
    def order(self) -> tuple[int, float, str]:
        """The lowest is first."""
        return -self.job.priority, self.job.submitted or self.first_asked, self.job.job_id


class Waiting:
    """Kept in memory: after a restart those that wait ask again within seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters: dict[str, Waiter] = {}

    def refuse(self, job: Job, limits: Sequence[RoleLimits], least: Resources) -> Waiter:
        """It waits from now on, or still."""
        now, before = self._clock.now(), self._waiters.pop(job.job_id, None)
        first_asked = before.first_asked if before is not None else now
        made = self._waiters[job.job_id] = Waiter(job, tuple(limits), least, first_asked, known=now, heard=now)
        while len(self._waiters) > MAX_WAITING:
            self._waiters.pop(next(iter(self._waiters)))
        return made

    def again(self, job: Job, limits: Sequence[RoleLimits]) -> Waiter | None:
        """The job asks again; None where the least that it needs has to be worked out (anew)."""
        waiter, now = self._waiters.get(job.job_id), self._clock.now()
        if waiter is None or (waiter.job, waiter.limits) != (job, tuple(limits)) or now - waiter.known > LEAST_S:
            return None
        waiter = self._waiters[job.job_id] = replace(waiter, heard=now)
        return waiter

    def before(self, job: Job) -> list[Waiter]:
        """Those of its owner that come first, in their order."""
        own = self._waiters.get(job.job_id)
        asked = own.first_asked if own is not None else self._clock.now()
        order = Waiter(job, (), Resources(), asked, asked, asked).order
        return [each for each in self.of(job.payer) if each.order < order and each.job.job_id != job.job_id]

    def of(self, owner: str) -> list[Waiter]:
        """All of an owner, in their order."""
        oldest = self._clock.now() - PATIENCE_S
        found = [each for each in list(self._waiters.values()) if each.job.payer == owner and each.heard >= oldest]
        return sorted(found, key=lambda each: each.order)

    def leave(self, job_id: str) -> None:
        """It has begun, or has ended."""
        self._waiters.pop(job_id, None)


def kept_back(room: Resources, waiters: Sequence[Waiter]) -> Resources:
    """Of that room what is left when each of them has its least; nothing of a kind where that is more than there is."""
    kinds = {kind for each in waiters for kind in each.least.gpus}
    cpu = math.fsum(each.least.cpu for each in waiters)
    memory = math.fsum(each.least.memory_bytes for each in waiters)
    many = {kind: math.fsum(each.least.gpus.get(kind, 0.0) for each in waiters) for kind in kinds}
    return Resources(
        _less(room.cpu, cpu), _less(room.memory_bytes, memory),
        {kind: _less(there, many.get(kind, 0.0)) for kind, there in room.gpus.items()},
    )  # fmt: skip


def _less(there: float, kept: float) -> float:
    return there if there <= 0.0 else max(0.0, there - kept)
