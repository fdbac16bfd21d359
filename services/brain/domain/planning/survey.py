"""What a set of allocations would bring one job, and cost it (MATH §1, gain and objectives)."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Allocation, ClusterView, Floats, JobView, Resources, Shapes
from services.brain.domain.planning.grid import Grid

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Present:
    """A job as it is: speed, what it costs, and the seconds over which a gain must pay."""

    rate: float
    """As measured; as predicted while nothing is measured; 0 while queued."""
    scale: float
    """Measured by predicted: what the model gets wrong here it gets wrong elsewhere, too."""
    cost: float
    horizon_s: float


@dataclass(frozen=True, slots=True)
class Survey:
    """Columns of shape (n,), one row per allocation."""

    shapes: Shapes
    rate: Floats
    log_sd: Floats
    gain: Floats
    """TG = Ψ_new·(1 − overhead/h) − Ψ_now."""
    cost: Floats
    """RC: price of it less the price of what the job has; of all of it while queued."""
    overhead_s: Floats
    allowed: Mask
    """No server would need more memory than it may have."""
    within_free: Mask
    within_quota: Mask


def present(job: JobView, cluster: ClusterView) -> Present:
    """Needs `job.throughput`."""
    if job.queued:
        return Present(0.0, 1.0, 0.0, cluster.horizon_s)
    predicted = predicted_rate(job, job.now)
    rate = job.rate if job.rate > 0.0 else predicted
    horizon = min(job.remaining / rate, cluster.horizon_s)
    return Present(rate, rate / predicted, price(job.now, cluster), horizon)


def predicted_rate(job: JobView, allocation: Allocation) -> float:
    """Samples per second by the model alone."""
    assert job.throughput is not None
    return float(job.throughput.predict(Shapes.of([allocation])).rate[0])


def survey(job: JobView, cluster: ClusterView, grid: Grid, at: Present, *, in_room: bool = False) -> Survey:
    """One row per allocation of the grid; `in_room`: only of those that there is room for, as predicting takes most."""
    assert job.throughput is not None
    # 1. What needs no prediction.
    workers, ps = grid.shapes.workers, grid.shapes.ps
    worker_price, ps_price = _fixed(job.now, cluster)
    cost = cluster.prices.cpu * (grid.worker_cores + grid.ps_cores) + workers * worker_price + ps * ps_price - at.cost
    memory, allowed = _ps_memory(job, ps)
    if memory is not None:
        cost = cost + cluster.prices.memory_bytes * memory
    free, quota = _room(job, cluster, grid, memory)
    shapes = grid.shapes
    rows = np.flatnonzero(allowed & free & quota) if in_room else np.empty(0, dtype=np.intp)
    if 0 < len(rows) < len(shapes):
        shapes, cost = shapes.at(rows), cost[rows]
        allowed, free, quota = allowed[rows], free[rows], quota[rows]
    # 2. What does.
    predicted = job.throughput.predict(shapes)
    rate = predicted.rate * at.scale if at.scale != 1.0 else predicted.rate
    overhead = overheads(job, shapes)
    gain = rate * np.maximum(0.0, 1.0 - overhead / max(at.horizon_s, 1e-9)) - at.rate
    return Survey(shapes, rate, predicted.log_sd, gain, cost, overhead, allowed, free, quota)


def overheads(job: JobView, shapes: Shapes) -> Floats:
    """Seconds of training that the change to each costs: measured per kind of change; nothing while queued."""
    if job.queued:
        return np.zeros(len(shapes))
    cost, now = job.overheads, job.now
    resized = (shapes.worker_cpu != now.worker_cpu) | (shapes.ps_cpu != now.ps_cpu)
    seconds: Floats = cost.workers_s * (shapes.workers != now.workers) + cost.ps_s * (shapes.ps != now.ps)
    seconds += cost.resize_s * resized
    return seconds


def price(allocation: Allocation, cluster: ClusterView) -> float:
    """Of cores, memory and accelerators, and of each process."""
    return allocation.resources.cost(cluster.prices) + cluster.pod_price * (allocation.workers + allocation.ps)


def ps_state(job: JobView) -> float:
    """Bytes that its servers must hold together, whatever their number; 0: unknown."""
    if job.now.ps_memory_bytes <= 0:
        return 0.0
    return job.ps_state_bytes or float(job.now.ps * job.now.ps_memory_bytes)


def ps_memory(job: JobView, ps: int) -> int:
    """Of each of so many servers: its share of what they hold. Where that is unknown, and while their number stays,
    no less than now: memory falls only with a change that is made anyway."""
    share = math.ceil(ps_state(job) / max(1, ps))
    return share if job.ps_state_bytes and share and ps != job.now.ps else max(job.now.ps_memory_bytes, share)


def allocation_at(job: JobView, shapes: Shapes, row: int) -> Allocation:
    """The row as an allocation, with the job's sizes of memory and accelerators."""
    return resized(
        job,
        round(float(shapes.workers[row])),
        round(float(shapes.ps[row])),
        float(shapes.worker_cpu[row]),
        float(shapes.ps_cpu[row]),
    )


def resized(
    job: JobView, workers: int, ps: int, worker_cpu: float | None = None, ps_cpu: float | None = None
) -> Allocation:
    """The job with other counts and cores; its servers still hold all of its rows."""
    now = job.now
    return Allocation(
        workers=workers,
        ps=ps,
        worker_cpu=now.worker_cpu if worker_cpu is None else worker_cpu,
        ps_cpu=now.ps_cpu if ps_cpu is None else ps_cpu,
        worker_memory_bytes=now.worker_memory_bytes,
        ps_memory_bytes=ps_memory(job, ps),
        worker_gpus=now.worker_gpus,
        gpu_kind=now.gpu_kind,
    )


def _fixed(now: Allocation, cluster: ClusterView) -> tuple[float, float]:
    """Price of a worker and of a server, whatever their cores; the servers' memory apart."""
    gpus = now.worker_gpus * cluster.prices.gpus.get(now.gpu_kind, 0.0)
    memory = now.worker_memory_bytes * cluster.prices.memory_bytes
    return cluster.pod_price + memory + gpus, cluster.pod_price


def _ps_memory(job: JobView, ps: Floats) -> tuple[Floats | None, Mask]:
    """Bytes of all servers of each row, as `ps_memory` has them, None where memory is unknown; and what is allowed."""
    state = ps_state(job)
    if state <= 0.0:
        return None, np.ones(len(ps), dtype=bool)
    share = np.ceil(state / ps)
    least = np.where(ps == job.now.ps, job.now.ps_memory_bytes, 0) if job.ps_state_bytes else job.now.ps_memory_bytes
    each = np.maximum(least, share)
    most = job.bounds.ps_memory_bytes
    return ps * each, each <= max(most, job.now.ps_memory_bytes) if most else np.ones(len(ps), dtype=bool)


def _room(job: JobView, cluster: ClusterView, grid: Grid, ps_memory: Floats | None) -> tuple[Mask, Mask]:
    """Whether what each takes beyond what the job holds is free, and left in its owner's quota."""
    held = Resources() if job.queued else job.now.resources
    now = job.now
    taken: list[tuple[Floats, str]] = [(grid.worker_cores + grid.ps_cores - held.cpu, "cpu")]
    if now.worker_memory_bytes or ps_memory is not None:
        memory = grid.shapes.workers * now.worker_memory_bytes - held.memory_bytes
        taken.append((memory if ps_memory is None else memory + ps_memory, "memory"))
    if now.worker_gpus:
        taken.append((grid.shapes.workers * now.worker_gpus - held.gpus.get(now.gpu_kind, 0.0), now.gpu_kind))
    quota = cluster.quotas.get(job.owner)
    free = left = np.ones(len(grid.shapes), dtype=bool)
    for column, kind in taken:
        free = free & (column <= _of(cluster.free, kind))
        if quota is not None:
            left = left & (column <= _of(quota, kind))
    return free, left


def _of(room: Resources, kind: str) -> float:
    """As `Resources.within` reads it: what is given back needs no room, and rounding is forgiven."""
    if kind == "cpu":
        return max(0.0, room.cpu) + 1e-9
    if kind == "memory":
        return max(0.0, room.memory_bytes) + 0.5
    return max(0.0, room.gpus.get(kind, 0.0)) + 1e-9
