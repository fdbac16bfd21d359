"""What a trainer's role needs of others, in its own words: arrays and dataclasses, no protobuf.

`recmesh.trainer.wire` speaks them over gRPC; local mode and tests give the same in-process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from recmesh.spec.job import LrPoint, Optimizer, TablePolicy
from recmesh.trainer.metrics import ScoreCounts
from recmesh.trainer.session import Floats, Init, Ints

if TYPE_CHECKING:
    from recmesh.data import Batch, TaskRecord

Owners = NDArray[np.uint16]
Counts = NDArray[np.uint32]


class Piece(NamedTuple):
    """Positions [lo, hi) on one line."""

    line: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter server as the run record names it."""

    ps: int
    address: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The job's point of agreement, as last read."""

    gen: int
    phase: str
    """restoring | open | finishing | closed"""
    map_version: int
    owners: Owners
    """[4096]: the ps index that owns each slot."""
    members: tuple[Member, ...]
    last_committed: int = 0


@dataclass(frozen=True, slots=True)
class ExecutorAddress:
    """A data executor that may be asked for rows."""

    address: str
    incarnation: str
    accepting: bool = True
    queued: int = 0


@dataclass(frozen=True, slots=True)
class Serving:
    """What a data executor's buffer holds; `forwarded`, `taken` and `decoded` count tasks since its start."""

    queued: int = 0
    """Tasks that wait to be decoded."""
    held_bytes: int = 0
    limit_bytes: int = 0
    accepting: bool = False
    """Tasks of peers."""
    forwarded: int = 0
    taken: int = 0
    decoded: int = 0
    waited_s: float = 0.0
    """Since its start: while some call waited for rows that were not decoded yet."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a role is told when it registers."""

    spec_json: str
    record: RunRecord
    heartbeat_s: float
    shardsvc: str
    ckptcache: str
    storage_uri: str
    task: str = ""
    snapshot: int = 0
    parts: tuple[str, ...] = ()
    export_uri: str = ""
    executors: tuple[ExecutorAddress, ...] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """A shard that is this worker's for a while."""

    epoch: int
    piece: Piece
    tasks: tuple["TaskRecord", ...]
    line_end: int = 0
    """Where the line ends; 0: it is not closed."""


LeaseState = Literal["granted", "wait", "drained", "stale_gen"]


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """Shards, or why there are none now."""

    state: LeaseState
    leases: tuple[Lease, ...] = ()
    retry_after_s: float = 0.5
    ttl_s: float = 60.0


@dataclass(frozen=True, slots=True)
class LeaseProgress:
    """Everything before `done_to` is applied everywhere."""

    epoch: int
    done_to: int
    complete: bool
    hi: int = 0
    """Where the lease ends, as far as the worker knows; it may have been cut meanwhile."""


@dataclass(frozen=True, slots=True)
class RenewReply:
    """Which leases are no longer ours."""

    lost: frozenset[int] = frozenset()
    stale_gen: bool = False
    cuts: Mapping[int, int] = field(default_factory=dict)
    """By epoch: where a lease ends now; what lies beyond is for others."""


class Shards(Protocol):
    """shardsvc, for one job and one worker."""

    def lease(self, gen: int, *, shards: int, request_id: str, below: int = 0) -> LeaseReply:
        """Asks for shards, with `below` only of positions before it; the same request id gets the same answer."""

    def renew(self, gen: int, leases: Sequence[LeaseProgress]) -> RenewReply:
        """Extends leases and reports progress."""

    def release(self, gen: int) -> None:
        """Returns all that this worker holds."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Means per step over a window, in seconds."""

    data_s: float = 0.0
    pull_s: float = 0.0
    compute_s: float = 0.0
    push_s: float = 0.0
    total_s: float = 0.0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat carries."""

    gen: int
    samples: int = 0
    step: StepTimes = StepTimes()
    loss: float = 0.0
    auc: float = 0.0
    window_samples: int = 0
    memory_bytes: int = 0
    cpu_s: float = 0.0
    rows: int = 0
    busy_s: float = 0.0
    skipped_nan: int = 0
    bad_records: int = 0
    note: str = ""
    draining: bool = False
    serving: Serving | None = None
    scores: tuple[ScoreCounts, ...] = ()
    """By label: how the window's predictions, each made before its batch was trained, came true."""
    occupied_s: float = 0.0
    """Since the start: while there was something to train."""


@dataclass(frozen=True, slots=True)
class BeatReply:
    """What jobmaster wants."""

    directive: Literal["continue", "drain", "exit"]
    gen: int
    map_version: int
    phase: str
    executors: tuple[ExecutorAddress, ...] = ()


class Runs(Protocol):
    """jobmaster, for one role's process."""

    def register(self, *, address: str = "") -> Assignment:
        """Says who this process is."""

    def heartbeat(self, beat: Beat) -> BeatReply:
        """Progress up, directive down."""

    def record(self, *, newer_than_gen: int = 0, wait_s: float = 0.0) -> RunRecord:
        """The record now, or when its generation is newer, at most after `wait_s`."""

    def report(
        self,
        metrics: Mapping[str, float],
        *,
        snapshot: int = 0,
        samples: int = 0,
        model_uri: str = "",
        framework: str = "",
        error: str = "",
        final: bool = False,
    ) -> None:
        """What an evaluator or finisher found; or the mistake that ended a role."""


@dataclass(frozen=True)
class TableDeclaration:
    """A table as the parameter servers know it."""

    name: str
    dim: int
    optimizer: Optimizer
    init: Init
    seed: int
    schedule: tuple[LrPoint, ...] = ()
    policy: TablePolicy = field(default_factory=TablePolicy)


@dataclass(frozen=True)
class DenseDeclaration:
    """A dense block as the parameter servers know it; no optimizer: deltas are added."""

    name: str
    shape: tuple[int, ...]
    optimizer: Optimizer | None
    schedule: tuple[LrPoint, ...] = ()


class Chunk(NamedTuple):
    """At most 16,384 float32 of a dense block."""

    block: int
    chunk: int
    values: Floats


class TableGrads(NamedTuple):
    """Gradients of distinct ids of one table, and how often each id occurred."""

    table: int
    ids: Ints
    grads: Floats
    counts: Counts


@dataclass(frozen=True, slots=True)
class Pulled:
    """Rows in the order of the request's entries, flat or [ids, dim]; and dense chunks."""

    rows: Sequence[Floats]
    dense: Sequence[Chunk]
    step: int = 0
    group_step: int = 0
    """How far the server was: what a push under a staleness bound names."""


PushStatus = Literal["applied", "wrong_map", "overlap", "stale_gen", "old_lease", "stale", "kept"]


@dataclass(frozen=True, slots=True)
class PushTerms:
    """Under what conditions a part is applied."""

    pulled_step: int = 0
    staleness: int = 0
    """Most steps of the server since `pulled_step`; 0: any."""
    step: Piece | None = None
    """Synchronous: applied with the rest of these positions."""
    step_batches: int = 1
    """Synchronous: by which the sum of the step's gradients is divided."""


UNCONDITIONAL = PushTerms()
"""As it comes."""


@dataclass(frozen=True, slots=True)
class PushAck:
    """What became of a part."""

    status: PushStatus
    since: int = 0
    cuts: tuple[Piece, ...] = ()
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class AppliedSets:
    """Positions that every group of a server has applied, and that any has."""

    by_all: tuple[Piece, ...] = ()
    by_any: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """What has become of pieces of synchronous steps."""

    applied: bool
    """All of them."""
    lost: tuple[Piece, ...] = ()
    """Neither applied nor kept."""


class ParameterServer(Protocol):
    """One server of the job. Stale generations and maps raise errors with `reason` STALE_GEN, WRONG_MAP."""

    def declare(
        self,
        gen: int,
        *,
        tables: Sequence[TableDeclaration],
        dense: Sequence[DenseDeclaration],
        values: Sequence[Chunk],
    ) -> None:
        """The first declaration of a job wins; `values` are the chunks that this server owns."""

    def pull(
        self,
        gen: int,
        *,
        map_version: int,
        tables: Sequence[tuple[int, Ints]],
        dense: bool,
        dense_since: int = 0,
        absent_as_zero: bool = False,
    ) -> Pulled:
        """Rows of distinct ids by table number; changes nothing."""

    def push(
        self,
        gen: int,
        *,
        map_version: int,
        batch: Sequence[Piece],
        epoch: int,
        tables: Sequence[TableGrads],
        dense: Sequence[Chunk],
        worker: str,
        terms: PushTerms = UNCONDITIONAL,
    ) -> PushAck:
        """This server's part of one batch, whole; an ack means applied. `kept` is none."""

    def settled(
        self, gen: int, *, map_version: int, pieces: Sequence[Piece], others: bool, wait_s: float
    ) -> Settled:
        """What has become of pieces of synchronous steps; may wait for their end. `others`: none can be lost."""

    def ledgers(self, gen: int, within: Sequence[Piece]) -> AppliedSets:
        """What is applied of these positions."""

    def close(self) -> None:
        """Ends the connection."""


@dataclass
class Declared:
    """A model's tables and blocks, numbered."""

    tables: tuple[TableDeclaration, ...] = ()
    dense: tuple[DenseDeclaration, ...] = ()
    initial: Mapping[str, Floats] = field(default_factory=dict)
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By table: the features that look up there."""


@dataclass(frozen=True, slots=True)
class ExecutorRows:
    """An executor's answer: rows, or the address of the peer that has the task, or neither: they are not there yet."""

    batch: "Batch | None" = None
    bad: int = 0
    """Of the positions asked for, how many could not be read."""
    moved_to: str = ""


@dataclass(frozen=True, slots=True)
class Taken:
    """A peer's answer: the first so many of the tasks that it was offered are its own now."""

    count: int
    accepting: bool
    queued: int


class DataExecutor(Protocol):
    """A data executor. MeshError when it cannot be asked, or refuses; any call may be repeated, and made elsewhere."""

    def announce(self, tasks: "Sequence[TaskRecord]") -> int:
        """These will be asked for; how many of the first it reads ahead."""

    def read(self, task: "TaskRecord", lo: int, hi: int, *, wait_s: float, here: bool = False) -> ExecutorRows:
        """Rows at positions [lo, hi) of the task's line; waits for them as long as that. `here`: not from a peer."""

    def take(self, tasks: "Sequence[TaskRecord]") -> Taken:
        """From a peer: offers it tasks."""

    def room(self, address: str, *, accepting: bool, queued: int) -> None:
        """From a peer at this address: whether it has room."""

    def close(self) -> None:
        """Ends the connection."""
