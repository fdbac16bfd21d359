"""Data executors: who learns of which, and the event that says whether one has room for others' tasks."""

from recmesh.spec.fingerprint import job_fingerprint
from services.jobmaster.app.jobs import Jobs
from services.jobmaster.app.run import Run
from services.jobmaster.domain.executors import Executor, executors_of
from services.jobmaster.domain.job import RoleState
from services.jobmaster.domain.vitals import Beat

ASK_EXECUTORS = ("worker", "data")
"""Roles that ask executors for rows, or pass tasks on to them."""


def executors_for(jobs: Jobs, run: Run, role: str) -> list[Executor]:
    """Those that a process of the job may ask: its own, and with `shared` those of all jobs that read as it does.

    In the same order for every process of every such job, so that all ask the same one for a task.
    """
    if role not in ASK_EXECUTORS:
        return []
    mine = executors_of(run.status, run.vitals.beats)
    if not run.spec.roles.data.shared or run.spec.data is None:
        return mine
    fingerprint, found = _fingerprint(run), []
    for _, other in sorted(jobs.runs().items()):
        is_like = other is run or (
            other.spec.roles.data.shared and other.status.ending is None and not other.status.has_ended
            and other.spec.data is not None and _fingerprint(other) == fingerprint
        )
        if is_like:
            found += executors_of(other.status, other.vitals.beats)
    return found


def tell_room(run: Run, role: RoleState, old: Beat | None, new: Beat) -> None:
    """An executor begins or ceases to accept tasks of others: all who look at the bus hear of it."""
    if new.serving is None:
        return
    before = old.serving.accepting if old is not None and old.serving is not None else None
    if new.serving.accepting != before:
        run.telling.executor_room(role, accepting=new.serving.accepting, queued=new.serving.queued)


def _fingerprint(run: Run) -> str:
    if run.data_fingerprint is None:
        run.data_fingerprint = job_fingerprint(run.spec, job_id=run.job_id)
    return run.data_fingerprint
