"""How fast a model really trains at which size: what planners have to find out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

from recmesh.plugins.planning import Allocation, Floats, Prediction, Shapes
from services.brain.simulator.job import ModelFacts

Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Use:
    """What the processes of a job really use, in sum."""

    cpu: float
    memory_bytes: float


class Truth(Protocol):
    """Speeds and use of all models that were measured."""

    name: str
    models: tuple[str, ...]

    def facts(self, model: str) -> ModelFacts:
        """What a user knows of it."""

    def rates(self, model: str, shapes: Shapes) -> Floats:
        """Samples per second of each shape, (n,), above 0."""

    def use(self, model: str, allocation: Allocation) -> Use:
        """While it trains."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of a table: a job of so many workers and servers, and its speed in samples per second."""

    workers: int
    ps: int
    rate: float
    worker_cpu: float = 0.0
    """Cores that one worker used, the mean over workers; 0: not measured."""
    ps_cpu: float = 0.0
    """Cores that one server used, the mean over servers."""


@dataclass(frozen=True, slots=True)
class Table:
    """The measurements of one model as a full grid of counts, linear between neighbours in log(w), log(p), log(rate).

    Beyond the measured sizes the nearest measured one holds: nothing is extrapolated, so there is nothing to be gained
    by going there, and no form of any planner is built in.
    """

    facts: ModelFacts
    rate: Floats
    """[workers − 1, ps − 1], like the others."""
    worker_cpu: Floats
    ps_cpu: Floats

    @classmethod
    def of(cls, facts: ModelFacts, rows: Sequence[Measurement]) -> "Table":
        """From at least one row above 0; rows of speed 0 (failed runs) are left out."""
        kept = [row for row in rows if row.rate > 0]
        shape = (max(row.workers for row in kept), max(row.ps for row in kept))
        points = np.array([(row.workers, row.ps) for row in kept], dtype=np.float64)
        return cls(
            facts,
            np.exp(_grid(points, np.log([row.rate for row in kept]), shape)),
            _grid(points, np.array([row.worker_cpu for row in kept]), shape),
            _grid(points, np.array([row.ps_cpu for row in kept]), shape),
        )

    def rates(self, shapes: Shapes) -> Floats:
        """By the counts. Fewer cores than a process was measured to use slow it in proportion; more add nothing."""
        at = self._at(shapes.workers, shapes.ps)
        share = np.minimum(
            _enough(shapes.worker_cpu, self.worker_cpu[at]),
            _enough(shapes.ps_cpu, self.ps_cpu[at]),
        )
        rates: Floats = self.rate[at] * share
        return rates

    def _at(self, workers: Floats, ps: Floats) -> tuple[Indices, Indices]:
        most, largest = self.rate.shape
        return (
            np.clip(np.rint(workers).astype(np.intp), 1, most) - 1,
            np.clip(np.rint(ps).astype(np.intp), 1, largest) - 1,
        )

    def use(self, allocation: Allocation) -> Use:
        """Cores as measured, never more than what is given; memory as the model's facts say that it needs."""
        at = self._at(np.array([allocation.workers]), np.array([allocation.ps]))
        worker = min(float(self.worker_cpu[at][0]), allocation.worker_cpu)
        server = min(float(self.ps_cpu[at][0]), allocation.ps_cpu)
        return Use(
            allocation.workers * worker + allocation.ps * server,
            memory_used(self.facts, allocation),
        )


def memory_used(facts: ModelFacts, allocation: Allocation) -> float:
    """Tables were not measured for memory: a worker uses .6 of what its model's worker is given, and the servers share
    the model's state; no process uses more than it has."""
    worker = min(0.6 * facts.worker_memory_bytes, allocation.worker_memory_bytes)
    server = min(facts.ps_state_bytes / max(1, allocation.ps), allocation.ps_memory_bytes)
    return allocation.workers * worker + allocation.ps * server


class Tables:
    """A truth of measured tables, one per model."""

    def __init__(self, name: str, tables: Mapping[str, Table]) -> None:
        self.name = name
        self.models = tuple(tables)
        self._tables = dict(tables)

    def facts(self, model: str) -> ModelFacts:
        """Of the model's table."""
        return self._tables[model].facts

    def rates(self, model: str, shapes: Shapes) -> Floats:
        """From the model's table."""
        return self._tables[model].rates(shapes)

    def use(self, model: str, allocation: Allocation) -> Use:
        """From the model's table."""
        return self._tables[model].use(allocation)


@dataclass(frozen=True, slots=True)
class Oracle:
    """The truth as a throughput model without doubt: what only `tuned` may see."""

    truth: Truth
    model: str

    def predict(self, shapes: Shapes) -> Prediction:
        """The very rates."""
        return Prediction(self.truth.rates(self.model, shapes), np.zeros(len(shapes)))

    def doubt(self, allocation: Allocation) -> str:
        """None."""
        return ""


def rate_of(truth: Truth, model: str, allocation: Allocation) -> float:
    """Samples per second of one allocation."""
    return float(truth.rates(model, Shapes.of([allocation]))[0])


def _enough(given: Floats, used: Floats) -> Floats:
    share: Floats = np.minimum(1.0, given / np.maximum(used, 1e-9))
    return share


def _grid(points: Floats, values: Floats, shape: tuple[int, int]) -> Floats:
    logs = np.log(points)
    w, p = np.meshgrid(np.log(np.arange(1, shape[0] + 1)), np.log(np.arange(1, shape[1] + 1)), indexing="ij")
    grid: Floats = NearestNDInterpolator(logs, values)(w, p)
    spans = all(len(np.unique(column)) > 1 for column in logs.T) and len(points) > 3
    if spans:
        inside = LinearNDInterpolator(logs, values)(w, p)
        grid = np.where(np.isfinite(inside), inside, grid)
    elif len(np.unique(logs[:, 0])) > 1:  # one row of servers: a line
        order = np.argsort(logs[:, 0])
        grid = np.interp(w, logs[order, 0], values[order])
    return grid
