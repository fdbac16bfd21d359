"""Planners that leave a job alone once it has what they mean it to have."""

from collections.abc import Sequence

import numpy as np

from recmesh.plugins.planning import Candidate, ClusterView, Decision, JobView, Proposal, Reason
from services.brain.domain.planning.front import pareto, thinned
from services.brain.domain.planning.grid import axes, enumerated
from services.brain.domain.planning.in_order import in_order
from services.brain.domain.planning.pareto_greedy import inside, moved_inside
from services.brain.domain.planning.room import lacking
from services.brain.domain.planning.steps import started_as_asked
from services.brain.domain.planning.survey import Survey, allocation_at, present, survey


class Static:
    """`static`: what the user asked for, from the first to the last sample."""

    name = "static"

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        """A start, or nothing."""
        if job.queued:
            return started_as_asked(job, cluster)
        return Proposal(job, (), Reason.KEEP, "it stays as its user sized it")

    def select(
        self, proposals: Sequence[Proposal], cluster: ClusterView, rng: np.random.Generator
    ) -> Sequence[Decision]:
        """In the order given; a job that does not fit holds up none behind it."""
        return in_order(proposals, cluster, range(len(proposals)))


class Tuned:
    """`tuned`: of everything that the limits allow the fastest, by exhaustive search of `JobView.throughput`.

    It believes every prediction, so it is an oracle where that is the truth, as in a simulator; elsewhere it is
    reckless.
    """

    name = "tuned"

    enough = 0.99
    """Of the best speed: for the last percent many cores can go."""
    candidates = 16

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        """The front, up to the cheapest that is fast enough."""
        if not job.bounds.hold(job.now):
            if not job.queued:
                return moved_inside(job, cluster)
            job = inside(job)
        if job.throughput is None:
            if job.queued:
                return started_as_asked(job, cluster)
            return Proposal(job, (), Reason.KEEP, "its speed is unknown")
        if not job.queued and job.remaining <= 0.0:
            return Proposal(job, (), Reason.KEEP, "nothing is left to be trained")
        return self._tuned(job, cluster)

    def _tuned(self, job: JobView, cluster: ClusterView) -> Proposal:
        at = present(job, cluster)
        seen = survey(job, cluster, enumerated(axes(job.bounds, job.now)), at)
        better = seen.allowed & (seen.gain > cluster.epsilon * at.rate)
        if not better.any():
            return Proposal(job, (), Reason.KEEP, "nothing within its limits is faster by more than a change is worth")
        rows = np.flatnonzero(better & seen.within_free & seen.within_quota)
        if not len(rows):
            best = allocation_at(job, seen.shapes, int(np.flatnonzero(better)[seen.cost[better].argmin()]))
            shortage = lacking(job, best, cluster) or (Reason.NO_ROOM, "nothing that is faster fits")
            return Proposal(job, (), *shortage)
        fast = rows[seen.rate[rows] >= self.enough * seen.rate[rows].max()]
        rows = rows[seen.cost[rows] <= seen.cost[fast].min()]
        front = thinned(rows[pareto(seen.cost[rows], seen.gain[rows])], seen.gain, self.candidates)
        return Proposal(job, tuple(_candidate(job, seen, int(row)) for row in front))

    def select(
        self, proposals: Sequence[Proposal], cluster: ClusterView, rng: np.random.Generator
    ) -> Sequence[Decision]:
        """In the order given, each the fastest that fits."""
        return in_order(proposals, cluster, range(len(proposals)))


def _candidate(job: JobView, seen: Survey, row: int) -> Candidate:
    cost = float(seen.cost[row])
    reason = Reason.STARTED if job.queued else Reason.GROW if cost > 0.0 else Reason.FREE_GAIN
    return Candidate(allocation_at(job, seen.shapes, row), float(seen.rate[row]), float(seen.gain[row]), cost, reason)
