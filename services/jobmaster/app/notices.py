"""Processes that others told to go: their machine, their scheduler, a person."""

from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.run import Run
from services.jobmaster.app.timeline import decide
from services.jobmaster.domain.exits import EXIT_RETRY, Exit
from services.jobmaster.domain.job import RoleState

logger = get_logger(__name__)

WHY = "it was told to end by its machine, its scheduler or a person (SIGTERM)"


def is_told_to_go(run: Run, role: RoleState, *, draining: bool = False, exit: Exit | None = None) -> bool:
    """A process says so by its heartbeat; a worker whose heartbeat did not get through, by its exit code."""
    is_ours = run.record.phase != "open" or run.status.ending is not None
    if role.stage != "running" or is_ours:
        return False
    if role.role == "ps":
        return draining and not role.leaving
    return role.role in ("worker", "data") and (draining or (exit is not None and exit.code == EXIT_RETRY))


def note_notice(run: Run, role: RoleState) -> RoleState:
    """Its end is no failure, and its place is filled at once. The place's new state.

    A worker or data executor drains from now on; a parameter server leaves when its slots have left it.
    """
    logger.info("job %s: %s is told to go: %s", run.job_id, role.name, WHY)
    now = run.context.clock.now()
    if role.role == "ps":
        changed = role.model_copy(update={"leaving": WHY, "leaving_since": now})
        answer = "another process takes over its slots"
    else:
        changed = role.model_copy(update={"stage": "draining", "since": now})
        answer = "its batches in flight are finished, its leases returned, and another process takes its place"
        if role.role == "data":
            answer = "workers ask others for rows, and another process takes its place"
    run.put_role(changed)
    run.telling.role_notified(role, reason=WHY)
    decide(run, matter="termination", place=role.place, seen=WHY, decision=answer)
    return changed
