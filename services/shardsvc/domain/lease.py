"""What the queue answers: leases, and outcomes in the order in which they are tested."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Lease:
    """Positions [lo, hi) of line 0, held by one worker."""

    epoch: int
    """Unique in the generation, and growing."""
    worker: str
    lo: int
    hi: int
    progress: int
    """Everything in [lo, progress) is trained; an expired lease gives back the rest."""
    age_s: float = 0.0


class State(StrEnum):
    """Outcome of a call to the queue of one generation."""

    REOPEN = "reopen"
    """The queue is not there, or of an older life of the store: nothing is known, so nothing is decided."""
    STALE_GEN = "stale"
    """The caller lives in an older generation."""
    GRANTED = "granted"
    WAIT = "wait"
    """All is leased."""
    DRAINED = "drained"
    """Nothing queued, nothing leased."""


class Cause(StrEnum):
    """Why positions went back to the queue."""

    EXPIRED = "expired"
    RELEASED = "released"
    CRASHED = "crashed"
    ORPHANED = "orphaned"
    CUT = "cut"
    """Its holder had become slow, and keeps less."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """Positions that went back to the queue."""

    worker: str
    """Who held them; empty for orphans."""
    epoch: int
    lo: int
    hi: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class Granted:
    """Answer to a request for leases."""

    state: State
    leases: tuple[Lease, ...] = ()
    ttl_s: float = 0.0
    retry_after_s: float = 0.0
    requeued: tuple[Requeued, ...] = ()
    """What expired on the way."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """Answer to a heartbeat."""

    state: State
    lost: tuple[int, ...] = ()
    cuts: tuple[tuple[int, int], ...] = ()
    """(epoch, where it ends now) of leases that end before where the worker thinks."""


@dataclass(frozen=True, slots=True)
class Released:
    """Answer to a drain, a death, or a sweep."""

    state: State
    requeued: tuple[Requeued, ...] = ()
    suspects: tuple[tuple[int, int], ...] = ()
    deaths: int = 0
    """Of the first suspect, over the job's life."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """Answer to the ledgers of a snapshot."""

    state: State
    orphans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Extended:
    """Answer to a line that has grown."""

    state: State
    queued: int = 0
    """Positions that wait to be leased."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What a generation's queue starts from."""

    gen: int
    total: int
    batch_size: int
    shard_batches: int
    ttl_s: float
    first_epoch: int
    to_do: tuple[tuple[int, int], ...]
    more: bool = False
    """The line goes on: `total` grows, and an empty queue is not the end."""


@dataclass(frozen=True, slots=True)
class View:
    """The queue at one moment."""

    gen: int
    total: int
    queued: int
    leases: tuple[Lease, ...]
    expirations: int = 0
    requeues: int = 0
    granted: int = 0
    pieces: int = 0
    """Queued intervals."""
    first: int = -1
    """The lowest position that is queued; -1: none is."""

    @property
    def leased(self) -> int:
        """Positions leased and not yet reported as trained."""
        return sum(lease.hi - lease.progress for lease in self.leases)

    @property
    def done(self) -> int:
        """Positions reported as trained: a hint, as the ledgers alone decide."""
        return self.total - self.queued - self.leased

    @property
    def trained_to(self) -> int:
        """The position before which nothing is queued, nor held by anybody who has not trained it yet."""
        return min([self.total if self.first < 0 else self.first, *(lease.progress for lease in self.leases)])
