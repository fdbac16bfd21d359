"""Fit and plan for 100, 1,000 and 10,000 jobs on one core, and NSGA-II against enumeration.

Each job trains by the paper's form with coefficients of its own, has been measured 12 times around where it is (noise
of 3 %), and may have 28,800 allocations. `s_*` is CPU time of one round, models included: all runs on one thread.
"""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import nnls

from bench.figures import Result
from recmesh.plugins.planning import (
    Allocation,
    Bounds,
    ClusterView,
    Floats,
    JobView,
    Overheads,
    Prediction,
    Resources,
    Shapes,
    Throughput,
)
from services.brain.domain.planning.front import hypervolume
from services.brain.domain.planning.grid import axes, enumerated
from services.brain.domain.planning.pareto_greedy import ParetoGreedy
from services.brain.domain.planning.rules import Rules
from services.brain.domain.planning.search import searched
from services.brain.domain.planning.survey import present, survey

SIZES, QUICK_SIZES = (100, 1_000, 10_000), (100, 1_000)
OBSERVATIONS = 12
NOISE = 0.03
LIMITS = Bounds(workers=(1, 30), ps=(1, 15), worker_cpu=(1.0, 8.0), ps_cpu=(1.0, 8.0))
SEARCHES, QUICK_SEARCHES = 20, 5
GIB = 1 << 30
CORES_FREE = 12.0
"""For each job: about a third of what it has."""


def run(*, quick: bool) -> Result:
    """The sizes one after the other; `peak_mib` is of the process, after the largest."""
    figures: dict[str, float] = {}
    context: dict[str, Any] = {"observations": OBSERVATIONS, "allocations": axes(LIMITS, _now(4, 2)).size}
    before = _peak_mib()
    for size in QUICK_SIZES if quick else SIZES:
        round_ = _round(size)
        figures |= {f"s_{size}": round_.fit_s + round_.plan_s, f"fit_s_{size}": round_.fit_s}
        context[f"decisions_{size}"] = round_.reasons
        context[f"wall_s_{size}"] = round(round_.wall_s, 2)
    figures["peak_mib"] = _peak_mib()
    figures["peak_mib_grown"] = _peak_mib() - before
    shares = _hypervolumes(QUICK_SEARCHES if quick else SEARCHES)
    figures |= {"hypervolume": float(np.mean(shares)), "hypervolume_least": min(shares)}
    context |= {"searches": len(shares), "quick": "10,000 jobs, 15 of 20 searches" if quick else ""}
    return Result("plan_scale", figures, context)


@dataclass(frozen=True, slots=True)
class _Round:
    fit_s: float
    plan_s: float
    wall_s: float
    reasons: dict[str, int]


def _round(size: int) -> _Round:
    """Everything that brain does between two decisions, for so many jobs."""
    rng = np.random.default_rng(size)
    known = [_job(number, rng) for number in range(size)]
    cluster = ClusterView(0.0, Resources(CORES_FREE * size, 64.0 * GIB * size))
    planner = ParetoGreedy()
    wall, began = time.perf_counter(), time.process_time()
    jobs = [replace(job, throughput=fitted(shapes, rates)) for job, shapes, rates in known]
    fit_s = time.process_time() - began
    decisions = planner.select([planner.propose(job, cluster, rng) for job in jobs], cluster, rng)
    plan_s = time.process_time() - began - fit_s
    names = [each.reason.name for each in decisions]
    return _Round(fit_s, plan_s, time.perf_counter() - wall, {name: names.count(name) for name in sorted(set(names))})


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ---- jobs


@dataclass(frozen=True, slots=True)
class _Truth:
    """The paper's form (MATH §1), with any coefficients."""

    coefficients: Floats
    batch: float

    def rates(self, shapes: Shapes) -> Floats:
        """Samples per second."""
        rates: Floats = self.batch * shapes.workers / (terms(shapes) @ self.coefficients)
        return rates


def _job(number: int, rng: np.random.Generator) -> tuple[JobView, Shapes, Floats]:
    """A job, and what was measured of it: where it is, and eleven places around."""
    truth = _Truth(np.array([3.48, 2.36, 0.68, 2.45, 2.45]) * rng.lognormal(0.0, 0.5, 5), 512.0)
    now = _now(int(rng.integers(2, 16)), int(rng.integers(1, 8)))
    near = [now, *(_near(now, rng) for _ in range(OBSERVATIONS - 1))]
    shapes = Shapes.of(near)
    rates = truth.rates(shapes) * rng.lognormal(0.0, NOISE, OBSERVATIONS)
    remaining = float(rates[0] * rng.lognormal(8.5, 1.0))
    overheads = Overheads(workers_s=5.0, ps_s=20.0, resize_s=10.0)
    job = JobView(f"job-{number:05}", now, LIMITS, None, float(rates[0]), remaining, overheads=overheads)
    return job, shapes, rates


def _now(workers: int, ps: int) -> Allocation:
    return Allocation(workers, ps, 4.0, 4.0, 4 * GIB, 8 * GIB)


def _near(now: Allocation, rng: np.random.Generator) -> Allocation:
    """Half to twice of each number."""
    low, high = 0.5, 2.0
    workers, ps, worker_cpu, ps_cpu = rng.uniform(low, high, 4) * (now.workers, now.ps, now.worker_cpu, now.ps_cpu)
    return replace(
        now,
        workers=int(np.clip(round(workers), *LIMITS.workers)),
        ps=int(np.clip(round(ps), *LIMITS.ps)),
        worker_cpu=float(np.clip(round(worker_cpu), *LIMITS.worker_cpu)),
        ps_cpu=float(np.clip(round(ps_cpu), *LIMITS.ps_cpu)),
    )


# ---- the fit


def fitted(shapes: Shapes, rates: Floats) -> Throughput:
    """The paper's form by iterated NNLS (MATH §1), trusted within half to twice of what was measured."""
    columns = terms(shapes)
    seconds = 512.0 * shapes.workers / rates
    estimate = seconds
    coefficients = np.zeros(columns.shape[1])
    for _ in range(5):
        coefficients, _ = nnls(columns / estimate[:, None], 1.0 + np.log(seconds / estimate))
        estimate = np.maximum(columns @ coefficients, 1e-9)
    left = np.log(seconds / estimate)
    sd = max(0.01, float(np.sqrt(left @ left / max(1, len(rates) - 5))))
    ranges = tuple(
        (float(column.min()) / 2, float(column.max()) * 2)
        for column in (shapes.workers, shapes.ps, shapes.worker_cpu, shapes.ps_cpu)
    )
    return _Fitted(coefficients, sd, ranges)


def terms(shapes: Shapes) -> Floats:
    """Of the time of one step, (n, 5)."""
    w, p = shapes.workers, shapes.ps
    return np.column_stack([1.0 / shapes.worker_cpu, w / (p * shapes.ps_cpu), w / p, 1.0 / p, np.ones(len(w))])


@dataclass(frozen=True, slots=True)
class _Fitted:
    coefficients: Floats
    log_sd: float
    ranges: Sequence[tuple[float, float]]

    def predict(self, shapes: Shapes) -> Prediction:
        """By the form."""
        rates = 512.0 * shapes.workers / np.maximum(terms(shapes) @ self.coefficients, 1e-9)
        return Prediction(rates, np.full(len(rates), self.log_sd))

    def doubt(self, allocation: Allocation) -> str:
        """By the ranges."""
        numbers = (allocation.workers, allocation.ps, allocation.worker_cpu, allocation.ps_cpu)
        outside = [n for n, (low, high) in zip(numbers, self.ranges, strict=True) if not low <= n <= high]
        return f"{outside[0]:g} is more than twice beyond what was measured" if outside else ""


# ---- the search


def _hypervolumes(many: int) -> list[float]:
    """What NSGA-II dominates of what enumeration does, of jobs with room for anything; no gain is the reference."""
    shares = []
    for seed in range(many):
        rng = np.random.default_rng(seed)
        job, shapes, rates = _job(seed, rng)
        job = replace(job, throughput=fitted(shapes, rates))
        cluster = ClusterView(0.0, Resources(1e6, 1e6 * GIB))
        of, at = axes(job.bounds, job.now), present(job, cluster)
        exact = survey(job, cluster, enumerated(of), at)
        found = searched(
            job,
            of,
            lambda grid: survey(job, cluster, grid, at),  # noqa: B023  # called within this round only
            lambda seen: seen.gain > 0.0,
            rng,
            Rules(),
        )
        worst = float(exact.cost.max())
        shares.append(hypervolume(found.cost, found.gain, worst, 0.0) / hypervolume(exact.cost, exact.gain, worst, 0.0))
    return shares
