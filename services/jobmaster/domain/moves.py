"""How the run record changes when parameter servers join and leave, and while slots move between them.

PROTOCOL §7, the jobmaster's half: `begun` (before M1), `freezing` (M2), `moved` (M4); or, when the target has
promised never to install, `taking_back` and `taken_back`. Like domain.record, each returns the next record or
raises `Refused`.
"""

import base64
from collections.abc import Sequence

from services.jobmaster.domain import placement
from services.jobmaster.domain.record import Member, Refused, RunRecord, SlotMove, change, check, check_idle


def joined(record: RunRecord, *, term: int, gen: int, member: Member) -> RunRecord:
    """A server that is in the generation, and owns nothing, is a member. The map, and its version, stay."""
    _check_open(record, term, gen)
    known = record.member(member.ps)
    if known == member:
        return record
    if known is not None:
        raise Refused(f"PS {member.ps} is another process")
    members = sorted((*record.members, member), key=lambda item: item.ps)
    return change(record, members=tuple(members))


def left(record: RunRecord, *, term: int, gen: int, ps: int) -> RunRecord:
    """A server that owns nothing is a member no more."""
    _check_open(record, term, gen)
    if record.member(ps) in record.owning:
        raise Refused(f"PS {ps} owns slots")
    if record.move is not None and ps in (record.move.source, record.move.target):
        raise Refused(f"PS {ps} takes part in move {record.move.number}")
    return change(record, members=tuple(member for member in record.members if member.ps != ps))


def begun(
    record: RunRecord, *, term: int, gen: int, source: int, target: int, slots: Sequence[int]
) -> RunRecord:
    """These slots will be copied. Nothing is pending: marks and voids may happen while they are."""
    _check_open(record, term, gen)
    if record.move is not None:
        raise Refused(f"move {record.move.number} is under way")
    if source == target or record.member(source) is None or record.member(target) is None:
        raise Refused(f"slots move from one member to another, not from PS {source} to PS {target}")
    owners = record.owner_of
    if not slots or any(owners[slot] != source for slot in slots):
        raise Refused(f"PS {source} does not own all of the {len(slots)} slots")
    number = record.operations + 1
    encoded = base64.b64encode(placement.bitmap(slots)).decode()
    move = SlotMove(number=number, source=source, target=target, slots=encoded)
    return change(record, operations=number, move=move)


def dropped(record: RunRecord, *, term: int, gen: int, number: int) -> RunRecord:
    """The copy was given up before any freeze: it is as if it had never begun."""
    _check_open(record, term, gen)
    if _move(record, number).version:
        raise Refused(f"move {number} may have been frozen")
    return change(record, move=None)


def freezing(record: RunRecord, *, term: int, gen: int, number: int) -> RunRecord:
    """M2: the move is pending, and a map version is reserved for source and target."""
    _check_open(record, term, gen)
    check_idle(record)
    version = record.reserved_version + 1
    move = _move(record, number).model_copy(update={"version": version})
    return change(record, pending=f"move:{number}", reserved_version=version, move=move)


def moved(record: RunRecord, *, term: int, gen: int, number: int) -> RunRecord:
    """M4: the target has installed the slots; the map says so from here on."""
    move = _pending(record, term, gen, number)
    if move.back_version:
        raise Refused(f"the slots of move {number} go back")
    return _handed_over(record, move, version=move.version)


def taking_back(record: RunRecord, *, term: int, gen: int, number: int) -> RunRecord:
    """The target never installs: a version is reserved under which the source goes on. Repeated: the same one."""
    move = _pending(record, term, gen, number)
    if move.back_version:
        return record
    version = record.reserved_version + 1
    return change(record, reserved_version=version, move=move.model_copy(update={"back_version": version}))


def taken_back(record: RunRecord, *, term: int, gen: int, number: int) -> RunRecord:
    """The source owns its slots as before, under a newer version.

    Also where it had never been frozen: that the map's version grows without need harms nobody, and an answer to
    a repeated question is no proof that it was not.
    """
    move = _pending(record, term, gen, number)
    if not move.back_version:
        raise Refused(f"nobody decided that the slots of move {number} go back")
    return change(record, pending="", move=None, map_version=move.back_version)


def sunk(record: RunRecord, *, term: int, gen: int, number: int) -> RunRecord:
    """The slots shall go back, and the source says that the target had installed them, which is gone: so are they.

    The map names the target, whose loss is a rollback as any owner's.
    """
    move = _pending(record, term, gen, number)
    if not move.back_version:
        raise Refused(f"nobody decided that the slots of move {number} go back")
    return _handed_over(record, move, version=move.back_version)


def _handed_over(record: RunRecord, move: SlotMove, *, version: int) -> RunRecord:
    shift = placement.Shift(move.source, move.target, placement.slots_of(move.slots_bytes))
    owners = placement.encode(placement.applied(record.owner_of, [shift]))
    return change(record, pending="", move=None, owners=owners, map_version=version)


def _check_open(record: RunRecord, term: int, gen: int) -> None:
    check(record, term, gen)
    if record.phase not in ("open", "finishing"):
        raise Refused(f"the generation is {record.phase}")


def _move(record: RunRecord, number: int) -> SlotMove:
    if record.move is None or record.move.number != number:
        raise Refused(f"move {number} is not under way")
    return record.move


def _pending(record: RunRecord, term: int, gen: int, number: int) -> SlotMove:
    _check_open(record, term, gen)
    if record.pending != f"move:{number}":
        raise Refused(f"move {number} is not pending, {record.pending or 'nothing'} is")
    return _move(record, number)
