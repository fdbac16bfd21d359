"""The run record of a job: the only point of agreement, and the rules by which it changes.

Every function takes the record and returns the next one, or raises `Refused`; the caller writes the result
by compare-and-set. Nothing else may construct a changed record, except domain.moves for slots that move. The
rules are those of docs/adr/0002-exactly-once.md: one structural operation at a time, generations and map versions
only grow, and a snapshot is committed only in the generation that cut it.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from services.jobmaster.domain import placement
from services.jobmaster.domain.ledgers import Interval
from services.jobmaster.domain.placement import Owners

MAX_PS = 1 << 16
"""Numbers of parameter servers are below it: the map has 16 bits for each slot."""
HISTORY = 256
"""Committed snapshots that the record remembers, to fall back to; retention deletes older ones."""

RecordPhase = Literal["restoring", "open", "finishing", "closed"]


class Refused(Exception):
    """The record does not allow this now; the message says why."""


class Member(BaseModel):
    """A parameter server of the generation."""

    model_config = ConfigDict(frozen=True)
    ps: int
    address: str
    incarnation: str


class SlotMove(BaseModel):
    """Slots that are on their way. Nobody's map knows of it before it is done."""

    model_config = ConfigDict(frozen=True)
    number: int
    source: int
    target: int
    slots: str
    """Base64 of a 512-byte bitmap."""
    version: int = 0
    """Map version reserved for its freeze; 0: the source still owns the slots, and no freeze was ever sent."""
    back_version: int = 0
    """Map version under which the source takes the slots back, for the target never installs them; 0: not decided."""

    @property
    def slots_bytes(self) -> bytes:
        """The slots as they travel on the wire."""
        return base64.b64decode(self.slots)


class RunRecord(BaseModel):
    """One KV key per job, changed only by compare-and-set."""

    model_config = ConfigDict(frozen=True)
    job_id: str
    gen: int = 0
    term: int = 0
    phase: RecordPhase = "restoring"
    base_snapshot: int = 0
    """What this generation was restored from; 0: from nothing, or from `init_parts`."""
    last_committed: int = 0
    committed: tuple[int, ...] = ()
    """The newest ones, ascending; the last is `last_committed`."""
    map_version: int = 0
    owners: str = ""
    """Base64 of 4096 little-endian uint16: the PS of each slot."""
    members: tuple[Member, ...] = ()
    """Any distinct PS, ascending. One that has just joined, or is about to leave, owns no slot."""
    move: SlotMove | None = None
    """At most one at a time. Pending from its freeze on; before that marks and voids may happen."""
    voids: tuple[Interval, ...] = ()
    """Batches set aside, as single pieces."""
    partly_applied: tuple[Interval, ...] = ()
    """Voids of which some slot had the batch already."""
    reserved_version: int = 0
    pending: str = ""
    """"" | mark:N | rollback | void:N | move:N"""
    pending_voids: tuple[Interval, ...] = ()
    operations: int = 0
    """Numbers given to marks, voids and moves so far, aborted ones included: a number is never used twice."""
    init_snapshot: int = 0
    init_parts: tuple[str, ...] = ()
    """Where the job's first state comes from, when it starts from another job's snapshot."""
    revision: int = 0
    """Of the KV key as last read; no part of the value."""

    @property
    def owners_bytes(self) -> bytes:
        """The map as it travels on the wire."""
        return base64.b64decode(self.owners)

    @property
    def marking(self) -> int:
        """The snapshot being cut; 0: none."""
        kind, _, number = self.pending.partition(":")
        return int(number) if kind == "mark" else 0

    @property
    def moving(self) -> int:
        """The move that is past its freeze and not yet done or undone; 0: none."""
        return self.move.number if self.move is not None and self.pending == f"move:{self.move.number}" else 0

    @property
    def owner_of(self) -> Owners:
        """The PS of each slot; empty before the first generation."""
        return placement.decode(self.owners)

    @property
    def owning(self) -> tuple[Member, ...]:
        """Members that own slots: the only ones that marks, voids and questions about ledgers go to."""
        owners = set(self.owner_of.tolist())
        return tuple(member for member in self.members if member.ps in owners)

    def member(self, ps: int) -> Member | None:
        """The member of that number."""
        return next((member for member in self.members if member.ps == ps), None)


def change(record: RunRecord, **changes: object) -> RunRecord:
    """For the rules here and in domain.moves, and for nobody else."""
    return record.model_copy(update=changes)


def next_generation(
    record: RunRecord, *, term: int, members: Sequence[Member], weights: Mapping[int, float] | None = None,
    anew: bool = False,
) -> RunRecord:
    """R1: a new life from the last committed snapshot, on these members, under a fresh map version.

    The owners stay as they are where the same PS are there again and slots are not to be placed `anew`; else the
    fewest slots change hands that give every member its share (`weights`, default 1 each).
    """
    check_term(record, term)
    if record.phase == "closed":
        raise Refused("the job is closed")
    numbers = [member.ps for member in members]
    if not members or numbers != sorted(set(numbers)) or not 0 <= numbers[0] <= numbers[-1] < MAX_PS:
        raise Refused("members must be distinct parameter servers, at least one, in ascending order")
    version = max(record.reserved_version, record.map_version) + 1
    return change(
        record,
        gen=record.gen + 1, phase="restoring", base_snapshot=record.last_committed,
        map_version=version, reserved_version=version, members=tuple(members), pending="rollback",
        owners=placement.encode(_restored_owners(record, numbers, weights or {}, anew=anew)), move=None,
        # A quarantine that was under way is decided: every member applies it at its restore.
        voids=_united(record.voids, record.pending_voids), pending_voids=(),
    )


def _restored_owners(record: RunRecord, members: list[int], weights: Mapping[int, float], *, anew: bool) -> Owners:
    if not record.owners:
        return placement.even(members)
    owners = record.owner_of
    if not anew and set(owners.tolist()) == {ps for ps in members if weights.get(ps, 1.0) > 0}:
        return owners
    return placement.applied(owners, placement.plan_moves(owners, members, weights=weights))


def opened(record: RunRecord, *, term: int, gen: int) -> RunRecord:
    """All members are restored and the queue is there: leases may start."""
    check(record, term, gen)
    if record.phase != "restoring":
        raise Refused(f"the generation is {record.phase} already")
    return change(record, phase="open", pending="")


def mark(record: RunRecord, *, term: int, gen: int) -> RunRecord:
    """S1: the next snapshot number, taken for good."""
    check(record, term, gen)
    check_idle(record)
    number = record.operations + 1
    return change(record, pending=f"mark:{number}", operations=number)


def commit(record: RunRecord, *, term: int, gen: int, snapshot: int, full: bool) -> RunRecord:
    """S4: the snapshot exists from here on. A full or awaited one closes the job in the same change."""
    check(record, term, gen)
    if record.pending != f"mark:{snapshot}":
        raise Refused(f"snapshot {snapshot} is not pending, {record.pending or 'nothing'} is")
    closes = full or record.phase == "finishing"
    return change(
        record,
        pending="", last_committed=snapshot, committed=(*record.committed, snapshot)[-HISTORY:],
        phase="closed" if closes else record.phase, move=None if closes else record.move,
    )


def abort_mark(record: RunRecord, *, term: int, snapshot: int) -> RunRecord:
    """The snapshot will never exist."""
    check_term(record, term)
    if record.pending != f"mark:{snapshot}":
        raise Refused(f"snapshot {snapshot} is not pending")
    return change(record, pending="")


def damaged(record: RunRecord, *, term: int, snapshot: int) -> RunRecord:
    """R5: a snapshot proved unreadable; the one before it is the last committed one now."""
    check_term(record, term)
    committed = tuple(number for number in record.committed if number != snapshot)
    return change(record, committed=committed, last_committed=committed[-1] if committed else 0)


def void(record: RunRecord, *, term: int, gen: int, batches: Sequence[Interval]) -> RunRecord:
    """Quarantine begins: these batches will be in every ledger."""
    check(record, term, gen)
    check_idle(record)
    number = record.operations + 1
    return change(record, pending=f"void:{number}", operations=number, pending_voids=tuple(batches))


def voided(record: RunRecord, *, term: int, gen: int, partly_applied: Sequence[Interval]) -> RunRecord:
    """Every PS answered: the void set holds them, and every restore applies it again."""
    check(record, term, gen)
    if not record.pending.startswith("void:"):
        raise Refused("no quarantine is pending")
    return change(
        record,
        pending="", pending_voids=(),
        voids=_united(record.voids, record.pending_voids),
        partly_applied=_united(record.partly_applied, tuple(partly_applied)),
    )


def finishing(record: RunRecord, *, term: int) -> RunRecord:
    """Success at the next committed snapshot, with the ledgers as they are."""
    check_term(record, term)
    if record.phase in ("finishing", "closed"):
        return record
    if record.phase != "open":
        raise Refused("no generation is open")
    return change(record, phase="finishing")


def closed(record: RunRecord, *, term: int) -> RunRecord:
    """Nothing may happen any more; for jobs that fail or are stopped."""
    check_term(record, term)
    return change(record, phase="closed", pending="", pending_voids=(), move=None)


def parked(record: RunRecord, *, term: int) -> RunRecord:
    """Nobody has the state any more: a rollback has begun whose members are still to come."""
    check_term(record, term)
    if record.phase == "closed":
        raise Refused("the job is closed")
    if record.phase == "restoring" and record.gen and not record.members:
        return record
    version = max(record.reserved_version, record.map_version) + 1
    return change(
        record,
        gen=record.gen + 1, phase="restoring", base_snapshot=record.last_committed, map_version=version,
        reserved_version=version, members=(), pending="rollback", move=None,
        voids=_united(record.voids, record.pending_voids), pending_voids=(),
    )


def takeover(record: RunRecord) -> RunRecord:
    """A jobmaster begins its term; lower terms are refused by whoever has heard of it."""
    return change(record, term=record.term + 1)


def _united(old: tuple[Interval, ...], new: tuple[Interval, ...]) -> tuple[Interval, ...]:
    return tuple(dict.fromkeys((*old, *new)))


def check_term(record: RunRecord, term: int) -> None:
    """Refused when another jobmaster rules."""
    if record.term != term:
        raise Refused(f"term {term} is over, {record.term} rules")


def check(record: RunRecord, term: int, gen: int) -> None:
    """Refused when another jobmaster rules, another generation lives, or the job is closed."""
    check_term(record, term)
    if record.gen != gen:
        raise Refused(f"generation {gen} is over, {record.gen} lives")
    if record.phase == "closed":
        raise Refused("the job is closed")


def check_idle(record: RunRecord) -> None:
    """Refused unless a structural operation may begin."""
    if record.pending:
        raise Refused(f"{record.pending} is pending")
    if record.phase not in ("open", "finishing"):
        raise Refused(f"the generation is {record.phase}")
