"""Fit and plan for 100, 1,000 and 10,000 jobs on one core, and NSGA-II against enumeration.

Each job trains by the paper's form with coefficients of its own, has sent a steady profile of 12 configurations around
where it is (noise of 3 %), and may have 28,800 allocations. `s_*` is CPU time of one round, from profiles to decisions
as brain makes them; all runs on one thread.
"""

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.figures import Result
from recmesh.plugins.planning import Allocation, ClusterView, JobView, Overheads, Resources, Shapes
from services.brain.domain.model import Job, Profile, RoleLimits, RolePlan
from services.brain.domain.planning.front import hypervolume
from services.brain.domain.planning.grid import axes, enumerated
from services.brain.domain.planning.pareto_greedy import ParetoGreedy
from services.brain.domain.planning.rules import Rules
from services.brain.domain.planning.search import searched
from services.brain.domain.planning.survey import present, survey
from services.brain.domain.throughput.forms import DLROVER, PUBLISHED, Rows
from services.brain.domain.views import Sizes, learned, view

SIZES, QUICK_SIZES = (100, 1_000, 10_000), (100, 1_000)
OBSERVATIONS = 12
NOISE = 0.03
LIMITS = (RoleLimits("worker", 1, 30), RoleLimits("ps", 1, 15))
CORES = Sizes(1.0, 8.0)
BATCH = 512
PROFILE_S = 180.0
"""Between two configurations; the last is measured at 0."""
SEARCHES, QUICK_SEARCHES = 20, 5
GIB = 1 << 30
CORES_FREE = 12.0
"""For each job: about a third of what it has."""


def run(*, quick: bool) -> Result:
    """The sizes one after the other; `peak_mib` is of the process, after the largest."""
    figures: dict[str, float] = {}
    viewed = _known(*_job(0, np.random.default_rng(0)))
    before = _peak_mib()
    context: dict[str, Any] = {"observations": OBSERVATIONS, "allocations": axes(viewed.bounds, viewed.now).size}
    for size in QUICK_SIZES if quick else SIZES:
        round_ = _round(size)
        figures |= {
            f"s_{size}": round_.fit_s + round_.propose_s + round_.select_s,
            f"fit_s_{size}": round_.fit_s,
            f"propose_s_{size}": round_.propose_s,
            f"select_s_{size}": round_.select_s,
        }
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
    propose_s: float
    select_s: float
    wall_s: float
    reasons: dict[str, int]


def _round(size: int) -> _Round:
    """Everything that brain does between two decisions, for so many jobs."""
    rng = np.random.default_rng(size)
    trained = [_job(number, rng) for number in range(size)]
    cluster = ClusterView(0.0, Resources(CORES_FREE * size, 64.0 * GIB * size))
    planner = ParetoGreedy()
    wall, began = time.perf_counter(), time.process_time()
    jobs = [_known(*each) for each in trained]
    fit_s = time.process_time() - began
    proposals = [planner.propose(job, cluster, rng) for job in jobs]
    propose_s = time.process_time() - began - fit_s
    decisions = planner.select(proposals, cluster, rng)
    select_s = time.process_time() - began - fit_s - propose_s
    names = [each.reason.name for each in decisions]
    reasons = {name: names.count(name) for name in sorted(set(names))}
    return _Round(fit_s, propose_s, select_s, time.perf_counter() - wall, reasons)


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# ---- jobs


@dataclass(frozen=True, slots=True)
class _Trained:
    """A job that trains, as brain is asked about it."""

    job: Job
    now: dict[str, RolePlan]
    rate: float
    remaining: float


def _job(number: int, rng: np.random.Generator) -> tuple[_Trained, list[Profile]]:
    """A job, and what was measured of it: eleven places around where it is, and there."""
    coefficients = PUBLISHED * rng.lognormal(0.0, 0.5, len(PUBLISHED))  # of a step of one worker, m in batches
    now = Allocation(int(rng.integers(2, 16)), int(rng.integers(1, 8)), 4.0, 4.0)
    measured = [*(_near(now, rng) for _ in range(OBSERVATIONS - 1)), now]
    rates = BATCH * DLROVER.rate(Rows.of(Shapes.of(measured), 1.0), coefficients)
    rates = rates * rng.lognormal(0.0, NOISE, OBSERVATIONS)
    job = Job(f"job-{number:05}")
    profiles = [
        Profile(
            job.job_id, PROFILE_S * (k + 1 - OBSERVATIONS), each.workers, each.ps, batch_size=BATCH,
            samples_per_s=float(rate), worker_cpu_limit=each.worker_cpu, ps_cpu_limit=each.ps_cpu, hardware="cpu",
            is_steady=True,
        )
        for k, (each, rate) in enumerate(zip(measured, rates, strict=True))
    ]  # fmt: skip
    roles = {
        "worker": RolePlan("worker", now.workers, now.worker_cpu, 4 * GIB),
        "ps": RolePlan("ps", now.ps, now.ps_cpu, 8 * GIB),
    }
    rate = float(rates[-1])
    return _Trained(job, roles, rate, rate * float(rng.lognormal(8.5, 1.0))), profiles


def _near(now: Allocation, rng: np.random.Generator) -> Allocation:
    """Half to twice of each number."""
    bounds = ((1, 30), (1, 15), (1, 8), (1, 8))
    drawn = rng.uniform(0.5, 2.0, 4) * (now.workers, now.ps, now.worker_cpu, now.ps_cpu)
    workers, ps, worker_cpu, ps_cpu = (int(np.clip(round(n), *each)) for n, each in zip(drawn, bounds, strict=True))
    return Allocation(workers, ps, float(worker_cpu), float(ps_cpu))


def _known(trained: _Trained, profiles: Sequence[Profile]) -> JobView:
    """What brain makes of it."""
    throughput, fit = learned(profiles, now=0.0)
    return view(
        trained.job, LIMITS, trained.now, throughput=throughput, rate=trained.rate, remaining=trained.remaining,
        overheads=Overheads(workers_s=5.0, ps_s=20.0, resize_s=10.0), sizes=CORES, fit=fit,
    )  # fmt: skip


# ---- the search


def _hypervolumes(many: int) -> list[float]:
    """What NSGA-II dominates of what enumeration does, of jobs with room for anything; no gain is the reference."""
    shares = []
    for seed in range(many):
        rng = np.random.default_rng(seed)
        job = _known(*_job(seed, rng))
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
