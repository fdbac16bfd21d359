"""The life of a snapshot.

collecting ──all parts stored──► stored ──jobmaster commits──► committed ──a check fails──► damaged
    └──────────────┬───────────────┘
                   └─ aborted, a part is wrong, storage is full ──► failed
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from recmesh.runtime.errors import FailedPrecondition
from services.ckptcache.domain.parts import Part, missing


class State(StrEnum):
    """Where a snapshot is in its life."""

    COLLECTING = "collecting"
    STORED = "stored"
    COMMITTED = "committed"
    DAMAGED = "damaged"
    FAILED = "failed"


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.COLLECTING: frozenset({State.STORED, State.FAILED}),
    State.STORED: frozenset({State.COMMITTED, State.FAILED}),
    State.COMMITTED: frozenset({State.DAMAGED}),
    State.DAMAGED: frozenset(),
    State.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Link:
    """A snapshot that another builds on."""

    number: int
    ps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One cut of a job's state over its parameter servers."""

    job_id: str
    number: int
    gen: int
    expected: tuple[int, ...]
    created: float
    label: str = ""
    node: str = ""
    """The machine whose ckptcache collects it."""
    state: State = State.COLLECTING
    reason: str = ""
    """Why it failed, or what is damaged."""
    stored: Mapping[int, Part] | None = None
    committed: float = 0.0
    rows: int = 0
    samples: int = 0
    size_bytes: int = 0
    chain: tuple[Link, ...] = ()
    """What it builds on, newest first; nothing for a whole one. Known from its commit on."""

    @property
    def bases(self) -> tuple[int, ...]:
        """Numbers of the snapshots that it builds on, newest first."""
        return tuple(link.number for link in self.chain)

    @property
    def name(self) -> str:
        """How people are told of it."""
        return f"snapshot {self.number} of job {self.job_id}"

    @property
    def missing(self) -> tuple[int, ...]:
        """Parts that are not stored yet."""
        return missing(self.expected, list(self.stored or {}))

    @property
    def usable(self) -> bool:
        """A restore may read it."""
        return self.state in (State.STORED, State.COMMITTED)


def _moved(snapshot: Snapshot, state: State, **changes: Any) -> Snapshot:
    if state not in TRANSITIONS[snapshot.state]:
        raise FailedPrecondition(
            f"{snapshot.name} is {snapshot.state}, so it cannot become {state}"
            + (f": {snapshot.reason}" if snapshot.reason else ""),
            reason="WRONG_STATE",
        )
    return replace(snapshot, state=state, **changes)


def with_stored(snapshot: Snapshot, part: Part) -> Snapshot:
    """The part is verified and synced; with the last one the snapshot is STORED."""
    parts = {**(snapshot.stored or {}), part.ps: part}
    size = sum(each.size_bytes for each in parts.values())
    grown = replace(snapshot, stored=parts, size_bytes=size)
    return grown if grown.missing else _moved(grown, State.STORED)


def failed(snapshot: Snapshot, reason: str) -> Snapshot:
    """It does not exist any more; a failed one keeps its first reason."""
    if snapshot.state is State.FAILED:
        return snapshot
    return _moved(snapshot, State.FAILED, reason=reason)


def committed(
    snapshot: Snapshot, *, now: float, rows: int, samples: int, chain: tuple[Link, ...] = ()
) -> Snapshot:
    """The job's record names it."""
    return _moved(snapshot, State.COMMITTED, committed=now, rows=rows, samples=samples, chain=chain)


def damaged(snapshot: Snapshot, reason: str) -> Snapshot:
    """A committed snapshot whose bytes are not what was stored; never used again."""
    if snapshot.state is State.DAMAGED:
        return snapshot
    return _moved(snapshot, State.DAMAGED, reason=reason)


def check_generation(snapshot: Snapshot, gen: int) -> None:
    """A message of another generation has no effect (PROTOCOL §6, R4)."""
    if snapshot.gen != gen:
        raise FailedPrecondition(
            f"{snapshot.name} belongs to generation {snapshot.gen}, not {gen}",
            reason="STALE_GEN",
        )
