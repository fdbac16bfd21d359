"""Planners that go one process at a time, as the peers of the DLRover-RM paper do.

They weigh no overhead of a change, trust their predictions as they are, and never change the size of a process.
"""

from collections.abc import Sequence

import numpy as np

from recmesh.plugins.planning import Candidate, ClusterView, Decision, JobView, Proposal, Reason, Resources
from services.brain.domain.planning.in_order import decided, in_order, room_for
from services.brain.domain.planning.pareto_greedy import inside, moved_inside
from services.brain.domain.planning.room import lacking, taken
from services.brain.domain.planning.survey import predicted_rate, price, resized
from services.brain.domain.planning.weights import base_rate


class Optimus:
    """`optimus`: one worker or one PS more (or less), to the job whose end comes closer by most for its share of the
    cluster (Peng et al., EuroSys 2018, §4.1)."""

    name = "optimus"

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        """Up to four steps, of which `select` takes one."""
        ready = _ready(job, cluster)
        if ready is not None:
            return ready
        base = base_rate(job)
        steps = [
            *_step(job, cluster, base, (+1, 0), (0, +1), least=0.0),
            *_step(job, cluster, base, (-1, 0), (0, -1), least=0.0),
        ]
        if steps:
            return Proposal(job, tuple(sorted(steps, key=lambda each: (each.gain, each.cost))))
        return Proposal(job, (), Reason.KEEP, "neither a worker nor a PS more or less makes it faster")

    def select(
        self, proposals: Sequence[Proposal], cluster: ClusterView, rng: np.random.Generator
    ) -> Sequence[Decision]:
        """By falling marginal gain, ties by name; what has none starts first, in the order given."""
        room = room_for(proposals, cluster)
        chosen: dict[int, Candidate] = {}
        ranked = sorted(
            (
                (_marginal(proposal.job, each, cluster), proposal.job.job_id, k, j)
                for j, proposal in enumerate(proposals)
                for k, each in enumerate(proposal.candidates)
            ),
            key=lambda step: (-step[0], step[1] if step[0] < np.inf else "", step[3], step[2]),
        )
        for _, _, k, j in ranked:
            proposal = proposals[j]
            each = proposal.candidates[k]
            need = room.need(proposal.job, each.allocation)
            if j not in chosen and room.holds(proposal.job.owner, need):
                room.take(proposal.job.owner, need)
                chosen[j] = each
        return [decided(proposal, chosen.get(j), room) for j, proposal in enumerate(proposals)]


class ElasticScheduler:
    """`elastic-scheduler`: one worker more while it brings enough, one less when it does not (Or et al., MLSys 2020);
    parameter servers stay as they are."""

    name = "elastic-scheduler"

    least_added = 0.2
    """Of what a worker brings on average, that one more must bring."""
    least_kept = 0.1
    """The same for the last worker; less, so that none comes and goes."""

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        """One step, or none."""
        ready = _ready(job, cluster)
        if ready is not None:
            return ready
        base = base_rate(job)
        per_worker = base / job.now.workers
        up = _step(job, cluster, base, (+1, 0), least=self.least_added * per_worker)
        if up:
            return Proposal(job, tuple(up))
        down = _step(job, cluster, base, (-1, 0), least=-self.least_kept * per_worker)
        if down:
            return Proposal(job, tuple(down))
        return Proposal(job, (), Reason.KEEP, "one worker more brings too little, and the last one brings enough")

    def select(
        self, proposals: Sequence[Proposal], cluster: ClusterView, rng: np.random.Generator
    ) -> Sequence[Decision]:
        """In the order given."""
        return in_order(proposals, cluster, range(len(proposals)))


def _ready(job: JobView, cluster: ClusterView) -> Proposal | None:
    """The cases in which there is nothing to weigh: None when there is."""
    if job.queued:
        return started_as_asked(job, cluster)
    if not job.bounds.hold(job.now):
        return moved_inside(job, cluster)
    if job.throughput is not None:
        return None if job.remaining > 0.0 else Proposal(job, (), Reason.KEEP, "nothing is left to be trained")
    if job.rate <= 0.0:
        return Proposal(job, (), Reason.KEEP, "nothing is measured yet")
    more = resized(job, job.now.workers + 1, job.now.ps)
    if not job.bounds.hold(more):
        return Proposal(job, (), Reason.PINNED, "its limits allow no worker more")
    cost = price(more, cluster) - price(job.now, cluster)
    why = "too little is measured to predict its speed: one worker more, to learn"
    return Proposal(job, (Candidate(more, job.rate, 0.0, cost, Reason.EXPLORE, why),))


def started_as_asked(job: JobView, cluster: ClusterView) -> Proposal:
    """A queued job gets what its user asked for, or waits."""
    asked = inside(job)
    rate = predicted_rate(asked, asked.now) if job.throughput is not None else 0.0
    shortage = lacking(asked, asked.now, cluster)
    if shortage is not None:
        return Proposal(asked, (), *shortage)
    return Proposal(asked, (Candidate(asked.now, rate, rate, price(asked.now, cluster), Reason.STARTED),))


def _step(job: JobView, cluster: ClusterView, base: float, *moves: tuple[int, int], least: float) -> list[Candidate]:
    """Steps of (workers, PS) within the limits that change the speed by more than `least`."""
    steps = []
    for workers, ps in moves:
        to = resized(job, job.now.workers + workers, job.now.ps + ps)
        if to.workers < 1 or to.ps < 1 or not job.bounds.hold(to):
            continue
        rate = predicted_rate(job, to) * _scale(job, base)
        if rate - base > least:
            cost = price(to, cluster) - price(job.now, cluster)
            steps.append(Candidate(to, rate, rate - base, cost, _reason(cost, rate - base)))
    return steps


def _scale(job: JobView, base: float) -> float:
    return base / predicted_rate(job, job.now)


def _reason(cost: float, gain: float) -> Reason:
    if cost > 0.0:
        return Reason.GROW
    return Reason.FREE_GAIN if gain > 0.0 else Reason.SHRINK


def _marginal(job: JobView, each: Candidate, cluster: ClusterView) -> float:
    """Seconds by which the end comes closer, per share of the kind of which it takes most; infinite for a start."""
    if job.queued or each.gain <= 0.0 or each.cost <= 0.0:
        return np.inf
    base = each.rate - each.gain
    sooner = job.remaining / base - job.remaining / each.rate
    return sooner / max(1e-9, _dominant_share(taken(job, each.allocation), cluster.free))


def _dominant_share(need: Resources, free: Resources) -> float:
    shares = [need.cpu / max(free.cpu, 1e-9), need.memory_bytes / max(free.memory_bytes, 1.0)]
    shares += [many / max(free.gpus.get(kind, 0.0), 1e-9) for kind, many in need.gpus.items()]
    return max(shares)
