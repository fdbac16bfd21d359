"""The run record of a job: the only point of agreement, and the rules by which it changes.

Every function takes the record and returns the next one, or raises `Refused`; the caller writes the result
by compare-and-set. Nothing else may construct a changed record. The rules are those of
docs/adr/0002-exactly-once.md: one structural operation at a time, generations and map versions only grow, and
a snapshot is committed only in the generation that cut it.
"""

import base64
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from services.jobmaster.domain.ledgers import Interval

SLOTS = 4096
HISTORY = 32
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
    voids: tuple[Interval, ...] = ()
    """Batches set aside, as single pieces."""
    partly_applied: tuple[Interval, ...] = ()
    """Voids of which some slot had the batch already."""
    reserved_version: int = 0
    pending: str = ""
    """"" | mark:N | rollback | void:M"""
    pending_voids: tuple[Interval, ...] = ()
    operations: int = 0
    """Numbers given to marks and voids so far, aborted ones included: a number is never used twice."""
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


def static_owners(ps_count: int) -> str:
    """Slot s belongs to PS s·n // 4096: contiguous ranges of equal size."""
    slots = np.arange(SLOTS, dtype=np.uint32)
    return base64.b64encode((slots * ps_count // SLOTS).astype("<u2").tobytes()).decode()


def _change(record: RunRecord, **changes: object) -> RunRecord:
    return record.model_copy(update=changes)


def next_generation(record: RunRecord, *, term: int, members: Sequence[Member]) -> RunRecord:
    """R1: a new life from the last committed snapshot, on these members, under a fresh map version."""
    _check_term(record, term)
    if record.phase == "closed":
        raise Refused("the job is closed")
    if [member.ps for member in members] != list(range(len(members))) or not members:
        raise Refused("members must be PS 0..n-1, each once")
    version = max(record.reserved_version, record.map_version) + 1
    return _change(
        record,
        gen=record.gen + 1, phase="restoring", base_snapshot=record.last_committed,
        map_version=version, reserved_version=version, owners=static_owners(len(members)),
        members=tuple(members), pending="rollback",
        # A quarantine that was under way is decided: every member applies it at its restore.
        voids=_united(record.voids, record.pending_voids), pending_voids=(),
    )


def opened(record: RunRecord, *, term: int, gen: int) -> RunRecord:
    """All members are restored and the queue is there: leases may start."""
    _check(record, term, gen)
    if record.phase != "restoring":
        raise Refused(f"the generation is {record.phase} already")
    return _change(record, phase="open", pending="")


def mark(record: RunRecord, *, term: int, gen: int) -> RunRecord:
    """S1: the next snapshot number, taken for good."""
    _check(record, term, gen)
    _check_idle(record)
    number = record.operations + 1
    return _change(record, pending=f"mark:{number}", operations=number)


def commit(record: RunRecord, *, term: int, gen: int, snapshot: int, full: bool) -> RunRecord:
    """S4: the snapshot exists from here on. A full or awaited one closes the job in the same change."""
    _check(record, term, gen)
    if record.pending != f"mark:{snapshot}":
        raise Refused(f"snapshot {snapshot} is not pending, {record.pending or 'nothing'} is")
    closes = full or record.phase == "finishing"
    return _change(
        record,
        pending="", last_committed=snapshot, committed=(*record.committed, snapshot)[-HISTORY:],
        phase="closed" if closes else record.phase,
    )


def abort_mark(record: RunRecord, *, term: int, snapshot: int) -> RunRecord:
    """The snapshot will never exist."""
    _check_term(record, term)
    if record.pending != f"mark:{snapshot}":
        raise Refused(f"snapshot {snapshot} is not pending")
    return _change(record, pending="")


def damaged(record: RunRecord, *, term: int, snapshot: int) -> RunRecord:
    """R5: a snapshot proved unreadable; the one before it is the last committed one now."""
    _check_term(record, term)
    committed = tuple(number for number in record.committed if number != snapshot)
    return _change(record, committed=committed, last_committed=committed[-1] if committed else 0)


def void(record: RunRecord, *, term: int, gen: int, batches: Sequence[Interval]) -> RunRecord:
    """Quarantine begins: these batches will be in every ledger."""
    _check(record, term, gen)
    _check_idle(record)
    number = record.operations + 1
    return _change(record, pending=f"void:{number}", operations=number, pending_voids=tuple(batches))


def voided(record: RunRecord, *, term: int, gen: int, partly_applied: Sequence[Interval]) -> RunRecord:
    """Every PS answered: the void set holds them, and every restore applies it again."""
    _check(record, term, gen)
    if not record.pending.startswith("void:"):
        raise Refused("no quarantine is pending")
    return _change(
        record,
        pending="", pending_voids=(),
        voids=_united(record.voids, record.pending_voids),
        partly_applied=_united(record.partly_applied, tuple(partly_applied)),
    )


def finishing(record: RunRecord, *, term: int) -> RunRecord:
    """Success at the next committed snapshot, with the ledgers as they are."""
    _check_term(record, term)
    if record.phase in ("finishing", "closed"):
        return record
    if record.phase != "open":
        raise Refused("no generation is open")
    return _change(record, phase="finishing")


def closed(record: RunRecord, *, term: int) -> RunRecord:
    """Nothing may happen any more; for jobs that fail or are stopped."""
    _check_term(record, term)
    return _change(record, phase="closed", pending="", pending_voids=())


def takeover(record: RunRecord) -> RunRecord:
    """A jobmaster begins its term; lower terms are refused by whoever has heard of it."""
    return _change(record, term=record.term + 1)


def _united(old: tuple[Interval, ...], new: tuple[Interval, ...]) -> tuple[Interval, ...]:
    return tuple(dict.fromkeys((*old, *new)))


def _check_term(record: RunRecord, term: int) -> None:
    if record.term != term:
        raise Refused(f"term {term} is over, {record.term} rules")


def _check(record: RunRecord, term: int, gen: int) -> None:
    _check_term(record, term)
    if record.gen != gen:
        raise Refused(f"generation {gen} is over, {record.gen} lives")
    if record.phase == "closed":
        raise Refused("the job is closed")


def _check_idle(record: RunRecord) -> None:
    if record.pending:
        raise Refused(f"{record.pending} is pending")
    if record.phase not in ("open", "finishing"):
        raise Refused(f"the generation is {record.phase}")
