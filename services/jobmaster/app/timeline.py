"""Decisions of a job: into its timeline, and onto the bus."""

from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.run import Run
from services.jobmaster.domain import timeline

logger = get_logger(__name__)


def decide(run: Run, *, matter: str, place: str = "", seen: str, decision: str) -> int:
    """Notes what was seen and decided; the number by which `conclude` adds to it."""
    now = run.context.clock.now()
    lines = timeline.decided(
        run.status.timeline, at=now, matter=matter, place=place, seen=seen, decision=decision
    )
    run.update(timeline=lines)
    run.telling.decided(lines[-1])
    logger.info("job %s: %s %s: %s; %s", run.job_id, matter, place, seen, decision)
    return lines[-1].number


def conclude(run: Run, number: int, *, done: str = "", effect: str = "") -> None:
    """Notes what was done about a decision, or what came of it."""
    lines = timeline.concluded(run.status.timeline, number, done=done, effect=effect)
    if lines != run.status.timeline:
        run.update(timeline=lines)
        run.telling.effect_observed(next(item for item in lines if item.number == number))
