"""What `domain.rules` looks at, and the actions that may follow."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from recmesh.spec.job import TrainingJob
from services.jobmaster.domain.exits import Exit
from services.jobmaster.domain.hot import Hot, Load
from services.jobmaster.domain.job import AcceptedJob, Ending, JobStatus, RoleKey
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.record import RunRecord


@dataclass(frozen=True, slots=True)
class Process:
    """A process as the cluster shows it; `exit` when it has ended."""

    name: str
    exit: Exit | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What the runner observes besides the stored documents."""

    processes: Mapping[str, Process]
    """By name: `worker-0-1`."""
    heard: Mapping[RoleKey, float] = field(default_factory=dict)
    """When the current incarnation of a place was last heard of."""
    watching_since: float = 0.0
    """Silence before this jobmaster began to listen proves nothing."""
    drained: bool | None = None
    """shardsvc: nothing queued, nothing leased, the line closed. None: not known."""
    operation: str = ""
    """The procedure under way: plan | open | snapshot | abort | void | suspend | close | register | end | record
    | clean | purge."""
    operation_retry_at: float = 0.0
    """A procedure failed for want of a service; not before this."""
    moving: bool = False
    """Parameter servers join or leave, or slots move: beside the procedures, for a copy may take long."""
    moving_retry_at: float = 0.0
    publishing: bool = False
    """The model is registered while the job trains: beside the procedures, for the gateway may be away for long."""
    publishing_retry_at: float = 0.0
    busy: Mapping[int, float] = field(default_factory=dict)
    """By parameter server: seconds in kernels per second, over the last window; not yet there: none."""
    copied: float = 0.0
    """Slots of the move under way that are copied, about."""
    waiting: float = 0.0
    """The part of workers' steps that their calls to parameter servers take."""
    quarantine_due: bool = False
    killing: frozenset[str] = frozenset()
    """Processes that were told to end, by name."""
    unfit: frozenset[str] = frozenset()
    """Processes that cannot be given another size while they run, by name."""
    skipped_nan: int = 0
    bad_records: int = 0
    """By all incarnations."""
    waited: Mapping[str, float] = field(default_factory=dict)
    """When a process was last seen waiting for its place in the cluster, by name: its time to register begins then."""
    grown: Mapping[RoleKey, float] = field(default_factory=dict)
    """When the samples of a place's current incarnation last grew."""
    queued_since: float | None = None
    """Since when there are positions that nobody holds. None: there are none, or it is not known."""
    work_since: float | None = None
    """Since when there are positions to train, held or not. None: there are none, or it is not known."""


@dataclass(frozen=True, slots=True)
class NoteExit:
    """The place's process has ended."""

    key: RoleKey
    exit: Exit


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process for the place."""

    key: RoleKey


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask the process to finish what it has in flight and go."""

    key: RoleKey
    reason: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Another process shall take the place of this one, which goes when its slots have gone."""

    key: RoleKey
    reason: str


@dataclass(frozen=True, slots=True)
class Refit:
    """Another size is wanted of a process that runs: it gets it in place, where its controller can do that."""

    key: RoleKey


@dataclass(frozen=True, slots=True)
class Relieve:
    """A parameter server is hot: slots of it shall go to others."""

    hot: Hot
    loads: Mapping[int, Load]


@dataclass(frozen=True, slots=True)
class Abandon:
    """A parameter server's slots leave it too slowly: end it, and begin again without it."""

    key: RoleKey
    reason: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process: SIGTERM and, after a grace, SIGKILL; at once with `hard`."""

    name: str
    reason: str
    hard: bool = False
    matter: str = ""
    """What it is a decision on, in the job's timeline; empty: on nothing that went wrong."""


@dataclass(frozen=True, slots=True)
class Move:
    """Another phase."""

    phase: Phase
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """The job will end like this, once its processes are gone."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class Operate:
    """Carry out a procedure."""

    name: str
    reason: str = ""


Action = (
    NoteExit | Launch | Drain | Replace | Refit | Relieve | Abandon | Kill | Move | End | Operate
)


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything `decide` looks at."""

    spec: TrainingJob
    job: AcceptedJob
    status: JobStatus
    record: RunRecord
    seen: Seen
    limits: Limits
    now: float


def operate(at: Situation, name: str, *, reason: str) -> list[Action]:
    """The procedure, unless another one is under way or it is to wait."""
    if at.seen.operation or at.now < at.seen.operation_retry_at:
        return []
    return [Operate(name, reason)]
