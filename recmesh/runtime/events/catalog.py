"""Events of the mesh, and what they carry; those of serving are in `serving`. docs/asyncapi.yaml is generated
from both."""

from typing import Any, Literal

from pydantic import Field

from recmesh.runtime.events.types import EVENTS, EventType, Payload

# --- jobs ------------------------------------------------------------------------------------------


class JobSubmit(Payload):
    """Please run this job. Anybody may say so; jobmaster does it, or reports why not."""

    spec: dict[str, Any]
    """A TrainingJob, as in `recmesh submit`."""
    request_id: str = ""
    """The same id never makes two jobs; empty: the event's id."""
    submitter: str = ""


class JobStop(Payload):
    """Please end this job: the entity is its id. Anybody may say so; jobmaster does it, or reports why not."""

    reason: str = ""
    """Kept with the job."""
    finish: bool = False
    """Succeed at the next snapshot, with what is trained so far, instead of stopping."""
    request_id: str = ""
    """Told again by a refusal; stopping twice is stopping once."""
    submitter: str = ""


class WrongField(Payload):
    """One field that is wrong, and why."""

    path: str
    reason: str


class JobRefused(Payload):
    """What a `job.submit` asked for is no job, and nothing was created; or what a `job.stop`, `job.suspend` or
    `job.resume` named cannot be changed so. The answer to its sender."""

    refused_id: str
    """`ce-id` of the command."""
    refused_source: str
    """`ce-source` of the command."""
    request_id: str = ""
    """As in the command."""
    submitter: str = ""
    reason: str = ""
    """A word that programs may compare, such as INVALID_SPEC."""
    message: str = ""
    violations: list[WrongField] = Field(default_factory=list)
    """Each wrong field of the specification."""
    command: str = "job.submit"
    """What was refused."""


class JobSuspend(Payload):
    """Please set this job aside: it saves a snapshot, and its processes go. The entity is its id."""

    reason: str = ""
    """Kept with the job."""
    request_id: str = ""
    """Told again by a refusal; suspending twice is suspending once."""
    submitter: str = ""


class JobResume(Payload):
    """Please go on with this job: the entity is its id."""

    request_id: str = ""
    """Told again by a refusal; resuming twice is resuming once."""
    submitter: str = ""


class JobSubmitted(Payload):
    """A job was accepted."""

    name: str
    owner: str = ""
    submitter: str = ""
    request_id: str = ""
    """Of the request that made it; of a `job.submit` without one, source/id of the command."""


class JobTransitioned(Payload):
    """A job went from one phase to another."""

    from_phase: str
    to_phase: str
    reason: str = ""
    message: str = ""


class JobProgressed(Payload):
    """How far a job is; told now and then, not for every batch."""

    samples: int
    total: int = 0
    """0: unknown."""
    samples_per_s: float = 0.0
    loss: float | None = None
    auc: float | None = None


class JobMeasured(Payload):
    """How well a job predicted, over a minute, what it then trained."""

    at: float
    """Begin of the minute, unix seconds."""
    samples: int
    loss: float
    auc: dict[str, float] = Field(default_factory=dict)
    """By label; those of which too little came are left out."""


class JobScaled(Payload):
    """The wanted number of a role's replicas changed."""

    role: str
    from_replicas: int
    to_replicas: int
    reason: str = ""


class JobSlotsMoved(Payload):
    """Slots have another parameter server, while training went on."""

    move: int
    source: int
    target: int
    slots: int
    rows: int | None = None
    base_bytes: int | None = None
    delta_bytes: int | None = None
    """Sent again because they changed during the copy, the last ones included."""
    pause_ms: float | None = None
    """From the freeze to the published map: for these slots pushes waited so long. As all measures it is none where
    the answer that tells it was lost."""
    frozen_ms: float | None = None
    """Of it, from the freeze to the target's answer, by the source's clock; the rest is messages and a write."""
    latch_ms: float | None = None
    """For all slots of the source pushes waited so long."""
    reason: str = ""


class JobRoleStarted(Payload):
    """A role's process or pod was started."""

    role: str
    index: int
    incarnation: str = ""
    handle: str = ""
    """Process id or pod name."""
    restarts: int = 0


class JobRoleResized(Payload):
    """A role's process got other limits while it ran."""

    role: str
    index: int
    cpu: float
    """Cores."""
    memory_bytes: int
    """0: no limit."""


class JobRoleExited(Payload):
    """A role's process or pod ended."""

    role: str
    index: int
    incarnation: str = ""
    exit_code: int | None = None
    reason: str = ""
    expected: bool = False
    """True when it was asked to, or its work was done."""


class JobBatchQuarantined(Payload):
    """A batch killed its worker too often and is left out."""

    line: int
    lo: int
    hi: int
    attempts: int
    reason: str = ""


class JobSnapshotCommitted(Payload):
    """A snapshot became the one that a rollback would return to."""

    snapshot: int
    samples: int
    gen: int
    size_bytes: int = 0
    """What the servers set aside for it, at most; `snapshot.stored` has the bytes of its files."""


class JobEvaluated(Payload):
    """A model was measured on the evaluation data."""

    samples: int
    """Trained so far."""
    metrics: dict[str, float] = Field(default_factory=dict)
    snapshot: int = 0


class JobRolledBack(Payload):
    """Training went back to a snapshot; what came after it is trained again."""

    snapshot: int
    gen: int
    reason: str
    lost_samples: int = 0


class JobDecided(Payload):
    """jobmaster answers trouble of a job. A line of the job's timeline; what came of it follows by its number."""

    decision: int
    matter: str
    """straggler | memory | termination | ..."""
    place: str = ""
    """`worker 1`; empty when it concerns the whole job."""
    seen: str
    decided: str


class JobEffectObserved(Payload):
    """What was done about a decision, and what came of it."""

    decision: int
    matter: str
    done: str = ""
    effect: str = ""


class JobStragglerDetected(Payload):
    """A worker trains well below the median of its peers; its shards get smaller, or a backup worker helps."""

    index: int
    incarnation: str = ""
    share: float
    """Its pace over the median of its peers'."""
    window_s: float
    answer: str
    """smaller shards | backup worker"""
    shard_batches: int
    """Of this worker from now on."""
    reason: str = ""


class JobStragglerRecovered(Payload):
    """A worker keeps up again, or another process has its place: it gets shards like everybody."""

    index: int
    incarnation: str = ""
    reason: str = ""


class JobRoleNotified(Payload):
    """A process was told by others (its machine, its scheduler, a person) that it must go; it drains."""

    role: str
    index: int
    incarnation: str = ""
    reason: str = ""


class JobExecutorRoomChanged(Payload):
    """A data executor begins or ceases to accept tasks that other executors pass on."""

    index: int
    incarnation: str = ""
    address: str = ""
    accepting: bool
    queued: int = 0
    """Tasks that wait to be decoded there."""


class JobMemoryRaised(Payload):
    """Processes of a role may use more memory from now on."""

    role: str
    from_bytes: int
    to_bytes: int
    cause: str
    """oom: one was killed for it; forecast: one would have been."""
    reason: str = ""


JOB_SUBMIT = EVENTS.add(
    EventType("job.submit", "jobmaster", JobSubmit, "Command: run a training job.", anyone=True)
)
JOB_STOP = EVENTS.add(EventType("job.stop", "jobmaster", JobStop, "Command: end a job.", anyone=True))
JOB_REFUSED = EVENTS.add(
    EventType("job.refused", "jobmaster", JobRefused, "A command for a job was refused; why.")
)
JOB_SUSPEND = EVENTS.add(
    EventType("job.suspend", "jobmaster", JobSuspend, "Command: set a job aside.", anyone=True)
)
JOB_RESUME = EVENTS.add(
    EventType("job.resume", "jobmaster", JobResume, "Command: go on with a suspended job.", anyone=True)
)
JOB_SUBMITTED = EVENTS.add(EventType("job.submitted", "jobmaster", JobSubmitted, "A job was accepted."))
JOB_TRANSITIONED = EVENTS.add(
    EventType("job.transitioned", "jobmaster", JobTransitioned, "A job changed its phase.")
)
JOB_PROGRESSED = EVENTS.add(EventType("job.progressed", "jobmaster", JobProgressed, "How far a job is."))
JOB_MEASURED = EVENTS.add(
    EventType("job.measured", "jobmaster", JobMeasured, "Loss and AUC of a minute, each batch before it was trained.")
)
JOB_SCALED = EVENTS.add(EventType("job.scaled", "jobmaster", JobScaled, "A role's replicas changed."))
JOB_SLOTS_MOVED = EVENTS.add(
    EventType("job.slots_moved", "jobmaster", JobSlotsMoved, "Slots moved to another parameter server.")
)
JOB_ROLE_STARTED = EVENTS.add(EventType("job.role_started", "jobmaster", JobRoleStarted, "A role started."))
JOB_ROLE_RESIZED = EVENTS.add(
    EventType("job.role_resized", "jobmaster", JobRoleResized, "A role's process got other limits while it ran.")
)
JOB_ROLE_EXITED = EVENTS.add(EventType("job.role_exited", "jobmaster", JobRoleExited, "A role ended."))
JOB_BATCH_QUARANTINED = EVENTS.add(
    EventType("job.batch_quarantined", "jobmaster", JobBatchQuarantined, "A batch is left out.")
)
JOB_SNAPSHOT_COMMITTED = EVENTS.add(
    EventType("job.snapshot_committed", "jobmaster", JobSnapshotCommitted, "A snapshot was committed.")
)
JOB_EVALUATED = EVENTS.add(EventType("job.evaluated", "jobmaster", JobEvaluated, "A model was measured."))
JOB_ROLLED_BACK = EVENTS.add(
    EventType("job.rolled_back", "jobmaster", JobRolledBack, "Training returned to a snapshot.")
)

JOB_DECIDED = EVENTS.add(EventType("job.decided", "jobmaster", JobDecided, "An answer to trouble of a job."))
JOB_EFFECT_OBSERVED = EVENTS.add(
    EventType("job.effect_observed", "jobmaster", JobEffectObserved, "What came of a decision.")
)
JOB_STRAGGLER_DETECTED = EVENTS.add(
    EventType("job.straggler_detected", "jobmaster", JobStragglerDetected, "A worker is slow.")
)
JOB_STRAGGLER_RECOVERED = EVENTS.add(
    EventType("job.straggler_recovered", "jobmaster", JobStragglerRecovered, "A worker is slow no more.")
)
JOB_ROLE_NOTIFIED = EVENTS.add(
    EventType("job.role_notified", "jobmaster", JobRoleNotified, "A process was told to go, and drains.")
)
JOB_EXECUTOR_ROOM_CHANGED = EVENTS.add(
    EventType("job.executor_room_changed", "jobmaster", JobExecutorRoomChanged, "A data executor has room, or none.")
)
JOB_MEMORY_RAISED = EVENTS.add(
    EventType("job.memory_raised", "jobmaster", JobMemoryRaised, "A role's memory limit was raised.")
)

# --- data ------------------------------------------------------------------------------------------


class LeaseRequeued(Payload):
    """Work that a worker held went back to the queue."""

    job_id: str
    worker: str
    positions: int
    reason: str


class DatasetRegistered(Payload):
    """A dataset was indexed."""

    name: str
    rows: int
    files: int
    tasks: int = 0


class DatasetRemoved(Payload):
    """A dataset's name was forgotten."""

    name: str
    revision: int
    """The newest that it had."""


class RunOpened(Payload):
    """A run's queue was opened for a generation."""

    gen: int
    total: int
    tasks: int


class PartitionObserved(Payload):
    """A partition of a topic, as a job sees it."""

    partition: str
    offset: int
    """Of the oldest message that is not trained."""
    end: int
    """One past the newest message."""
    lag_s: float
    """Age of the oldest message that is not trained."""
    state: Literal["assigned", "unassigned"]
    """Whether messages of it are held by workers, or wait for them."""


class TopicObserved(Payload):
    """How far a job is behind its topics."""

    at: float
    lag_s: float
    """Of the partition that is farthest behind."""
    partitions: list[PartitionObserved] = Field(max_length=4096)


LEASE_REQUEUED = EVENTS.add(
    EventType("lease.requeued", "shardsvc", LeaseRequeued, "Leased work went back to the queue.")
)
DATASET_REGISTERED = EVENTS.add(
    EventType("dataset.registered", "shardsvc", DatasetRegistered, "A dataset was indexed.")
)
DATASET_REMOVED = EVENTS.add(
    EventType("dataset.removed", "shardsvc", DatasetRemoved, "A dataset's name was forgotten; its files stay.")
)
TOPIC_OBSERVED = EVENTS.add(
    EventType("topic.observed", "shardsvc", TopicObserved, "The lag of a job behind its topics was measured.")
)
RUN_OPENED = EVENTS.add(EventType("run.opened", "shardsvc", RunOpened, "A run's queue was opened."))

# --- checkpoints -----------------------------------------------------------------------------------


class SnapshotStored(Payload):
    """All parts of a snapshot are verified on storage."""

    snapshot: int
    parts: int
    size_bytes: int
    duration_s: float = 0.0


class SnapshotDamaged(Payload):
    """A part does not have the bytes it had; the snapshot is not used."""

    snapshot: int
    part: str
    reason: str


SNAPSHOT_STORED = EVENTS.add(
    EventType("snapshot.stored", "ckptcache", SnapshotStored, "A snapshot is on storage, verified.")
)
SNAPSHOT_DAMAGED = EVENTS.add(
    EventType("snapshot.damaged", "ckptcache", SnapshotDamaged, "A snapshot is damaged and left alone.")
)

# --- plans and forecasts ---------------------------------------------------------------------------


class PlanProposed(Payload):
    """brain proposes resources for a job."""

    planner: str
    reason: str
    replicas: dict[str, int] = Field(default_factory=dict)
    samples_per_s: float | None = None


class LoanChanged(Payload):
    """Room that training lends to serving."""

    job_id: str
    """The lender."""
    state: str
    """planned, draining, lent, returning, returned or cancelled."""
    cause: str
    due: float
    """Promised to be back by then, unix seconds; 0: nothing is promised."""
    renewals: int = 0
    late: bool = False
    node: str = ""
    """That the work had to leave; empty: any."""
    reason: str = ""


class RateObserved(Payload):
    """Rates of a series, as measured by whoever measures them."""

    series: str
    step_s: float = Field(gt=0)
    points: list[tuple[float, float]] = Field(max_length=10_000)
    """[unix seconds, value per second], ascending."""
    counter: bool = False
    """The values are what a counter showed; the first repeats the last of the event before."""


class SeriesRates(Payload):
    """What was measured of one series."""

    series: str
    points: list[tuple[float, float]] = Field(max_length=10_000)
    """[unix seconds, value per second], ascending."""


class RatesObserved(Payload):
    """Rates of many series that one measurer measures at the same step."""

    step_s: float = Field(gt=0)
    series: list[SeriesRates] = Field(max_length=1_000)


class ForecastUpdated(Payload):
    """A series has a new forecast."""

    series: str
    model: str
    step_s: float
    start: float
    horizon: int


PLAN_PROPOSED = EVENTS.add(EventType("plan.proposed", "brain", PlanProposed, "Resources for a job."))
LOAN_CHANGED = EVENTS.add(
    EventType("loan.changed", "brain", LoanChanged, "Room lent by training to serving has come to another state.")
)
RATE_OBSERVED = EVENTS.add(
    EventType("rate.observed", "forecaster", RateObserved, "Measured rates of a series, from anywhere.", anyone=True)
)
RATES_OBSERVED = EVENTS.add(
    EventType(
        "rates.observed", "forecaster", RatesObserved, "Measured rates of many series, from anywhere.", anyone=True
    )
)
FORECAST_UPDATED = EVENTS.add(
    EventType("forecast.updated", "forecaster", ForecastUpdated, "A series has a new forecast.")
)
