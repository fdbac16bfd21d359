"""A planner for recmesh: the same number of cores for every job, handed out as workers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recmesh.plugins.planning import Candidate, ClusterView, Decision, JobView, Proposal, Reason, Resources


class FairShare:
    """One worker at a time to whoever has the fewest cores; ties go by name.

    It shows the shape of a planner, and that a rule can do without any prediction. It never makes a job smaller.
    """

    name = "fair-share"

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        """A queued job: what it asks for. A running one: one worker more, if its limits allow."""
        if job.queued:
            if not job.bounds.hold(job.now):
                return Proposal(job, (), Reason.PINNED, "it asks for what its limits do not allow")
            start = Candidate(job.now, 0.0, 0.0, job.now.resources.cost(cluster.prices), Reason.STARTED)
            return Proposal(job, (start,))
        more = replace(job.now, workers=job.now.workers + 1)
        if not job.bounds.hold(more):
            return Proposal(job, (), Reason.PINNED, f"its limits allow no more than {job.now.workers} workers")
        cost = more.resources.plus(job.now.resources, -1.0).cost(cluster.prices) + cluster.pod_price
        return Proposal(job, (Candidate(more, 0.0, 0.0, cost, Reason.GROW, "its share is the smallest"),))

    def select(
        self, proposals: Sequence[Proposal], cluster: ClusterView, rng: np.random.Generator
    ) -> Sequence[Decision]:
        """From the smallest share to the largest, as long as there is room."""
        free, quotas = cluster.free, dict(cluster.quotas)
        chosen: dict[str, Candidate] = {}
        refused: dict[str, Reason] = {}
        for proposal in sorted(proposals, key=_share):
            job = proposal.job
            for each in proposal.candidates:
                need = each.allocation.resources.plus(Resources() if job.queued else job.now.resources, -1.0)
                if not need.within(free):
                    refused[job.job_id] = Reason.QUEUED if job.queued else Reason.NO_ROOM
                elif job.owner in quotas and not need.within(quotas[job.owner]):
                    refused[job.job_id] = Reason.OVER_QUOTA
                else:
                    free = free.plus(need, -1.0)
                    if job.owner in quotas:
                        quotas[job.owner] = quotas[job.owner].plus(need, -1.0)
                    chosen[job.job_id] = each
        return [_decision(each, chosen.get(each.job.job_id), refused.get(each.job.job_id)) for each in proposals]


def _share(proposal: Proposal) -> tuple[float, str]:
    return 0.0 if proposal.job.queued else proposal.job.now.resources.cpu, proposal.job.job_id


def _decision(proposal: Proposal, chosen: Candidate | None, refused: Reason | None) -> Decision:
    job = proposal.job
    if chosen is not None:
        words = f"{chosen.allocation.workers} workers: {chosen.why or 'it starts as it asked'}"
        return Decision(job.job_id, chosen.allocation, chosen.reason, words, chosen)
    if refused is not None:
        return Decision(job.job_id, job.now, refused, "there is no room for one worker more")
    return Decision(job.job_id, job.now, proposal.reason, proposal.why)
