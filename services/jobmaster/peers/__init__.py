"""What jobmaster asks of other services and of parameter servers, in its own words.

A caller holds one of these interfaces; behind it is a stub (`peers.mesh`; of brain, whose interface is in
`peers.planning`, `peers.brain`) or, in tests, a fake. Every call has a deadline and raises a MeshError.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from services.jobmaster.domain.ledgers import Interval, Ledger
from services.jobmaster.domain.record import Member
from services.jobmaster.domain.snapshot import Cut
from services.jobmaster.peers.planning import Brain


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a dataset holds."""

    rows: int
    size_bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class RunOrder:
    """A queue for a generation."""

    job_id: str
    gen: int
    dataset_json: str
    epochs: int
    seed: int
    shuffle: bool
    batch_size: int
    shard_batches: int
    lease_ttl_s: float
    done: Ledger = ()
    epoch_floor: int = 0


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """The queue is there."""

    total: int
    to_do: int
    log_last_sequence: int
    more: bool = False
    """The line goes on: `total` grows."""


@dataclass(frozen=True, slots=True)
class Released:
    """A dead worker's leases are queued again."""

    requeued: int
    suspects: tuple[Interval, ...]
    """With a crash: the batch in whose compute it died, the likeliest first."""
    deaths: int
    """How often the first suspect has killed a worker."""


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Hints about the queue."""

    gen: int
    total: int
    done: int
    queued: int
    leased: int
    epochs: int
    drained: bool
    requeues: int
    more: bool = False
    """The line goes on: `total` grows."""
    waits_for: str = ""
    """Of streams: why nothing is added to the line now."""
    event_time: float = 0.0
    """Of streams: where the newest window on the line begins, unix seconds."""
    partitions: int = 0
    """Of topics."""
    lag_messages: int = 0
    """On all of them, not trained yet."""
    lag_s: float = 0.0
    """Age of the oldest of these."""
    arrived: int = 0
    """Messages that ever came on them."""
    series: tuple[str, ...] = ()
    """Under which names forecaster has their rates, by topic."""


@dataclass(frozen=True, slots=True)
class RegisteredDataset:
    """A dataset under a name, as shardsvc knows it."""

    name: str
    revision: int
    created: float
    """Unix seconds, of this revision."""
    rows: int
    files: int
    size_bytes: int
    tasks: int
    columns: int


class Shards(Protocol):
    """shardsvc."""

    async def inspect(self, dataset_json: str) -> Inspection:
        """InvalidArgument names what is wrong with files or columns."""
        ...

    async def dataset(self, name: str) -> str:
        """The specification of a registered dataset, as JSON; NotFound."""
        ...

    async def register_dataset(self, name: str, dataset_json: str) -> RegisteredDataset:
        """The same specification again is no new revision; InvalidArgument names what is wrong."""
        ...

    async def remove_dataset(self, name: str) -> None:
        """Nothing when there is none."""
        ...

    async def open_run(self, order: RunOrder) -> OpenedRun:
        """Idempotent by generation."""
        ...

    async def close_run(self, job_id: str, *, forget: bool) -> None:
        """No more leases; with `forget` the task log goes too."""
        ...

    async def release_worker(self, job_id: str, *, gen: int, worker: str, crashed: bool) -> Released:
        """The worker's remainders are queued at once."""
        ...

    async def size_shards(self, job_id: str, *, gen: int, worker: str, shard_batches: int) -> int:
        """A worker holds no more than one shard of so many batches (0: as everybody); positions queued again."""
        ...

    async def reconcile(self, job_id: str, *, gen: int, done: Ledger) -> tuple[int, int]:
        """(orphans queued again, positions missing)."""
        ...

    async def commit_offsets(self, job_id: str, *, gen: int, done: Ledger) -> int:
        """What no rollback will train again is told to the job's topics; how many partitions they have."""
        ...

    async def progress(self, job_id: str) -> QueueProgress:
        """NotFound when shardsvc has lost the run."""
        ...


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot as ckptcache knows it."""

    snapshot: int
    state: str
    uri: str
    parts: tuple[str, ...]
    rows: int
    size_bytes: int
    samples: int
    manifest_json: str = ""


AwaitState = Literal["collecting", "stored", "failed", "unknown"]


class Checkpoints(Protocol):
    """ckptcache."""

    async def begin(self, job_id: str, *, gen: int, snapshot: int, ps: Sequence[int], label: str) -> None:
        """These parts are expected."""
        ...

    async def await_parts(self, job_id: str, snapshot: int, *, wait_s: float) -> tuple[AwaitState, str]:
        """(state, reason), after at most `wait_s`."""
        ...

    async def commit(
        self, job_id: str, *, gen: int, snapshot: int, manifest_json: str, keep: int
    ) -> StoredSnapshot:
        """Idempotent; applies retention."""
        ...

    async def abort(self, job_id: str, snapshot: int, *, reason: str) -> None:
        """It will never be committed."""
        ...

    async def get(self, job_id: str, snapshot: int) -> StoredSnapshot:
        """With its manifest; 0 is the newest committed. NotFound, DataLoss."""
        ...

    async def delete(self, job_id: str) -> None:
        """All snapshots of the job."""
        ...


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """Start a generation on a PS."""

    job_id: str
    gen: int
    term: int
    incarnation: str
    ps: int
    map_version: int
    owners: bytes
    snapshot: int
    parts: tuple[str, ...]
    voids: tuple[Interval, ...]
    fresh_ledger: bool


@dataclass(frozen=True, slots=True)
class TakenOver:
    """What a PS answers to a new term."""

    gen: int
    term: int
    marking: int
    sending: tuple[int, ...] = ()
    """Moves whose slots leave, or have left and are not freed."""
    frozen: tuple[int, ...] = ()
    """Of these, moves after their freeze."""


@dataclass(frozen=True, slots=True)
class JoinOrder:
    """Take part in a generation that is open already, with no slot."""

    job_id: str
    gen: int
    term: int
    member: Member
    map_version: int
    voids: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """Which move of which generation a call is about, and by whose order."""

    job_id: str
    gen: int
    term: int
    move: int


@dataclass(frozen=True, slots=True)
class Copied:
    """How far the copy of a move is."""

    caught_up: bool
    rows: int = 0
    base_bytes: int = 0
    delta_bytes: int = 0
    error: str = ""
    """It has failed, and is to be given up."""
    expected_rows: int = 0
    """About how many there are to copy; 0: not known."""

    @property
    def share(self) -> float:
        """About how much of it is there, 0 to 1."""
        if self.caught_up:
            return 1.0
        return min(1.0, self.rows / self.expected_rows) if self.expected_rows else 0.0


@dataclass(frozen=True, slots=True)
class Frozen:
    """What a freeze has come to."""

    installed: bool
    """False: the target has not answered yet."""
    latch_ms: float = 0.0
    frozen_ms: float = 0.0
    last_rows: int = 0
    last_bytes: int = 0
    base_bytes: int = 0
    delta_bytes: int = 0


class Servers(Protocol):
    """Parameter servers, by address."""

    async def restore(self, address: str, order: RestoreOrder, *, timeout_s: float) -> int:
        """Rows restored. DataLoss when the snapshot is damaged."""
        ...

    async def takeover(self, address: str, *, job_id: str, gen: int, term: int) -> TakenOver:
        """Lower terms are refused from then on."""
        ...

    async def mark(
        self, address: str, *, ps: int, job_id: str, gen: int, term: int, snapshot: int, base: int
    ) -> Cut:
        """Cuts the snapshot, as a delta on `base` where the PS can; its blocks go to ckptcache in the background."""
        ...

    async def abort_mark(self, address: str, *, job_id: str, gen: int, term: int, snapshot: int) -> None:
        """Forget it."""
        ...

    async def void(
        self, address: str, *, job_id: str, gen: int, term: int, batches: Sequence[Interval]
    ) -> tuple[Interval, ...]:
        """Enters the batches in every ledger; which were partly applied."""
        ...

    async def ledgers(self, address: str, *, job_id: str, gen: int) -> tuple[Ledger, int]:
        """(applied by all groups, newest lease epoch seen)."""
        ...

    async def demand(self, address: str, *, job_id: str) -> NDArray[np.uint32]:
        """uint32 [SLOTS]: rows that were asked for of late, by slot."""
        ...

    async def join(self, address: str, order: JoinOrder) -> None:
        """A server that owns nothing takes part in the generation."""
        ...

    async def migrate(self, address: str, order: MoveOrder, *, slots: bytes, target: Member) -> Copied:
        """To the source: begins the copy, or tells how far it is."""
        ...

    async def freeze(
        self, address: str, order: MoveOrder, *, map_version: int, timeout_s: float
    ) -> Frozen:
        """To the source: the slots leave it."""
        ...

    async def abort_install(self, address: str, order: MoveOrder) -> bool:
        """To the target: never install. True: it has already."""
        ...

    async def resume(self, address: str, order: MoveOrder, *, map_version: int) -> None:
        """To the source: take the slots back under this version; 0: they were never frozen, forget the copy."""
        ...

    async def free(self, address: str, order: MoveOrder) -> None:
        """To the source: the map says the slots are the target's, and their rows may go."""
        ...

    def forget(self, address: str) -> None:
        """The connection is of no more use."""
        ...


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A registered model."""

    name: str
    version: str
    uri: str
    job_id: str
    snapshot: int


class Models(Protocol):
    """The gateway's model registry."""

    async def versions(self, name: str) -> list[ModelVersion]:
        """All versions of the model."""
        ...

    async def register(
        self,
        model: ModelVersion,
        *,
        framework: str,
        metrics: Mapping[str, float],
        request_id: str,
        load: bool,
        serving: Mapping[str, Any],
    ) -> ModelVersion:
        """Idempotent by request id."""
        ...


@dataclass(frozen=True, slots=True)
class Peers:
    """Everybody whom jobmaster calls."""

    shards: Shards
    checkpoints: Checkpoints
    servers: Servers
    brain: Brain
    models: Models
