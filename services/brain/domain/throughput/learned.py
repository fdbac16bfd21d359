"""What was learned of a job's speed: predictions with their uncertainty, and where they are guesses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Allocation, Floats, Prediction, Shapes, Throughput, doubts
from services.brain.domain.throughput.candidates import Candidate, Scaled, shares_of
from services.brain.domain.throughput.fit import reaches
from services.brain.domain.throughput.forms import Rows
from services.brain.domain.throughput.hull import Hull
from services.brain.domain.throughput.observations import Observation
from services.brain.domain.throughput.residual import Corrections, corrected

ROWS_AT_ONCE = 256
"""Of a prediction: what lies between stays in the processor's cache."""

LEAST_VARIANCE = 1e-6
"""Of ln T: of what single precision leaves of a difference."""
_WITHIN = 1e-3
_AXES = ("workers", "PS", "cores per worker", "cores per PS")


@dataclass(frozen=True, slots=True)
class Batching:
    """Samples per step of one worker: the same whatever their number, or a total that they share."""

    samples: float
    shared: bool = False

    def per_worker(self, workers: Floats) -> Floats:
        """m."""
        return self.samples / workers if self.shared else np.full(len(workers), self.samples)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Forms with their coefficients, each corrected in one way or several, and the weights of these parts."""

    forms: tuple[tuple[Candidate, Floats], ...]
    form: NDArray[np.intp]
    """(parts,): which form each part corrects."""
    weights: Floats
    """(parts,): their sum is 1."""
    corrections: Corrections

    def log_step_s(self, rows: Rows) -> tuple[Floats, Floats]:
        """Mean and variance of ln T, (n,) each."""
        points = inputs_of(rows).astype(np.float32)
        fits = [shares_of(candidate.columns(rows), coefficients) for candidate, coefficients in self.forms]
        logs = np.log(np.stack([step_s for step_s, _ in fits], axis=1, dtype=np.float32))[:, self.form]
        shares = np.concatenate([of_form for _, of_form in fits], axis=1, dtype=np.float32)
        mean, variance = np.empty(len(rows)), np.empty(len(rows))
        for first in range(0, len(rows), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            means, variances = corrected(self.corrections, points[some], shares[some])
            means += logs[some]
            mean[some] = means @ self.weights
            variance[some] = variances + (means - mean[some, None]) ** 2 @ self.weights
        return mean, variance


@dataclass(frozen=True, slots=True)
class Unknown:
    """Too little was measured."""

    reason: str


@dataclass(frozen=True)
class Learned:
    """A mean of forms, weighted by how well each predicts what it was not fitted on; it is a `Throughput`."""

    mixture: Mixture
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
        if len(shapes) == 1:        # planners ask of what a job has now
            row = tuple(float(each[0]) for each in (shapes.workers, shapes.ps, shapes.worker_cpu, shapes.ps_cpu))
            if row in self._places:
                at, known = self._places[row], self.of_observations
                return Prediction(known.rate[at : at + 1], known.log_sd[at : at + 1])
        return self._predict(shapes)

    @cached_property
    def of_observations(self) -> Prediction:
        """In their order."""
        return self._predict(Shapes.of([each.allocation for each in self.observations]))

    @cached_property
    def _places(self) -> dict[tuple[float, ...], int]:
        return {
            (float(each.workers), float(each.ps), each.worker_cpu, each.ps_cpu): place
            for place, each in enumerate(self.observations)
        }

    def _predict(self, shapes: Shapes) -> Prediction:
        rows = Rows.of(shapes, self.batching.per_worker(shapes.workers))
        mean, variance = self.mixture.log_step_s(rows)
        log_sd = np.sqrt(np.maximum(variance, LEAST_VARIANCE))
        return Prediction(rows.workers * rows.batch * np.exp(-np.clip(mean, -60.0, 60.0)), log_sd)

    def doubt(self, allocation: Allocation) -> str:
        """Why it is an extrapolation; "" within what was measured."""
        return self.doubt_each([allocation])[0]

    def doubt_each(self, allocations: Sequence[Allocation]) -> list[str]:
        """`doubt` of each: of many at once it takes a fraction of the time.

        While the job does as a similar one did, what that one has shown counts as measured.
        """
        shapes = Shapes.of(allocations)
        rows = Rows.of(shapes, self.batching.per_worker(shapes.workers))
        table = np.stack([shapes.workers, shapes.ps, shapes.worker_cpu, shapes.ps_cpu], axis=1)
        low, high = self._ranges
        beyond = (table < low * (1 - _WITHIN)) | (table > high * (1 + _WITHIN))
        between: NDArray[np.bool_] = ~np.logical_or.reduce(beyond, axis=1)
        between[between] = self._hull.holds(inputs_of(rows)[between])
        apart = np.zeros(len(rows), dtype=bool)
        if self.unidentified:
            apart = reaches(self.candidate.columns(rows), self.directions)
        prior = [""] * len(rows) if self._follows is None else doubts(self._follows, allocations)
        shown = [self._follows is not None and not doubt for doubt in prior]
        answers = zip(table.tolist(), beyond.tolist(), between.tolist(), apart.tolist(), strict=True)
        return [
            "" if is_shown else "; ".join(self._doubts(each, *answer))
            for each, is_shown, answer in zip(allocations, shown, answers, strict=True)
        ]

    def _doubts(
        self, allocation: Allocation, values: Sequence[float], beyond: Sequence[bool], between: bool, apart: bool
    ) -> Sequence[str]:
        kind = allocation.gpu_kind
        if kind not in self._kinds:
            measured = ", ".join(sorted(each or "CPU" for each in self._kinds))
            return [f"{kind or 'CPU'} was not measured, only {measured}"]
        found = [
            f"{value:g} {what}: {measured}"
            for value, what, measured, is_beyond in zip(values, _AXES, self._measured, beyond, strict=True)
            if is_beyond
        ]
        if not found and not between:
            found.append("each number lies within what was measured, but not their combination")
        if apart:
            found += [f"{each}, and this needs them apart" for each in self.unidentified]
        return found

    @property
    def shown_before(self) -> tuple[Allocation, ...]:
        """What a similar job has had, while this one does as that did; empty otherwise."""
        prior = self._follows
        return tuple(each.allocation for each in prior.observations) if isinstance(prior, Learned) else ()

    @property
    def _follows(self) -> Throughput | None:
        return self.candidate.prior if isinstance(self.candidate, Scaled) else None

    @cached_property
    def _kinds(self) -> frozenset[str]:
        return frozenset(each.hardware for each in self.observations)

    @cached_property
    def _ranges(self) -> tuple[Floats, Floats]:
        """From least to most of what was measured, (4,) each."""
        table = np.array([(each.workers, each.ps, each.worker_cpu, each.ps_cpu) for each in self.observations])
        return table.min(axis=0), table.max(axis=0)

    @cached_property
    def _measured(self) -> list[str]:
        """The same in words."""
        return [_range(low, high) for low, high in zip(*(ends.tolist() for ends in self._ranges), strict=True)]

    @cached_property
    def _hull(self) -> Hull:
        return Hull(self.inputs)


def inputs_of(rows: Rows) -> Floats:
    """ln w, ln p, ln λw, ln λp: (n, 4)."""
    table: Floats = np.log(np.array([rows.workers, rows.ps, rows.worker_cpu, rows.ps_cpu]).T)
    return table


def _range(low: float, high: float) -> str:
    return f"only {low:g} was measured" if low == high else f"{low:g} to {high:g} were measured"
