"""A job that is suspended: it saves what it has learned, its processes go, and it waits to be resumed.

Resumed it begins as after a rollback whose members are still to come: a plan, processes, and a generation from the last
committed snapshot.
"""

from services.jobmaster.domain import fleet
from services.jobmaster.domain.closing import leaving
from services.jobmaster.domain.job import Intent
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.situation import Action, Kill, Move, Situation, operate
from services.jobmaster.domain.staffing import strangers


def rests(at: Situation) -> bool:
    """It is suspended; or is to be, and a snapshot of it was cut, or tried, or there is nothing to be saved."""
    if at.status.phase is Phase.SUSPENDED:
        return True
    if not at.job.intent.suspend:
        return False
    is_open = at.record.phase in ("open", "finishing") and at.status.phase is not Phase.PENDING
    has_state = is_open and not fleet.wounds(at.record, at.status)
    return not has_state or at.status.suspension_saved >= at.job.intent.suspensions


def rest(at: Situation) -> list[Action]:
    """Its processes go, workers before parameter servers; then nothing happens until it is resumed."""
    if at.status.phase is Phase.SUSPENDED:
        return strangers(at) if at.job.intent.suspend else [Move(Phase.PENDING, "Resumed", at.job.intent.reason)]
    alive = leaving(at)
    if alive:
        return [Kill(name, "suspended") for name in alive if name not in at.seen.killing]
    return operate(at, "suspend", reason="its processes are gone")


def suspended(intent: Intent, *, reason: str) -> Intent:
    """The wish that nothing of it runs."""
    changes = {"suspend": True, "suspensions": intent.suspensions + (not intent.suspend), "reason": reason}
    return intent if intent.suspend and not reason else intent.model_copy(update=changes)


def resumed(intent: Intent) -> Intent:
    """The wish that it goes on."""
    return intent.model_copy(update={"suspend": False, "reason": ""}) if intent.suspend else intent
