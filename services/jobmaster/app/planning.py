"""The first plan, and the start."""

import asyncio

from recmesh.runtime.errors import CallerError, MeshError, MeshFault
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.generation import open_queue
from services.jobmaster.app.run import Run
from services.jobmaster.domain import plan as plans
from services.jobmaster.domain.facts import facts_of
from services.jobmaster.domain.job import RolePlan
from services.jobmaster.domain.phase import Phase
from services.jobmaster.peers import OpenedRun
from services.jobmaster.peers.planning import Planned, RoleBounds

logger = get_logger(__name__)

OVER_QUOTA = "OVER_QUOTA"
"""brain's reason: the least that the job may begin with is more than what is left of its owner's quota."""


async def plan(run: Run) -> None:
    """brain's plan, or the small default when it cannot be asked; then processes may start."""
    planned = await _asked(run)
    run.update(
        plan=dict(planned.roles), plan_source=planned.source, started=run.context.clock.now(),
        settled_workers=plans.wanted(run.spec, run.job.intent, planned.roles, "worker"),
    )
    if planned.explanation:
        run.note(planned.explanation)
    if run.record.gen == 0 and run.queue_opening is None:
        # Indexing the data and starting processes take about as long: they go on at the same time.
        run.queue_opening = asyncio.create_task(_open_early(run))
    run.move(Phase.STARTING, reason="Planned", message=planned.source)


async def _asked(run: Run) -> Planned:
    free = await run.context.cluster.capacity(run.job_id, run.spec)
    try:
        async with run.life:
            planned = await run.context.peers.brain.plan(facts_of(run.spec, run.job), bounds_of(run), free=free)
    except MeshError as error:
        if error.reason == OVER_QUOTA:
            raise       # it waits until there is room
        logger.warning("job %s: brain has no plan: %s", run.job_id, error.message)
        default = plans.default_plan(run.spec)
        why = f"brain could not be asked ({error.message}): the small default is used"
        return Planned(default, "default", why)
    roles: dict[str, RolePlan] = plans.default_plan(run.spec) | dict(planned.roles)
    return Planned(roles, planned.source or "brain", planned.explanation)


def bounds_of(run: Run) -> list[RoleBounds]:
    """What the job's user allows for each role that brain plans."""
    spec, intent, bounds = run.spec, run.job.intent, []
    for name in plans.planned_roles(spec):
        role, size = getattr(spec.roles, name), plans.size(spec, intent, {}, name)
        pinned = plans.pin(spec, intent, name) or 0
        if name == "evaluator" or (name == "data" and not plans.is_fed(spec, intent)):
            pinned = plans.wanted(spec, intent, {}, name)
            if not pinned:
                continue
        bounds.append(RoleBounds(
            role=name, min=role.min, max=role.max, pinned=pinned, cpu=size.cpu, memory_bytes=size.memory_bytes,
            gpu=size.gpu, gpu_kind=size.gpu_kind,
        ))
    return bounds


async def _open_early(run: Run) -> OpenedRun | None:
    """None when it failed: it is tried again when the generation opens, and judged there."""
    try:
        return await open_queue(run, gen=1, done=(), epoch_floor=0)
    except (MeshFault, CallerError) as error:
        logger.warning("job %s: its queue is not open yet: %s", run.job_id, error)
        return None
