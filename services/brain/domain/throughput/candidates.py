"""What may describe a job's step time, and how each does on what it was not fitted on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from recmesh.plugins.planning import Floats, Shapes, Throughput
from services.brain.domain.throughput.breakdown import Parts, from_breakdown
from services.brain.domain.throughput.fit import rmsle_fit
from services.brain.domain.throughput.forms import (
    BARRIER,
    CONTENTION,
    DLROVER,
    KALE_ASYNC,
    KALE_ASYNC_RATIO,
    KALE_SYNC,
    KALE_SYNC_RATIO,
    Form,
    Rows,
)
from services.brain.domain.throughput.observations import Mode, Observation
from services.brain.domain.throughput.residual import Kernels, Scores, leave_one_out, padded

FORMS: Mapping[Mode, tuple[Form, ...]] = MappingProxyType(
    {
        Mode.SYNC: (DLROVER, BARRIER, CONTENTION, KALE_SYNC),
        Mode.ASYNC: (DLROVER, CONTENTION, KALE_ASYNC),
    }
)
AT_FIXED_RATIO: Mapping[Mode, Form] = MappingProxyType({Mode.SYNC: KALE_SYNC_RATIO, Mode.ASYNC: KALE_ASYNC_RATIO})

GROWING_LOG_ODDS = -3.0
"""Before anything is measured, of a form with a term that grows with every PS: it fits within what was measured and
fails beyond it. What is left out there cannot show that, so such a form has to be better by more."""
OTHER_LOG_ODDS = 1.5
"""Of the speed of something similar times a factor: few measurements cannot tell forms apart, but scale it well."""
PARTS_LOG_ODDS = 3.0
"""Of terms that were fitted part by part: in the total some of them may be mistaken for others."""


class Candidate(Protocol):
    """A form, or the speed of something else up to a factor."""

    @property
    def name(self) -> str:
        """In words."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of its columns."""

    def columns(self, rows: Rows) -> Floats:
        """(n, terms); step time is linear in them."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """Step time of another job, of another kind of hardware or of a former regime, times one factor."""

    prior: Throughput
    name: str = "like something similar, times a factor"
    terms: tuple[str, ...] = ("step time of the other",)

    def columns(self, rows: Rows) -> Floats:
        """T of the other model."""
        shapes = Shapes(rows.workers, rows.ps, rows.worker_cpu, rows.ps_cpu)
        step_s: Floats = rows.workers * rows.batch / self.prior.predict(shapes).rate
        return step_s[:, None]


@dataclass(frozen=True, slots=True)
class Tried:
    """A candidate on the observations."""

    candidate: Candidate
    columns: Floats
    coefficients: Floats
    residual: Floats
    """ln T measured − ln T of the form."""
    shares: Floats
    """(n, coefficients above 0): of step time."""
    scores: Scores
    """At every point of the correction's grid."""
    log_odds: float

    @property
    def error(self) -> float:
        """Mean |ln| error of an observation, predicted from all others, with the best correction."""
        return float(self.scores.error[np.argmax(self.scores.log_density)])


def tried(
    observations: Sequence[Observation], rows: Rows, grid: Kernels, *, own: bool, prior: Throughput | None
) -> list[Tried]:
    """Every candidate: the forms of the job's mode if `own`, one fitted by parts where these are known, the prior."""
    step_s = np.array([each.step_s for each in observations])
    found: list[tuple[Candidate, Floats, Floats, float]] = []
    for form in _forms(observations[-1].mode, rows) if own else ():
        columns = form.columns(rows)
        coefficients = rmsle_fit(columns, step_s, weights=grid.precision)
        found.append((form, columns, coefficients, GROWING_LOG_ODDS if "ps count" in form.terms else 0.0))
    parts = from_breakdown(observations, rows)
    if isinstance(parts, Parts) and own:
        found.append((parts, parts.columns(rows), parts.coefficients, PARTS_LOG_ODDS))
    if prior is not None:
        other = Scaled(prior)
        columns = other.columns(rows)
        found.append((other, columns, rmsle_fit(columns, step_s, weights=grid.precision), OTHER_LOG_ODDS))
    fits = [shares_of(columns, coefficients) for _, columns, coefficients, _ in found]
    residuals = np.log(step_s / np.stack([fitted for fitted, _ in fits]))
    scores = leave_one_out(grid, residuals, padded([shares for _, shares in fits]))
    return [
        Tried(candidate, columns, coefficients, residual, shares, score, odds)
        for (candidate, columns, coefficients, odds), (_, shares), residual, score in zip(
            found, fits, residuals, scores, strict=True
        )
    ]


def shares_of(columns: Floats, coefficients: Floats) -> tuple[Floats, Floats]:
    """Step time ŷ (n,), and which share of it each coefficient above 0 makes, (n, coefficients above 0)."""
    step_s: Floats = np.maximum(columns @ coefficients, 1e-12)
    used = coefficients > 0
    shares: Floats = columns[:, used] * coefficients[used]
    shares /= step_s[:, None]
    return step_s, shares


def _forms(mode: Mode, rows: Rows) -> tuple[Form, ...]:
    ratios = rows.workers / rows.ps
    fixed = ratios.max() <= 1.01 * ratios.min()
    return (*FORMS[mode], AT_FIXED_RATIO[mode]) if fixed else FORMS[mode]
