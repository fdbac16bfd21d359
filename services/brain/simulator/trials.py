"""What becomes of changes, as in the mesh: jobmaster measures each and undoes one that made the job slower, and brain
does not propose that again for an hour (`domain.views.without_avoided`)."""

from recmesh.plugins.planning import Allocation
from services.brain.domain.model import CANCELLED, KEPT, TAKEN_BACK, Change, RolePlan
from services.brain.simulator.run import Run

TOLERANCE = 0.05
"""jobmaster's `RECMESH_PLAN_TOLERANCE`: the share of its speed that a job may lose."""


def judged(run: Run, now: float) -> Change | None:
    """What came of its last change, now that it was measured; None while it was not."""
    trial, then = run.trial, run.allocation
    if trial is None or then is None or not run.measured:
        return None
    least = (1.0 - TOLERANCE) * min(trial.rate_before, trial.rate_expected or trial.rate_before)
    verdict = CANCELLED if run.slow < 1.0 else KEPT if run.measured >= least else TAKEN_BACK
    return Change(
        "", run.job.job_id, now, verdict, "", before=_roles(trial.before), after=_roles(then),
        rate_before=trial.rate_before, rate_expected=trial.rate_expected, rate_after=run.measured,
    )  # fmt: skip


def _roles(allocation: Allocation) -> tuple[RolePlan, ...]:
    return (
        RolePlan("worker", allocation.workers, allocation.worker_cpu, allocation.worker_memory_bytes),
        RolePlan("ps", allocation.ps, allocation.ps_cpu, allocation.ps_memory_bytes),
    )
