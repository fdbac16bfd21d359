"""What is free, and what owners may still take."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recmesh.plugins.planning import Allocation, ClusterView, Floats, JobView, Reason, Resources

CPU, MEMORY = 0, 1
_FORGIVEN = 1e-9
"""Of rounding, in units of a kind; half a byte of memory."""


def taken(job: JobView, allocation: Allocation) -> Resources:
    """What it takes beyond what the job holds; negative where it gives back."""
    return allocation.resources if job.queued else allocation.resources.plus(job.now.resources, -1.0)


def lacking(job: JobView, allocation: Allocation, cluster: ClusterView) -> tuple[Reason, str] | None:
    """Why there is no room for it, were the job alone; None when there is."""
    need = taken(job, allocation)
    if not need.within(cluster.free):
        return Reason.NO_ROOM, f"{short_of(need, cluster.free)} is free"
    quota = cluster.quotas.get(job.owner)
    if quota is not None and not need.within(quota):
        return Reason.OVER_QUOTA, f"{short_of(need, quota)} is left in the quota of {job.owner or 'its owner'}"
    return None


def short_of(need: Resources, room: Resources) -> str:
    """The first kind of which there is too little: "it needs 8 more cores, 3"."""
    if need.cpu > max(0.0, room.cpu) + _FORGIVEN:
        return f"it needs {need.cpu:g} more cores, and {max(0.0, room.cpu):g}"
    if need.memory_bytes > max(0.0, room.memory_bytes) + 0.5:
        return f"it needs {_gib(need.memory_bytes)} more memory, and {_gib(room.memory_bytes)}"
    for kind, many in need.gpus.items():
        if many > max(0.0, room.gpus.get(kind, 0.0)) + _FORGIVEN:
            return f"it needs {many:g} more {kind}, and {max(0.0, room.gpus.get(kind, 0.0)):g}"
    return "it needs what others have taken since, and less"


def amount(resources: Resources) -> str:
    """In words: "3 cores, 6.0 GiB, 2 a100"."""
    gpus = [f"{max(0.0, many):g} {kind}" for kind, many in sorted(resources.gpus.items())]
    return ", ".join([f"{max(0.0, resources.cpu):g} cores", _gib(resources.memory_bytes), *gpus])


def _gib(size_bytes: float) -> str:
    return f"{max(0.0, size_bytes) / (1 << 30):.1f} GiB"


@dataclass(slots=True)
class Room:
    """What is left while a plan is made: of the cluster, and of each owner with a quota.

    Columns are kinds: cores, bytes, then accelerators by name.
    """

    kinds: tuple[str, ...]
    free: list[float]
    quotas: dict[str, list[float]]

    @classmethod
    def of(cls, cluster: ClusterView, kinds: Sequence[str]) -> "Room":
        """`kinds`: accelerators that any job uses."""
        names = tuple(sorted({*kinds, *cluster.free.gpus}))
        quotas = {owner: _row(quota, names) for owner, quota in cluster.quotas.items()}
        return cls(names, _row(cluster.free, names), quotas)

    def need(self, job: JobView, allocation: Allocation) -> tuple[float, ...]:
        """What it takes of each kind; 0 of what it gives back, as that is free at the next decision only."""
        now, queued = job.now, job.queued
        workers, ps = allocation.workers, allocation.ps
        cpu = workers * allocation.worker_cpu + ps * allocation.ps_cpu
        memory = float(workers * allocation.worker_memory_bytes + ps * allocation.ps_memory_bytes)
        if not queued:
            cpu -= now.workers * now.worker_cpu + now.ps * now.ps_cpu
            memory -= now.workers * now.worker_memory_bytes + now.ps * now.ps_memory_bytes
        if not self.kinds:
            return max(0.0, cpu), max(0.0, memory)
        gpus = [0.0] * len(self.kinds)
        if allocation.worker_gpus:
            gpus[self.kinds.index(allocation.gpu_kind)] += workers * allocation.worker_gpus
        if now.worker_gpus and not queued:
            gpus[self.kinds.index(now.gpu_kind)] -= now.workers * now.worker_gpus
        return max(0.0, cpu), max(0.0, memory), *(max(0.0, many) for many in gpus)

    def holds(self, owner: str, need: Sequence[float]) -> bool:
        """Whether there is room for it now."""
        for many, left in zip(need, self.free, strict=True):
            if many > left and many > 0.0:      # mostly there is room
                return False
        quota = self.quotas.get(owner)
        return quota is None or all(many <= 0.0 or many <= left for many, left in zip(need, quota, strict=True))

    def take(self, owner: str, need: Sequence[float], times: float = 1.0) -> None:
        """-1 gives it back."""
        for rows in (self.free, self.quotas.get(owner)):
            if rows is not None:
                for k, many in enumerate(need):
                    rows[k] -= times * many

    def why_not(self, owner: str, need: Sequence[float]) -> Reason:
        """The cluster's room, or the owner's quota."""
        short = any(many > 0.0 and many > left for many, left in zip(need, self.free, strict=True))
        return Reason.NO_ROOM if short else Reason.OVER_QUOTA


def _row(room: Resources, kinds: Sequence[str]) -> list[float]:
    """With what rounding is forgiven once for all."""
    gpus = [room.gpus.get(kind, 0.0) + _FORGIVEN for kind in kinds]
    return [room.cpu + _FORGIVEN, room.memory_bytes + 0.5, *gpus]


def as_columns(needs: Sequence[Sequence[float]], kinds: int) -> Floats:
    """(n, kinds + 2)."""
    return np.array(needs, dtype=np.float64).reshape(len(needs), kinds + 2)
