"""What a parameter server is asked and answers, in arrays: `server` knows no protobuf."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SLOTS, Ledger, SlotMap, SlotMask
from recmesh.formats.intervals import Triple
from recmesh.store import DenseSchema, TableSchema
from recmesh.trainer.ps.ledger import Batch, Cut

ENTRY_BYTES = 512
"""What an entry of a part takes beside its arrays."""
DenseValues = tuple[int, int, NDArray[np.float32]]
"""(block, chunk, values)"""


@dataclass(frozen=True, slots=True)
class RowGrads:
    """Gradients of distinct ids of a table."""

    table: int
    ids: NDArray[np.int64]
    grads: NDArray[np.float32]
    """[ids, dim]; flat is taken too"""
    counts: NDArray[np.uint32] | None = None
    """How often each id occurred; None: once."""


@dataclass(frozen=True, slots=True)
class Part:
    """One server's share of a batch, or a piece of it."""

    gen: int
    map_version: int
    batch: Batch
    epoch: int = 0
    tables: Sequence[RowGrads] = ()
    dense: Sequence[DenseValues] = ()
    worker: str = ""
    chunk: int = 0
    chunks: int = 1
    pulled_step: int = 0
    """Of this server's groups, when the values were pulled."""
    staleness: int = 0
    """Most steps between pull and push; 0: any."""
    step: Triple | None = None
    """Synchronous: the positions that are applied at once."""
    step_batches: int = 1
    """Synchronous: by which the sum of the step's gradients is divided."""

    @property
    def last_step(self) -> int | None:
        """Of a group, for the part to be fresh enough; None: it always is."""
        return self.pulled_step + self.staleness if self.staleness else None

    @property
    def size_bytes(self) -> int:
        """In memory."""
        size = sum(g.ids.nbytes + g.grads.nbytes + (0 if g.counts is None else g.counts.nbytes) for g in self.tables)
        size += sum(values.nbytes for _, _, values in self.dense)
        return size + ENTRY_BYTES * (len(self.tables) + len(self.dense) + len(self.batch))


class PushStatus(Enum):
    """What became of a part."""

    APPLIED = auto()
    CHUNK_KEPT = auto()
    KEPT = auto()
    """No ack: it waits for the rest of its step."""


@dataclass(frozen=True, slots=True)
class PushResult:
    """An ack: APPLIED means that this batch is in every ledger here."""

    status: PushStatus
    duplicate: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PullResult:
    """Values in the order of the request."""

    rows: Sequence[NDArray[np.float32]]
    dense: Sequence[DenseValues]
    step: int
    """The store's clock: what `dense_since` compares with."""
    group_step: int
    """What a push names as `pulled_step`."""
    seconds: float


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """Begin a generation."""

    gen: int
    term: int
    incarnation: str
    ps: int
    slot_map: SlotMap
    job_id: str = ""
    snapshot: int = 0
    """0: start empty."""
    parts: Sequence[str] = ()
    voids: Sequence[Triple] = ()
    ckptcache: str = ""
    fresh_ledger: bool = False
    """The rows are another job's: take them, and start with empty ledgers at step 0."""


@dataclass(frozen=True, slots=True)
class JoinOrder:
    """Take part in a generation that is open already, without slots."""

    gen: int
    term: int
    incarnation: str
    ps: int
    map_version: int
    job_id: str = ""
    voids: Sequence[Triple] = ()


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What was loaded."""

    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MarkResult:
    """A cut, and what it cost."""

    slots: SlotMask
    groups: Sequence[Cut]
    latch_ms: float
    rows: int
    size_bytes: int
    base: int = 0
    """The snapshot that the part builds on; 0: it is whole."""


@dataclass(frozen=True, slots=True)
class TakeoverResult:
    """What a new jobmaster finds."""

    gen: int
    term: int
    since: int
    slots: SlotMask
    marking: int
    sending: Sequence[int] = ()
    """Moves that are not decided here."""
    frozen: Sequence[int] = ()
    """Of these, those whose slots have left."""


@dataclass(frozen=True, slots=True)
class LedgersResult:
    """Positions applied by all groups and by any."""

    by_all: Ledger
    by_any: Ledger
    max_epoch: int


@dataclass(frozen=True, slots=True)
class Declaration:
    """A model: the order gives table and block numbers."""

    tables: tuple[TableSchema, ...] = ()
    dense: tuple[DenseSchema, ...] = ()


@dataclass(frozen=True, slots=True)
class TableSize:
    """One table's share of memory."""

    name: str
    rows: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since the process start, and sizes now."""

    gen: int = 0
    step: int = 0
    rows: int = 0
    memory_bytes: int = 0
    slots: int = 0
    busy_s: float = 0.0
    pulls: int = 0
    pushes: int = 0
    duplicates: int = 0
    tables: Sequence[TableSize] = field(default=())
    demand: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(SLOTS, np.uint32))
    """See SlotDemand."""
