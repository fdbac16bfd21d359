"""Which parameter servers a job should have, and the next step on the way there while it trains.

Places are numbers, with holes: a server that comes gets the lowest free number, one that goes leaves a hole. Each
step is derived anew from the run record and the processes that are there, so that whoever looks next, also another
jobmaster, goes on where the last one stopped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count as numbers
from itertools import islice

from recmesh.spec.job import TrainingJob
from services.jobmaster.domain import plan
from services.jobmaster.domain.job import Intent, JobStatus, RoleState
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.placement import Shift, counts_of, decode, moves_to, plan_moves
from services.jobmaster.domain.record import Member, RunRecord


@dataclass(frozen=True, slots=True)
class Settle:
    """A move that was begun is to be done or undone."""

    move: int

    def __str__(self) -> str:
        return f"move {self.move} was begun"


@dataclass(frozen=True, slots=True)
class Join:
    """A server that has registered becomes a member."""

    member: Member

    def __str__(self) -> str:
        return f"PS {self.member.ps} joins"


@dataclass(frozen=True, slots=True)
class Part:
    """A member that owns nothing is one no more."""

    ps: int

    def __str__(self) -> str:
        return f"PS {self.ps} leaves"


@dataclass(frozen=True, slots=True)
class Arrived:
    """Nothing is left to move."""

    places: tuple[int, ...]

    def __str__(self) -> str:
        return "the slots are where they belong"


Step = Settle | Join | Part | Shift | Arrived


def sentence(step: Step) -> str:
    """For logs."""
    if isinstance(step, Shift):
        return f"{len(step.slots)} slots go from PS {step.source} to PS {step.target}"
    return str(step)


def wanted(spec: TrainingJob, intent: Intent, status: JobStatus, record: RunRecord) -> int:
    """How many parameter servers there should be; a job that is about to end keeps those that it has."""
    if record.members and ends_soon(intent, record):
        return len(record.members)
    return plan.wanted(spec, intent, status.plan, "ps")


def ends_soon(intent: Intent, record: RunRecord) -> bool:
    """Somebody asked for the end, or for a pause: only what that needs is still done."""
    return intent.winds_down or intent.finish or record.phase == "finishing"


def present(status: JobStatus) -> dict[int, RoleState]:
    """Servers that have registered and were not asked to go, by number."""
    return {role.index: role for role in status.live("ps") if role.stage == "running"}


def lost(record: RunRecord, status: JobStatus) -> list[Member]:
    """Members whose process is there no more."""
    there = present(status)
    return [
        member for member in record.members
        if member.ps not in there or there[member.ps].incarnation != member.incarnation
    ]


def places(record: RunRecord, status: JobStatus, *, count: int) -> tuple[int, ...]:
    """The numbers at which servers are wanted, ascending.

    Members stay before newcomers join, and low numbers before high ones; servers that are to be replaced, and members
    that were relieved of all their slots, go first. Missing ones get the lowest numbers that nobody has.
    """
    live = {role.index: role for role in status.live("ps")}
    members = {member.ps for member in record.members}
    usable = {ps for ps in members if ps not in live or not live[ps].leaving}
    joiners = {
        ps for ps, role in live.items() if ps not in members and not role.leaving and role.stage != "draining"
    }
    ranked = sorted(usable, key=lambda ps: (_weight(live, ps) <= 0, ps)) + sorted(joiners)
    free = (ps for ps in numbers() if ps not in members and ps not in live)
    return tuple(sorted([*ranked[:count], *islice(free, max(0, count - len(ranked)))]))


def wounds(record: RunRecord, status: JobStatus) -> list[Member]:
    """Lost members without which the generation cannot go on: a rollback is due.

    Whoever owns nothing may go. So may the source of a move that takes away all it owns, as long as the target can
    still say that it has installed them.
    """
    gone, owned = lost(record, status), counts_of(record.owner_of)
    missing = {member.ps for member in gone}
    move = record.move if record.moving else None
    if move is not None:
        moved = sum(byte.bit_count() for byte in move.slots_bytes)
        told = not move.back_version and move.target not in missing
        if told and move.source in missing and owned.get(move.source, 0) == moved:
            missing.discard(move.source)
    return [member for member in gone if member.ps in missing and owned.get(member.ps, 0)]


def weights(status: JobStatus) -> dict[int, float]:
    """How many slots each server can bear, relative to one that was never hot."""
    return {role.index: role.weight for role in status.live("ps")}


def next_step(
    record: RunRecord, status: JobStatus, *, count: int, now: float, limits: Limits, only_mend: bool = False
) -> Step | None:
    """What to do next in an open generation; None when there is nothing to do, or only waiting.

    `only_mend`: the job ends soon; nothing new is begun.
    """
    if record.move is not None:
        return Settle(record.move.number)
    owned = counts_of(record.owner_of)
    for member in lost(record, status):
        if not owned.get(member.ps, 0):
            return Part(member.ps)
    if only_mend:
        return None
    there, chosen = present(status), places(record, status, count=count)
    members = {member.ps for member in record.members}
    for ps in chosen:
        if ps in there and ps not in members:
            return Join(Member(ps=ps, address=there[ps].address, incarnation=there[ps].incarnation))
    for ps in sorted(members - set(chosen)):
        if not owned.get(ps, 0):
            return Part(ps)
    staying = [ps for ps in chosen if ps in there]
    if not staying or (len(staying) < len(chosen) and not _overdue(there, now, limits.replacement_s)):
        return None
    if is_settled(record, status, chosen):
        return None
    shifts = _shifts(record, status, staying)
    # Those that must go are emptied first.
    shifts.sort(key=lambda shift: shift.source in staying)
    if shifts:
        return replace(shifts[0], slots=shifts[0].slots[:limits.move_slots])
    return Arrived(chosen) if len(staying) == len(chosen) else None


def _shifts(record: RunRecord, status: JobStatus, staying: list[int]) -> list[Shift]:
    """Towards the goal of a relief while its servers are the ones that stay; else to shares by weight."""
    relief = status.relief
    if relief is not None and tuple(staying) == status.settled_ps:
        role = status.role(("ps", relief.ps))
        if role is not None and role.since <= relief.since:      # else another process has taken its place
            return moves_to(decode(relief.goal), record.owner_of)
    return plan_moves(record.owner_of, staying, weights=weights(status))


def is_settled(record: RunRecord, status: JobStatus, chosen: tuple[int, ...]) -> bool:
    """The slots were placed on exactly these servers, and nothing asks for another placement."""
    return chosen == status.settled_ps == tuple(member.ps for member in record.members) and not status.rebalance


def _overdue(there: Mapping[int, RoleState], now: float, patience_s: float) -> bool:
    return any(role.leaving and now - role.leaving_since > patience_s for role in there.values())


def _weight(live: Mapping[int, RoleState], ps: int) -> float:
    return live[ps].weight if ps in live else 1.0
