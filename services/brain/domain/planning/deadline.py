"""Whether a job ends in time."""

from recmesh.plugins.planning import Floats, JobView

MARGIN = 0.05
"""Of the time that is left, held back: rates fall when other jobs share a node, and fits are off by as much."""


def seconds_left(job: JobView, now: float) -> float:
    """Until its deadline, less the margin; without one, for ever."""
    return float("inf") if job.deadline is None else (1.0 - MARGIN) * (job.deadline - now)


def spare_samples(job: JobView, now: float, rate: Floats, overhead_s: Floats) -> Floats:
    """What it could train beyond what remains: at least 0 is in time."""
    spare: Floats = rate * (seconds_left(job, now) - overhead_s) - job.remaining
    return spare
