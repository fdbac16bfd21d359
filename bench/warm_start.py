"""How near a job's first plan is to its last, over a simulated month of owners who resubmit similar jobs."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.figures import Result
from recmesh.plugins.planning import Allocation, Resources
from services.brain.domain.warmstart import WarmStart
from services.brain.simulator.costs import Costs
from services.brain.simulator.engine import simulate
from services.brain.simulator.job import Job, TraceJob
from services.brain.simulator.policies import policy_named
from services.brain.simulator.run import Phase, Run
from services.brain.simulator.scenario import Outcome, Settings
from services.brain.simulator.tables import DLRM_LIKE, truth_named
from services.brain.simulator.workload import jobs_of

DAYS, QUICK_DAYS = 30, 6
OWNERS = 12
RUNS_PER_DAY = 1.0
"""An owner's job is trained again each day, on the data of that day."""
NODES = (Resources(64.0, 256.0 * (1 << 30)),) * 32
SEED = 1
DAY_S = 86_400.0
SPREAD = 0.1


@dataclass(frozen=True, slots=True)
class _Accuracy:
    workers: float
    ps: float
    jobs: int


def data() -> Path:
    """$RECMESH_DATA, or ../shared/data beside this repository."""
    return Path(os.environ.get("RECMESH_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def run(*, quick: bool) -> Result:
    """`*_accuracy` = 1 − |first − last| / last (not below 0), over jobs that came to rest; of plans from similar jobs.

    `*_last_of_owner`: what the owner's last job that had ended (and come to rest) would have given. `*_cold`: what
    users ask for. `steady_reduction`: 1 − mean time until the last change, with first plans and what jobs of the model
    have shown, as in the service / without both; `*_alone`: with first plans alone.
    """
    days = QUICK_DAYS if quick else DAYS
    truth = truth_named("dl2", data())
    rng = np.random.default_rng(SEED)
    jobs = jobs_of(_month(days, rng), truth, rng=rng, models=DLRM_LIKE, spread=SPREAD)
    settings = Settings(NODES, seed=SEED)
    ours = policy_named("pareto-greedy", costs=Costs(), warm=WarmStart())
    warm = simulate(jobs, truth, ours, settings)
    alone = simulate(jobs, truth, replace(ours, shared=False), settings)
    cold = simulate(jobs, truth, replace(ours, warm=None, shared=False), settings)
    planned = [each for each in _rested(warm) if each.first != each.job.asked or _had_history(each, warm)]
    accuracy = _accuracy([(each.first, each.allocation) for each in planned])
    naive = _accuracy([(_last_of_owner(each, warm), each.allocation) for each in planned])
    asked = _accuracy([(each.job.asked, each.allocation) for each in _rested(cold)])
    both, halves = _steady_pairs(warm, cold), _steady_pairs(alone, cold)
    first = _accuracy([(each.first, each.allocation) for each in _rested(alone) if _had_history(each, alone)])
    found = {
        "worker_accuracy": accuracy.workers, "ps_accuracy": accuracy.ps,
        "worker_accuracy_last_of_owner": naive.workers, "ps_accuracy_last_of_owner": naive.ps,
        "worker_accuracy_cold": asked.workers, "ps_accuracy_cold": asked.ps,
        "steady_s_warm": float(np.mean([a for a, _ in both])), "steady_s_cold": float(np.mean([b for _, b in both])),
        "steady_reduction": 1.0 - float(np.sum([a for a, _ in both]) / np.sum([b for _, b in both])),
        "worker_accuracy_alone": first.workers, "ps_accuracy_alone": first.ps,
        "steady_reduction_alone": 1.0 - float(np.sum([a for a, _ in halves]) / np.sum([b for _, b in halves])),
        "changes_warm": float(np.mean([each.changes for each in _rested(warm)])),
        "changes_cold": float(np.mean([each.changes for each in _rested(cold)])),
    }  # fmt: skip
    return Result("warm_start", found, _context(days, jobs, planned, both))


def _month(days: int, rng: np.random.Generator) -> list[TraceJob]:
    """Each owner has a job of one size and length, which both vary a little from day to day."""
    trace = []
    for owner in range(OWNERS):
        hour, hours = float(rng.uniform(0, 24)), float(rng.lognormal(math.log(3.0), 0.6))
        workers = int(rng.choice([1, 1, 2, 4, 8]))
        for day in range(days):
            at = DAY_S * day + 3600.0 * (hour + float(rng.normal(0.0, 0.3))) % (DAY_S * days)
            length = 3600.0 * hours * math.exp(float(rng.normal(0.0, 0.2)))
            trace.append(TraceJob(f"job-{owner}-{day}", max(0.0, at), workers, length, f"owner-{owner}"))
    return sorted(trace, key=lambda job: (job.arrival_s, job.job_id))


def _rested(outcome: Outcome) -> list[Run]:
    return [run for run in outcome.runs if run.phase is Phase.SUCCEEDED and run.steady]


def _had_history(run: Run, outcome: Outcome) -> bool:
    model = run.job.facts.model
    return any(each.job.facts.model == model and each.ended <= run.job.arrival_s for each in _rested(outcome))


def _last_of_owner(run: Run, outcome: Outcome) -> Allocation:
    earlier = [each for each in _rested(outcome) if each.job.owner == run.job.owner and each.ended <= run.job.arrival_s]
    last = max(earlier, key=lambda each: each.ended, default=None)
    return run.job.asked if last is None or last.allocation is None else last.allocation


def _accuracy(pairs: Sequence[tuple[Allocation | None, Allocation | None]]) -> _Accuracy:
    known = [(first, last) for first, last in pairs if first is not None and last is not None]
    workers = [_near(first.workers, last.workers) for first, last in known]
    ps = [_near(first.ps, last.ps) for first, last in known]
    return _Accuracy(float(np.mean(workers)), float(np.mean(ps)), len(known))


def _near(first: int, last: int) -> float:
    return max(0.0, 1.0 - abs(first - last) / last)


def _steady_pairs(warm: Outcome, cold: Outcome) -> list[tuple[float, float]]:
    """Seconds from a job's start to its last change, under both, of jobs that came to rest under both."""
    return [
        (_settled_s(mine), _settled_s(other))
        for mine, other in zip(warm.runs, cold.runs, strict=True)
        if mine.steady and other.steady and mine.steps and other.steps
    ]


def _settled_s(run: Run) -> float:
    return run.steps[-1][0] - run.started


def _context(days: int, jobs: Sequence[Job], planned: Sequence[Run], both: Sequence[object]) -> dict[str, Any]:
    return {
        "days": days, "owners": OWNERS, "jobs": len(jobs), "planned_from_similar": len(planned), "compared": len(both),
        "truth": "dl2", "models": list(DLRM_LIKE), "planner": "pareto-greedy, without models shared between jobs",
        "rule": "k 5, μ .5, likeness ≥ .5", "seed": SEED, "paper": "workers .92, PS .85, time to steady state −26 %",
    }  # fmt: skip
