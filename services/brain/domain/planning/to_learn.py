"""A step whose outcome is unsure, taken because the job runs long enough for the answer to pay."""

import numpy as np

from recmesh.plugins.planning import Candidate, ClusterView, JobView, Reason
from services.brain.domain.planning.rules import Rules
from services.brain.domain.planning.survey import Mask, Present, Survey, allocation_at
from services.brain.domain.planning.trust import Reach


def to_learn(
    job: JobView, cluster: ClusterView, at: Present, seen: Survey, credible: Mask, near: Reach, rules: Rules
) -> Candidate | None:
    """The step that may win most: one standard deviation above its prediction it must be worth its cost.

    None when all that is in reach was measured, when none may win, and when the intervals that such steps have taken
    would be more than a small share of what the job still has to run.
    """
    assert job.throughput is not None
    if at.rate <= 0.0:
        return None
    # 1. A wrong step costs an interval; what was measured counts as taken.
    steps = 1 + len(job.measured)
    if steps * cluster.interval_s > rules.learning * job.remaining / at.rate:
        return None
    # 2. What it may win, net of what it would have to win at its cost.
    may_win = seen.gain + seen.rate * np.expm1(seen.log_sd)
    needed = cluster.epsilon * at.rate * np.maximum(1.0, seen.cost / max(at.cost, 1e-12))
    cores = seen.shapes.workers * seen.shapes.worker_cpu + seen.shapes.ps * seen.shapes.ps_cpu - job.now.resources.cpu
    spare = cores <= rules.learning_room * cluster.free.cpu
    open_to = credible & spare & seen.within_free & seen.within_quota & ~near.known(seen.shapes)
    rows = np.flatnonzero(open_to & (may_win > needed))
    # 3. The best of them that is a step away, or believed.
    for row in rows[np.argsort(-(may_win - needed)[rows], kind="stable")][: rules.candidates].tolist():
        allocation = allocation_at(job, seen.shapes, row)
        if allocation == job.now:
            continue
        doubt = job.throughput.doubt(allocation)
        if doubt and not near.is_step(seen.shapes, row):
            continue
        share = may_win[row] / at.rate
        why = f"it may win {share:.0%}, and {job.remaining / at.rate:,.0f} s are left to profit: one step, to learn"
        return Candidate(allocation, float(seen.rate[row]), 0.0, float(seen.cost[row]), Reason.EXPLORE, why)
    return None
