"""`pareto-greedy`: the planner of the DLRover-RM paper (§4), as MATH §1 mends it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recmesh.plugins.planning import Bounds, Candidate, ClusterView, Decision, JobView, Proposal, Reason
from services.brain.domain.planning.candidates import candidates
from services.brain.domain.planning.grid import clamped
from services.brain.domain.planning.room import lacking
from services.brain.domain.planning.rules import Rules
from services.brain.domain.planning.selection import select
from services.brain.domain.planning.survey import predicted_rate, price, resized
from services.brain.domain.planning.unmeasured import explored, started


class ParetoGreedy:
    """Pareto candidates of each job, chosen among jobs by weighted greedy with exchange and upgrades."""

    name = "pareto-greedy"

    def __init__(self, rules: Rules | None = None) -> None:
        self._rules = rules or Rules()

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        """The front of what is worth a change; a step to learn where nothing can be predicted."""
        if not job.bounds.hold(job.now):
            if not job.queued:
                return moved_inside(job, cluster)
            job = inside(job)
        if job.throughput is None:
            return started(job, cluster) if job.queued else explored(job, cluster)
        return candidates(job, cluster, rng, self._rules)

    def select(
        self, proposals: Sequence[Proposal], cluster: ClusterView, rng: np.random.Generator
    ) -> Sequence[Decision]:
        """See `selection`; nothing is drawn."""
        return select(proposals, cluster)


def inside(job: JobView) -> JobView:
    """A queued job that asks for what its limits hold."""
    near = clamped(job.now, job.bounds)
    return replace(job, now=resized(job, near.workers, near.ps, near.worker_cpu, near.ps_cpu))


def moved_inside(job: JobView, cluster: ClusterView) -> Proposal:
    """A running job goes to the closest that its limits allow, before anything else."""
    near = inside(job).now
    shortage = lacking(job, near, cluster)
    if shortage is not None:
        return Proposal(job, (), *shortage)
    rate = 0.0
    if job.throughput is not None:
        rate = predicted_rate(job, near)
    cost = price(near, cluster) - price(job.now, cluster)
    why = f"its limits say so: {_outside(job)}"
    gain = rate - (job.rate or rate)
    return Proposal(job, (Candidate(near, rate, gain, cost, Reason.PINNED, why),))


def _outside(job: JobView) -> str:
    """Which limits it breaks."""
    bounds: Bounds = job.bounds
    named = (
        ("workers", job.now.workers, bounds.workers),
        ("PS", job.now.ps, bounds.ps),
        ("CPU of a worker", job.now.worker_cpu, bounds.worker_cpu),
        ("CPU of a PS", job.now.ps_cpu, bounds.ps_cpu),
    )
    return ", ".join(f"{name} {low:g} to {high:g}" for name, now, (low, high) in named if not low <= now <= high)
