"""What brain tells the mesh."""

from recmesh.runtime.bus import Bus
from recmesh.runtime.events import Event, catalog
from services.brain.domain.loans.ledger import Loan
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


class Ledger:
    """loan.changed"""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def __call__(self, loan: Loan, now: float) -> None:
        """Offer it to the bus: the ledger has it already."""
        data = catalog.LoanChanged(
            job_id=loan.lender, state=loan.state, cause=loan.cause, due=loan.due, renewals=loan.renewals,
            late=loan.is_late(now), node=loan.node, reason=loan.why,
        )  # fmt: skip
        once = f"{loan.loan_id}/{loan.state}/{loan.renewals}"
        self._bus.offer(Event(catalog.LOAN_CHANGED, loan.loan_id, data, id=once))
