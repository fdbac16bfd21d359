"""From observations to a model of a job's speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from recmesh.plugins.planning import Floats, Throughput
from services.brain.domain.throughput.breakdown import Parts, from_breakdown
from services.brain.domain.throughput.fit import in_words, rmsle_fit, told_apart, unknown_directions
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
from services.brain.domain.throughput.learned import Batching, Candidate, Learned, Part, Scaled, Unknown, inputs_of
from services.brain.domain.throughput.observations import Mode, Observation
from services.brain.domain.throughput.regime import current
from services.brain.domain.throughput.residual import Kernels, Scores, correction, kernels, leave_one_out, mixture

LEAST_CONFIGURATIONS = 3
"""Of an own model: with two, any form fits, and nothing tells which."""
PARTS_KEPT = 8
NEWEST_KEPT = 100
"""Observations beyond these are older ones of configurations that were measured again since, or simply old."""
AGE_S = 7 * 86400.0
"""An observation of this age counts half: clusters drift."""

FORMS: Mapping[Mode, tuple[Form, ...]] = MappingProxyType(
    {
        Mode.SYNC: (DLROVER, BARRIER, CONTENTION, KALE_SYNC),
        Mode.ASYNC: (DLROVER, CONTENTION, KALE_ASYNC),
    }
)
AT_FIXED_RATIO: Mapping[Mode, Form] = MappingProxyType(
    {Mode.SYNC: KALE_SYNC_RATIO, Mode.ASYNC: KALE_ASYNC_RATIO}
)

LOG_ODDS: Mapping[str, float] = MappingProxyType({KALE_SYNC.name: -3.0, KALE_ASYNC.name: -3.0})
"""Before anything is measured. A term that grows with every PS fits within what was measured and fails beyond it: what
was left out there cannot show that, so such a form has to be better by more."""
_PRIOR_LOG_ODDS = 1.5


@dataclass(frozen=True, slots=True)
class _Fitted:
    candidate: Candidate
    coefficients: Floats
    residual: Floats
    shares: Floats
    scores: Scores


def learn(
    observations: Sequence[Observation],
    *,
    now: float,
    shared_batch: bool = False,
    prior: Throughput | None = None,
) -> Learned | Unknown:
    """A model of one job on one kind of hardware.

    `shared_batch`: workers share one batch of constant size (KALE's M), instead of one each. `prior` is what is known
    of a similar job or of the same job on another kind of hardware; a factor and a correction are learned for it.
    """
    ordered = sorted((each for each in observations if each.samples_per_s > 0), key=lambda each: each.at)
    kinds = {(each.hardware, each.mode) for each in ordered}
    if len(kinds) > 1:
        raise ValueError(f"observations of {len(kinds)} kinds of hardware or modes; learn each by itself")
    recent = _newest(ordered)
    if not recent:
        return Unknown("nothing was measured")
    rows = rows_of(recent)
    old = current(recent, rows, inputs_of(rows)) if recent[0].at < recent[-1].at else 0
    if not old:
        return _fit(recent, now=now, shared_batch=shared_batch, prior=prior)
    before = _fit(recent[:old], now=recent[old - 1].at, shared_batch=shared_batch, prior=prior)
    known = before if isinstance(before, Learned) else prior
    return _fit(recent[old:], now=now, shared_batch=shared_batch, prior=known, forgotten=old)


def learn_kinds(
    observations: Sequence[Observation], *, now: float, shared_batch: bool = False, prior: Throughput | None = None
) -> dict[str, Learned | Unknown]:
    """One model per kind of hardware; the kind that was measured best is the prior of the others."""
    by_kind: dict[str, list[Observation]] = {}
    for each in observations:
        by_kind.setdefault(each.hardware, []).append(each)
    ranked = sorted(by_kind, key=lambda kind: (-len({each.configuration for each in by_kind[kind]}), kind))
    found: dict[str, Learned | Unknown] = {}
    for kind in ranked:
        model = learn(by_kind[kind], now=now, shared_batch=shared_batch, prior=prior)
        found[kind] = model
        if kind == ranked[0] and isinstance(model, Learned):
            prior = model
    return found


def rows_of(observations: Sequence[Observation]) -> Rows:
    """As columns."""
    table = np.array([(o.workers, o.ps, o.worker_cpu, o.ps_cpu, o.batch) for o in observations], dtype=np.float64)
    return Rows(*table.T)


def _fit(
    observations: Sequence[Observation], *, now: float, shared_batch: bool, prior: Throughput | None, forgotten: int = 0
) -> Learned | Unknown:
    distinct = len({each.configuration for each in observations})
    if prior is None and distinct < LEAST_CONFIGURATIONS:
        plural = "configuration was" if distinct == 1 else "configurations were"
        return Unknown(f"{distinct} {plural} measured; {LEAST_CONFIGURATIONS} are needed to tell how speed changes")
    rows = rows_of(observations)
    step_s = np.array([each.step_s for each in observations])
    precision = _precision(observations, now)
    parts = from_breakdown(observations, rows)
    grid = kernels(inputs_of(rows), precision)
    own = _forms(observations[-1].mode, rows) if distinct >= LEAST_CONFIGURATIONS else ()
    fitted = [_candidate(form, rmsle_fit(form.columns(rows), step_s, weights=precision), rows, step_s, grid)
              for form in own]
    if isinstance(parts, Parts):
        fitted.append(_candidate(parts, parts.coefficients, rows, step_s, grid))
    if prior is not None:
        other = Scaled(prior)
        fitted.append(_candidate(other, rmsle_fit(other.columns(rows), step_s, weights=precision), rows, step_s, grid))
    return _learned(fitted, grid, rows, observations, shared_batch, forgotten, prior is not None)


def _learned(
    fitted: Sequence[_Fitted],
    grid: Kernels,
    rows: Rows,
    observations: Sequence[Observation],
    shared_batch: bool,
    forgotten: int,
    has_prior: bool,
) -> Learned:
    odds = [LOG_ODDS.get(each.candidate.name, _PRIOR_LOG_ODDS if isinstance(each.candidate, Scaled) else 0.0)
            for each in fitted]
    scores = np.concatenate([each.scores.log_density + odd for each, odd in zip(fitted, odds, strict=True)])
    chosen, weights = mixture(scores, PARTS_KEPT)
    points = len(grid.sizes)
    parts = tuple(
        Part(
            fitted[at // points].candidate,
            fitted[at // points].coefficients,
            correction(grid, at % points, fitted[at // points].residual, fitted[at // points].shares),
            float(weight),
        )
        for at, weight in zip(chosen, weights, strict=True)
    )
    by_form: dict[str, float] = {}
    for part in parts:
        by_form[part.candidate.name] = by_form.get(part.candidate.name, 0.0) + part.weight
    name = max(by_form, key=lambda each: by_form[each])
    best = next(each for each in fitted if each.candidate.name == name)
    errors = {each.candidate.name: float(each.scores.error[np.argmax(each.scores.log_density)]) for each in fitted}
    columns = best.candidate.columns(rows)
    newest = observations[-1]
    notes = [f"the speed changed: {forgotten} older measurements are used for the shape alone"] if forgotten else []
    if has_prior and name == Scaled.name:
        notes.append("too little was measured here: this is the speed of something similar, times a factor")
    return Learned(
        parts,
        Batching(newest.batch * (newest.workers if shared_batch else 1.0), shared_batch),
        tuple(observations),
        grid.inputs,
        name,
        dict(zip(best.candidate.terms, best.coefficients.tolist(), strict=True)),
        errors[name],
        errors,
        unknown_directions(columns),
        in_words(told_apart(columns, best.candidate.terms)),
        tuple(notes),
        forgotten,
        best.candidate,
    )


def _candidate(candidate: Candidate, coefficients: Floats, rows: Rows, step_s: Floats, grid: Kernels) -> _Fitted:
    columns = candidate.columns(rows)
    fitted = np.maximum(columns @ coefficients, 1e-12)
    used = coefficients > 0
    shares = columns[:, used] * coefficients[used] / fitted[:, None]
    residual = np.log(step_s / fitted)
    return _Fitted(candidate, coefficients, residual, shares, leave_one_out(grid, residual, shares))


def _forms(mode: Mode, rows: Rows) -> tuple[Form, ...]:
    ratios = rows.workers / rows.ps
    fixed = ratios.max() <= 1.01 * ratios.min()
    return (*FORMS[mode], AT_FIXED_RATIO[mode]) if fixed else FORMS[mode]


def _newest(ordered: Sequence[Observation]) -> list[Observation]:
    """The newest of all, and of each configuration the newest four, in order of time."""
    seen: dict[object, int] = {}
    kept: list[Observation] = []
    for each in reversed(ordered):
        seen[each.configuration] = seen.get(each.configuration, 0) + 1
        if seen[each.configuration] <= 4 and len(kept) < NEWEST_KEPT:
            kept.append(each)
    return kept[::-1]


def _precision(observations: Sequence[Observation], now: float) -> Floats:
    """1 for one fresh window; many windows count up to 2, as what differs between configurations does not average out."""
    windows = np.array([each.windows for each in observations])
    age = np.array([max(0.0, now - each.at) for each in observations])
    precision: Floats = 2.0 * windows / (1.0 + windows) / (1.0 + age / AGE_S)
    return precision
