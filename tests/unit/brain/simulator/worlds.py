"""Small clusters, truths and planners for the simulator's tests."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recmesh.plugins.planning import (
    Allocation,
    Bounds,
    Candidate,
    ClusterView,
    Decision,
    JobView,
    Proposal,
    Reason,
    Resources,
)
from services.brain.simulator.faults import Faults
from services.brain.simulator.job import Job, ModelFacts
from services.brain.simulator.scenario import Settings
from services.brain.simulator.truth import Measurement, Table, Tables

GIB = 1 << 30
FACTS = ModelFacts(
    "ads", 100, Bounds((1, 6), (1, 3), (2.0, 2.0), (1.0, 1.0)), worker_cpu=2.0, ps_cpu=1.0,
    worker_memory_bytes=2 * GIB, ps_state_bytes=4.0 * GIB, tables=4, dim=16, dense_parameters=1000,
)  # fmt: skip
TRUTH = Tables(
    "small",
    {
        "ads": Table.of(
            FACTS,
            [
                Measurement(w, p, 100.0 * w * p / (w + p), worker_cpu=1.5, ps_cpu=0.5)
                for w in (1, 2, 4, 6) for p in (1, 2, 3)
            ],
        )
    },
)  # fmt: skip


def job(name: str = "a", *, at: float = 0.0, samples: float = 30_000.0, workers: int = 1, owner: str = "") -> Job:
    """By default ten minutes of work at 50 samples a second."""
    return Job(name, at, FACTS, FACTS.asked(workers), samples, owner=owner, bounds=FACTS.bounds)


def settings(*, nodes: int = 4, seed: int = 1, faults: Faults | None = None, until_s: float = float("inf")) -> Settings:
    """Nodes of 8 cores and 32 GiB."""
    node = Resources(8.0, 32.0 * GIB)
    return Settings((node,) * nodes, seed=seed, faults=faults or Faults(), until_s=until_s)


def taking_in_order(proposals: Sequence[Proposal], cluster: ClusterView) -> list[Decision]:
    """First come, first served, by the sum of what is free."""
    free = cluster.free
    decisions = []
    for proposal in proposals:
        held = Resources() if proposal.job.queued else proposal.job.now.resources
        chosen = None
        for candidate in proposal.candidates:
            need = candidate.allocation.resources.plus(held, times=-1.0)
            if need.within(free):
                chosen, free = candidate, free.plus(need, times=-1.0)
                break
        kept = proposal.job.now if chosen is None else chosen.allocation
        reason = proposal.reason if chosen is None else chosen.reason
        decisions.append(Decision(proposal.job.job_id, kept, reason, "", chosen))
    return decisions


class AsAsked:
    """Starts jobs at what they ask for, and leaves them alone."""

    name = "as-asked"

    def __init__(self) -> None:
        self.views: list[JobView] = []

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        """A start, or nothing."""
        self.views.append(job)
        if job.queued:
            return Proposal(job, (Candidate(job.now, 0.0, 0.0, 0.0, Reason.STARTED),))
        return Proposal(job)

    def select(
        self, proposals: Sequence[Proposal], cluster: ClusterView, rng: np.random.Generator
    ) -> Sequence[Decision]:
        """In order."""
        return taking_in_order(proposals, cluster)


class Restless(AsAsked):
    """Moves every job at every look to a size drawn from its limits."""

    name = "restless"

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        """Anything."""
        if job.queued:
            return super().propose(job, cluster, rng)
        (low, high), (least, most) = job.bounds.workers, job.bounds.ps
        size = replace(job.now, workers=int(rng.integers(low, high + 1)), ps=int(rng.integers(least, most + 1)))
        if rng.random() < 0.2:
            size = replace(size, ps_memory_bytes=int(rng.integers(1, 9)) * GIB)
        return Proposal(job, (Candidate(size, 0.0, 0.0, 0.0, Reason.EXPLORE),))


class Growing(AsAsked):
    """One worker more at every look, up to a number."""

    name = "growing"

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        """One more."""
        if job.queued or job.now.workers >= self.most:
            return super().propose(job, cluster, rng)
        more: Allocation = replace(job.now, workers=job.now.workers + 1)
        return Proposal(job, (Candidate(more, 0.0, 1.0, 0.0),))
