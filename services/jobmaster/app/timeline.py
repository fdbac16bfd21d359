"""Decisions of a job: into its timeline, and onto the bus; and what came of them, some seconds after they were done."""

from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.run import Pending, Run
from services.jobmaster.domain import timeline
from services.jobmaster.domain.phase import Phase

logger = get_logger(__name__)

ON_ARRIVAL = frozenset({"silence", "stall", "termination"})
"""Decisions that are done when another process has been started in the place."""


def decide(run: Run, *, matter: str, place: str = "", seen: str, decision: str) -> int:
    """Notes what was seen and decided; the number by which `conclude` adds to it."""
    now = run.context.clock.now()
    lines = timeline.decided(
        run.status.timeline, at=now, matter=matter, place=place, seen=seen, decision=decision
    )
    run.update(timeline=lines)
    run.telling.decided(lines[-1])
    kept = {line.number for line in lines}
    run.effects_due = {number: pending for number, pending in run.effects_due.items() if number in kept}
    run.effects_due[lines[-1].number] = Pending(before=run.status.samples_per_s)
    logger.info("job %s: %s %s: %s; %s", run.job_id, matter, place, seen, decision)
    return lines[-1].number


def conclude(run: Run, number: int, *, done: str = "", effect: str = "") -> None:
    """Notes what was done about a decision, from when on its effect may be seen; or what came of it."""
    pending = run.effects_due.get(number)
    if done and pending is not None:
        due = run.context.clock.now() + run.context.limits.effect_s
        run.effects_due[number] = Pending(before=pending.before, due=due)
    lines = timeline.concluded(run.status.timeline, number, done=done, effect=effect)
    if lines != run.status.timeline:
        run.update(timeline=lines)
        run.telling.effect_observed(next(item for item in lines if item.number == number))


def arrived(run: Run, *, place: str, name: str) -> None:
    """Another process was started in the place: what was decided about the last one is done."""
    for item in run.status.timeline:
        if item.place == place and item.matter in ON_ARRIVAL and not item.done:
            conclude(run, item.number, done=f"{name} was started")


def see_effects(run: Run) -> None:
    """Progress before a decision and now, of those that were done long enough ago; while the job trains."""
    if run.status.phase not in (Phase.RUNNING, Phase.SCALING):
        return
    now, after = run.context.clock.now(), run.status.samples_per_s
    slow = sum(worker.level > 0 for worker in run.status.slow)
    workers, servers = len(run.status.live("worker")), len(run.status.live("ps"))
    for number, pending in list(run.effects_due.items()):
        if pending.due is not None and now >= pending.due:
            del run.effects_due[number]
            conclude(run, number, effect=(
                f"{after:,.0f} samples/s, {pending.before:,.0f} when it was decided; {workers} workers, "
                f"{slow} slow; {servers} parameter servers"
            ))
