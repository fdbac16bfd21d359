"""What brain tells the mesh."""

from recmesh.runtime.bus import Bus
from recmesh.runtime.events import Event, catalog
from services.brain.domain.model import Plan


class Proposals:
    """plan.proposed"""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def __call__(self, plan: Plan) -> None:
        """Offer it to the bus: the answer to the caller does not wait for it."""
        data = catalog.PlanProposed(
            planner=plan.source,
            reason=plan.explanation,
            replicas={role.role: role.replicas for role in plan.roles},
            samples_per_s=plan.samples_per_s or None,
        )
        self._bus.offer(Event(catalog.PLAN_PROPOSED, plan.job_id, data, id=plan.plan_id))
