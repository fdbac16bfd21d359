"""What is done about a job of which too little was measured to predict anything."""

from dataclasses import replace

from recmesh.plugins.planning import Allocation, Bounds, Candidate, ClusterView, JobView, Proposal, Reason
from services.brain.domain.planning.room import lacking
from services.brain.domain.planning.survey import price, resized
from services.brain.domain.planning.trust import one_step

MANY = 8
"""Processes of a role, of which three quarters may go at once for a trial; of fewer, that would cost most of a job's
speed."""


def started(job: JobView, cluster: ClusterView) -> Proposal:
    """A queued job within its limits: what it asks for, else half of it, a quarter, down to the least of its limits."""
    (fewest, _), (least, _) = job.bounds.workers, job.bounds.ps
    listed: list[Candidate] = []
    start = job.now
    while not listed or start != listed[-1].allocation:
        listed.append(Candidate(start, 0.0, 0.0, price(start, cluster), Reason.STARTED, "its speed is unknown"))
        start = resized(job, max(fewest, start.workers // 2), max(least, start.ps // 2))
    fitting = tuple(each for each in reversed(listed) if lacking(job, each.allocation, cluster) is None)
    if fitting:
        return Proposal(job, fitting)
    reason = lacking(job, listed[-1].allocation, cluster)
    assert reason is not None
    return Proposal(job, (), *reason)


def explored(job: JobView, cluster: ClusterView) -> Proposal:
    """A running job: the first step up that its limits and the room allow; one that has all that its limits allow goes
    down, far enough to show how much of it is too much."""
    if job.rate <= 0.0:
        return Proposal(job, (), Reason.KEEP, "nothing is measured yet")
    known = {_shape(each) for each in (*job.measured, job.now)}
    steps = [step for step in _steps(job.now, job.bounds) if _shape(step) not in known]
    steps = steps or [step for step in _steps_down(job.now, job.bounds) if _shape(step) not in known]
    if not steps:
        return Proposal(job, (), Reason.PINNED, "its limits allow no step to what was not measured yet")
    allowed = [resized(job, step.workers, step.ps, step.worker_cpu, step.ps_cpu) for step in steps]
    fitting = [step for step in allowed if lacking(job, step, cluster) is None]
    if not fitting:
        reason = lacking(job, allowed[0], cluster)
        assert reason is not None
        return Proposal(job, (), *reason)
    step = fitting[0]
    cost = price(step, cluster) - price(job.now, cluster)
    why = "too little is measured to predict its speed: one step, to learn"
    return Proposal(job, (Candidate(step, job.rate, 0.0, cost, Reason.EXPLORE, why),))


def _steps(now: Allocation, bounds: Bounds) -> list[Allocation]:
    """Workers and servers together first: where one is the bottleneck, more of the other alone brings nothing."""
    core = bounds.cpu_step or (1.0 if bounds.worker_cpu[1] >= 2.0 else 0.25)
    more = min(now.workers + one_step(now.workers), bounds.workers[1])
    servers = min(now.ps + one_step(now.ps), bounds.ps[1])
    return [
        replace(now, workers=more, ps=servers),
        replace(now, workers=more),
        replace(now, ps=servers),
        replace(now, worker_cpu=min(now.worker_cpu + max(core, now.worker_cpu / 2), bounds.worker_cpu[1])),
        replace(now, ps_cpu=min(now.ps_cpu + max(core, now.ps_cpu / 2), bounds.ps_cpu[1])),
    ]


def _steps_down(now: Allocation, bounds: Bounds) -> list[Allocation]:
    """Of the workers first: they are given back and had again without moving a row."""
    return [
        *(replace(now, workers=max(1, count, bounds.workers[0])) for count in _fewer(now.workers)),
        *(replace(now, ps=max(1, count, bounds.ps[0])) for count in _fewer(now.ps)),
        replace(now, worker_cpu=max(now.worker_cpu / 2, bounds.worker_cpu[0])),
        replace(now, ps_cpu=max(now.ps_cpu / 2, bounds.ps_cpu[0])),
    ]


def _fewer(count: int) -> tuple[int, ...]:
    """A quarter of many and a half of few, then what lies between."""
    quarter, half, one_less = count // 4, count // 2, count - 1
    return (quarter, half, one_less) if count >= MANY else (half, one_less, quarter)


def _shape(allocation: Allocation) -> tuple[int, int, float, float]:
    return allocation.workers, allocation.ps, allocation.worker_cpu, allocation.ps_cpu
