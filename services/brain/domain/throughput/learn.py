"""From observations to a model of a job's speed."""

from collections.abc import Sequence

import numpy as np

from recmesh.plugins.planning import Floats, Throughput
from services.brain.domain.throughput.breakdown import Parts
from services.brain.domain.throughput.candidates import Scaled, Tried, tried
from services.brain.domain.throughput.fit import in_words, told_apart, unknown_directions
from services.brain.domain.throughput.forms import Rows
from services.brain.domain.throughput.learned import Batching, Learned, Mixture, Unknown, inputs_of
from services.brain.domain.throughput.observations import Observation
from services.brain.domain.throughput.regime import current
from services.brain.domain.throughput.residual import Kernels, corrections, kernels, mixture

LEAST_CONFIGURATIONS = 3
"""Of an own model: with two, any form fits, and nothing tells which."""
PARTS_KEPT = 8
NEWEST_KEPT = 100
"""Observations; older ones are dropped."""
SAME_KEPT = 4
"""Observations of one configuration; older ones are dropped, but for the oldest: it shows at which level all began."""
AGE_S = 7 * 86400.0
"""An observation of this age counts half: clusters drift."""


def learn(
    observations: Sequence[Observation],
    *,
    now: float,
    shared_batch: bool = False,
    prior: Throughput | None = None,
) -> Learned | Unknown:
    """A model of one job on one kind of hardware; ValueError when observations are of several, or of both modes.

    `shared_batch`: workers share one batch of constant size (KALE's M), instead of one each. `prior` is what is known
    of a similar job or of the same job on another kind of hardware; a factor and a correction are learned for it.
    Where the speed has changed, what was learned before is the prior of what comes after.
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
    own = distinct >= LEAST_CONFIGURATIONS
    if prior is None and not own:
        plural = "configuration was" if distinct == 1 else "configurations were"
        return Unknown(f"{distinct} {plural} measured; {LEAST_CONFIGURATIONS} are needed to tell how speed changes")
    rows = rows_of(observations)
    grid = kernels(inputs_of(rows), _precision(observations, now))
    candidates = tried(observations, rows, grid, own=own, prior=prior)
    mixed, best = _mixed(candidates, grid)
    directions = best.candidate.directions if isinstance(best.candidate, Parts) else unknown_directions(best.columns)
    newest = observations[-1]
    notes = [f"the speed changed: {forgotten} older measurements are used for the shape alone"] if forgotten else []
    if isinstance(best.candidate, Scaled):
        notes.append("too little was measured here: this is the speed of something similar, times a factor")
    return Learned(
        mixture=mixed,
        batching=Batching(newest.batch * (newest.workers if shared_batch else 1.0), shared_batch),
        observations=tuple(observations),
        inputs=grid.inputs,
        candidate=best.candidate,
        coefficients=dict(zip(best.candidate.terms, best.coefficients.tolist(), strict=True)),
        error=best.error,
        errors={each.candidate.name: each.error for each in candidates},
        directions=directions,
        unidentified=in_words(told_apart(directions, best.columns, best.candidate.terms)),
        notes=tuple(notes),
        forgotten=forgotten,
    )


def _mixed(candidates: Sequence[Tried], grid: Kernels) -> tuple[Mixture, Tried]:
    """Candidates with their corrections, weighted by the density that each gives to what it did not see; the best."""
    scores = np.concatenate([each.scores.log_density + each.log_odds for each in candidates])
    chosen, weights = mixture(scores, PARTS_KEPT)
    which, points = np.divmod(chosen, len(grid.sizes))
    weight_of = np.bincount(which, weights, len(candidates))
    kept = np.flatnonzero(weight_of)
    forms = [candidates[k] for k in kept.tolist()]
    form = np.searchsorted(kept, which)
    by = corrections(grid, points, weights, form, [each.residual for each in forms], [each.shares for each in forms])
    parts = Mixture(tuple((each.candidate, each.coefficients) for each in forms), form, weights, by)
    return parts, candidates[int(np.argmax(np.round(weight_of, 9)))]  # of equals the first


def _newest(ordered: Sequence[Observation]) -> list[Observation]:
    """Of each configuration the newest and the oldest, of all the newest, in order of time."""
    places: dict[object, list[int]] = {}
    for i, each in enumerate(ordered):
        places.setdefault(each.configuration, []).append(i)
    kept = {i for mine in places.values() for i in (mine[0], *mine[-SAME_KEPT:])}
    return [ordered[i] for i in sorted(kept)[-NEWEST_KEPT:]]


def _precision(observations: Sequence[Observation], now: float) -> Floats:
    """1 for one fresh window; many windows count up to 2: what differs between configurations does not average out."""
    windows = np.array([each.windows for each in observations])
    age = np.array([max(0.0, now - each.at) for each in observations])
    precision: Floats = 2.0 * windows / (1.0 + windows) / (1.0 + age / AGE_S)
    return precision
