"""All allocations that a job's limits allow, as four axes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Allocation, Bounds, Floats, Shapes

Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Axes:
    """The values of workers, servers, cores of a worker and cores of a server, each rising."""

    workers: tuple[float, ...]
    ps: tuple[float, ...]
    worker_cpu: tuple[float, ...]
    ps_cpu: tuple[float, ...]

    @property
    def lengths(self) -> tuple[int, int, int, int]:
        """Values of each."""
        return len(self.workers), len(self.ps), len(self.worker_cpu), len(self.ps_cpu)

    @property
    def size(self) -> int:
        """Allocations in all."""
        a, b, c, d = self.lengths
        return a * b * c * d

    def __iter__(self) -> Iterator[tuple[float, ...]]:
        return iter((self.workers, self.ps, self.worker_cpu, self.ps_cpu))


@dataclass(frozen=True, slots=True)
class Grid:
    """Some allocations of the axes, and what each role has in cores, (n,) each."""

    shapes: Shapes
    worker_cores: Floats
    ps_cores: Floats


def axes(bounds: Bounds, now: Allocation) -> Axes:
    """Counts one by one, cores by step; the ends and what the job has now are always among them."""
    return Axes(
        tuple(map(float, range(bounds.workers[0], bounds.workers[1] + 1))),
        tuple(map(float, range(bounds.ps[0], bounds.ps[1] + 1))),
        _cores(bounds.worker_cpu, now.worker_cpu, bounds.cpu_step),
        _cores(bounds.ps_cpu, now.ps_cpu, bounds.cpu_step),
    )


@lru_cache(maxsize=256)
def thinned_out(of: Axes, most: int) -> Axes:
    """At most so many values of each axis, evenly, with both ends: a first impression of all of them."""
    return Axes(
        *(
            tuple(values[k] for k in sorted({round(at) for at in np.linspace(0, len(values) - 1, most)}))
            for values in of
        )
    )


@lru_cache(maxsize=256)
def _cores(limits: tuple[float, float], now: float, step: float) -> tuple[float, ...]:
    low, high = limits
    stride = step or (1.0 if high >= 2.0 else 0.25)
    first = np.ceil(low / stride - 1e-9) * stride
    between = np.round(np.arange(first, high + 1e-9, stride), 6)
    extra = [now] if low <= now <= high else []
    return tuple(float(each) for each in np.unique([low, high, *extra, *between]))


@lru_cache(maxsize=64)
def enumerated(of: Axes) -> Grid:
    """Every allocation. Jobs with the same limits share it, so it must not be written to."""
    columns = np.meshgrid(*(np.array(values) for values in of), indexing="ij")
    return _grid([np.ascontiguousarray(column.reshape(-1)) for column in columns])


def picked(of: Axes, index: Index) -> Grid:
    """The allocations of these rows of positions, (n, 4)."""
    return _grid([np.array(values)[index[:, k]] for k, values in enumerate(of)])


def position(of: Axes, allocation: Allocation) -> Index:
    """Where it is, or what is closest to it, (4,)."""
    wanted = (allocation.workers, allocation.ps, allocation.worker_cpu, allocation.ps_cpu)
    found = [int(np.abs(np.array(values) - value).argmin()) for values, value in zip(of, wanted, strict=True)]
    return np.array(found, dtype=np.int64)


def _grid(columns: list[Floats]) -> Grid:
    shapes = Shapes(*columns)
    grid = Grid(shapes, shapes.workers * shapes.worker_cpu, shapes.ps * shapes.ps_cpu)
    for column in (*columns, grid.worker_cores, grid.ps_cores):
        column.setflags(write=False)
    return grid


def clamped(allocation: Allocation, bounds: Bounds) -> Allocation:
    """The closest that the bounds hold."""
    return replace(
        allocation,
        workers=min(max(allocation.workers, bounds.workers[0]), bounds.workers[1]),
        ps=min(max(allocation.ps, bounds.ps[0]), bounds.ps[1]),
        worker_cpu=min(max(allocation.worker_cpu, bounds.worker_cpu[0]), bounds.worker_cpu[1]),
        ps_cpu=min(max(allocation.ps_cpu, bounds.ps_cpu[0]), bounds.ps_cpu[1]),
    )
