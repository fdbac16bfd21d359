"""Processes that others told to go: their machine, their scheduler, a person."""

from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.run import Run
from services.jobmaster.app.timeline import decide
from services.jobmaster.domain.exits import EXIT_RETRY, Exit
from services.jobmaster.domain.job import RoleState
from services.jobmaster.domain.rules import place

logger = get_logger(__name__)

WHY = "it was told to end by its machine, its scheduler or a person (SIGTERM)"


def is_told_to_go(run: Run, role: RoleState, *, draining: bool = False, exit: Exit | None = None) -> bool:
    """A worker says so by its heartbeat; or, when that did not get through, by the code with which it ended."""
    says_so = draining or (exit is not None and exit.code == EXIT_RETRY)
    is_ours = run.record.phase != "open" or run.status.ending is not None
    return says_so and role.role == "worker" and role.stage == "running" and not is_ours


def note_notice(run: Run, role: RoleState) -> RoleState:
    """It drains from now on: its end is no failure, and its place is filled at once. The place's new state."""
    logger.info("job %s: %s drains: %s", run.job_id, role.name, WHY)
    draining = role.model_copy(update={"stage": "draining", "since": run.context.clock.now()})
    run.put_role(draining)
    run.telling.role_notified(role, reason=WHY)
    decide(
        run, matter="termination", place=place(role), seen=WHY,
        decision="its batches in flight are finished, its leases returned, and another process takes its place",
    )
    return draining
