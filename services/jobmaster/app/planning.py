"""The first plan, and the start."""

import asyncio

from recmesh.runtime.errors import CallerError, MeshError, MeshFault
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.generation import open_queue
from services.jobmaster.app.run import Run
from services.jobmaster.domain import plan as plans
from services.jobmaster.domain.facts import facts_of
from services.jobmaster.domain.job import RolePlan, Size
from services.jobmaster.domain.phase import Phase
from services.jobmaster.peers import OpenedRun
from services.jobmaster.peers.planning import Planned, RoleBounds

logger = get_logger(__name__)


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
    capacity = await run.context.cluster.capacity()
    try:
        planned = await run.context.peers.brain.plan(
            facts_of(run.spec, run.job), bounds_of(run), free_cpu=capacity.cpu,
            free_memory_bytes=capacity.memory_bytes,
        )
    except MeshError as error:
        logger.warning("job %s: brain has no plan: %s", run.job_id, error.message)
        default = plans.default_plan(run.spec)
        why = f"brain could not be asked ({error.message}): the small default is used"
        return Planned(default, "default", why)
    roles: dict[str, RolePlan] = plans.default_plan(run.spec) | dict(planned.roles)
    return Planned(roles, planned.source or "brain", planned.explanation)


def bounds_of(run: Run) -> list[RoleBounds]:
    """What the job's user allows for each role."""
    bounds = []
    for name in ("ps", "worker", "evaluator"):
        role, asked = getattr(run.spec.roles, name), run.job.intent.sizes.get(name, Size())
        bounds.append(
            RoleBounds(
                role=name, min=role.min, max=role.max, pinned=plans.pin(run.spec, run.job.intent, name) or 0,
                cpu=asked.cpu or role.cpu or 0.0, memory_bytes=asked.memory_bytes or role.memory or 0,
            )
        )
    return bounds


async def _open_early(run: Run) -> OpenedRun | None:
    """None when it failed: it is tried again when the generation opens, and judged there."""
    try:
        return await open_queue(run, gen=1, done=(), epoch_floor=0)
    except (MeshFault, CallerError) as error:
        logger.warning("job %s: its queue is not open yet: %s", run.job_id, error)
        return None
