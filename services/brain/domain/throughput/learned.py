"""What was learned of a job's speed: predictions with their uncertainty, and where they are guesses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from recmesh.plugins.planning import Allocation, Floats, Prediction, Shapes
from services.brain.domain.throughput.candidates import Candidate
from services.brain.domain.throughput.fit import reaches
from services.brain.domain.throughput.forms import Rows
from services.brain.domain.throughput.observations import Observation
from services.brain.domain.throughput.residual import Correction, corrected, matern

_WITHIN = 1e-3


@dataclass(frozen=True, slots=True)
class Batching:
    """Samples per step of one worker: the same whatever their number, or a total that they share."""

    samples: float
    shared: bool = False

    def per_worker(self, workers: Floats) -> Floats:
        """m."""
        return self.samples / workers if self.shared else np.full(len(workers), self.samples)


@dataclass(frozen=True, slots=True)
class Part:
    """One form with its coefficients, and one correction of it."""

    candidate: Candidate
    coefficients: Floats
    correction: Correction
    weight: float

    @property
    def used(self) -> NDArray[np.bool_]:
        """Which coefficients are above 0."""
        above: NDArray[np.bool_] = self.coefficients > 0
        return above


@dataclass(frozen=True, slots=True)
class Unknown:
    """Too little was measured."""

    reason: str


@dataclass(frozen=True)
class Learned:
    """A mean of forms, weighted by how well each predicts what it was not fitted on; it is a `Throughput`."""

    parts: tuple[Part, ...]
    batching: Batching
    observations: tuple[Observation, ...]
    """That it was fitted on: of the present regime."""
    inputs: Floats
    candidate: Candidate
    """The one of most weight."""
    coefficients: Mapping[str, float]
    """Of that form, by term."""
    error: float
    """Mean |ln| error of an observation predicted from all others, by that form and its correction."""
    errors: Mapping[str, float]
    """The same of every form that was tried."""
    directions: Floats
    """Unknown directions of coefficients of that form."""
    unidentified: tuple[str, ...] = ()
    """Terms that the measurements cannot tell apart, in words."""
    notes: tuple[str, ...] = ()
    """What else a reader should know: a forgotten regime, a prior, step times that do not add up."""
    forgotten: int = 0
    """Observations of former regimes."""

    @property
    def form(self) -> str:
        """Name of the form of most weight."""
        return self.candidate.name

    def predict(self, shapes: Shapes) -> Prediction:
        """Rates above 0, and the standard deviation of their logarithm, noise of one window included."""
        rows = Rows.of(shapes, self.batching.per_worker(shapes.workers))
        points = inputs_of(rows)
        scales = np.unique(np.stack([part.correction.scale for part in self.parts]), axis=0)
        across = dict(zip(map(tuple, scales.tolist()), matern(points, self.inputs, scales), strict=True))
        means, variances = [], []
        columns: dict[str, Floats] = {}
        for part in self.parts:
            x = columns.get(part.candidate.name)
            if x is None:
                x = columns[part.candidate.name] = part.candidate.columns(rows)
            step_s = np.maximum(x @ part.coefficients, 1e-12)
            shares = x[:, part.used] * part.coefficients[part.used] / step_s[:, None]
            mean, variance = corrected(part.correction, across[tuple(part.correction.scale.tolist())], shares)
            means.append(np.log(step_s) + mean)
            variances.append(variance)
        weights = np.array([part.weight for part in self.parts])
        mean = weights @ np.stack(means)
        spread = weights @ (np.stack(variances) + (np.stack(means) - mean) ** 2)
        rate = rows.workers * rows.batch * np.exp(-np.clip(mean, -60.0, 60.0))
        return Prediction(rate, np.sqrt(spread))

    def doubt(self, allocation: Allocation) -> str:
        """Why it is an extrapolation; "" within what was measured."""
        return "; ".join(self._doubts(allocation))

    def _doubts(self, allocation: Allocation) -> Sequence[str]:
        kinds = {each.hardware for each in self.observations}
        if allocation.gpu_kind not in kinds:
            measured = ", ".join(sorted(kind or "CPU" for kind in kinds))
            return [f"{allocation.gpu_kind or 'CPU'} was not measured, only {measured}"]
        found = [
            f"{_amount(value)} {what}: {_range(values)}"
            for what, value, values in (
                ("workers", allocation.workers, [each.workers for each in self.observations]),
                ("PS", allocation.ps, [each.ps for each in self.observations]),
                ("cores per worker", allocation.worker_cpu, [each.worker_cpu for each in self.observations]),
                ("cores per PS", allocation.ps_cpu, [each.ps_cpu for each in self.observations]),
            )
            if not min(values) * (1 - _WITHIN) <= value <= max(values) * (1 + _WITHIN)
        ]
        rows = self._row(allocation)
        if not found and not within_hull(inputs_of(rows)[0], self.inputs):
            found.append("each number lies within what was measured, but not their combination")
        if self.unidentified:
            row = self.candidate.columns(rows)[0]
            if reaches(row, self.directions):
                found += [f"{each}, and this needs them apart" for each in self.unidentified]
        return found

    def _row(self, allocation: Allocation) -> Rows:
        shapes = Shapes.of([allocation])
        return Rows.of(shapes, self.batching.per_worker(shapes.workers))


def inputs_of(rows: Rows) -> Floats:
    """ln w, ln p, ln λw, ln λp: (n, 4)."""
    return np.log(np.stack([rows.workers, rows.ps, rows.worker_cpu, rows.ps_cpu], axis=1))


def within_hull(point: Floats, points: Floats) -> bool:
    """Whether `point` (d,) is a convex combination of `points` (n, d): non-negative weights that sum to 1."""
    columns = np.vstack([points.T, np.ones(len(points))])
    _, left = nnls(columns, np.append(point, 1.0))
    return bool(left < _WITHIN)


def _amount(value: float) -> str:
    return f"{value:g}"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"only {_amount(low)} was measured" if low == high else f"{_amount(low)} to {_amount(high)} were measured"
