"""The kinds of objects: what users write in `spec`, and what the mesh writes in `status`.

Fields of specifications have the names that REST and YAML have; those of a status too, but for what every kind of
Kubernetes calls by one name (observedGeneration, conditions).
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from recmesh.spec.base import Name, Spec

GROUP, VERSION = "recmesh.dev", "v1alpha1"
FINALIZER = "recmesh.dev/job"
"""Of a TrainingJob whose processes, leases and snapshots jobmaster has not removed yet."""
MODEL_FINALIZER = "recmesh.dev/model"
"""Of a ModelService whose versions the gateway has not unloaded and unregistered yet."""
DATASET_FINALIZER = "recmesh.dev/dataset"
"""Of a TrainingDataset that a job uses, or that is not removed yet."""
REFUSED = "Refused"
"""The phase of an object of which no job was made: one of its fields is wrong."""

ConditionType = Literal[
    "Accepted", "Synced", "Running", "Suspended", "Complete", "Failed", "Stopped", "Ready", "InUse",
]


class Condition(Spec):
    """One aspect of the state."""

    type: ConditionType
    """`Accepted`: the specification has become a job. `Synced`: its newest changes are carried out. `Running`: batches
    are trained. `Suspended`: nothing runs until `suspend` is false. `Complete`, `Failed`, `Stopped`: it has ended so.
    Of models and datasets `Ready`: it can be asked, or named by jobs. `InUse`: jobs that live name the dataset.
    """
    status: Literal["True", "False", "Unknown"]
    reason: str = Field(min_length=1, max_length=256, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    """One word for programs."""
    message: str = Field(default="", max_length=4096)
    """For people."""
    lastTransitionTime: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When the status changed last."""
    observedGeneration: int = Field(default=0, ge=0)
    """Of the object that this was said of."""


class RoleCounts(Spec):
    """Processes of a role."""

    role: str = Field(max_length=32)
    wanted: int = Field(default=0, ge=0)
    running: int = Field(default=0, ge=0)
    """Of these at work: started, registered, not draining."""
    pinned: bool = False
    """The count was set by somebody; else brain decides."""
    restarts: int = Field(default=0, ge=0)


class TrainingJobStatus(Spec):
    """What jobmaster says of a TrainingJob."""

    observedGeneration: int | None = None
    """The newest generation of the object that jobmaster has seen; the conditions are of it."""
    job_id: str | None = None
    """The job's name in the mesh (`recmesh get`): the object's, unless a job of another namespace has it."""
    phase: str | None = None
    """As in docs/reference/job-states.md; `Refused` when a field is wrong."""
    reason: str | None = None
    message: str | None = Field(default=None, max_length=4096)
    workers: int | None = None
    """At work now; the count of the subresource scale."""
    ps: int | None = None
    ready_workers: str | None = None
    """At work / wanted."""
    ready_ps: str | None = None
    selector: str | None = None
    """Of the workers' pods; of the subresource scale."""
    roles: list[RoleCounts] | None = None
    samples: int | None = None
    total: int | None = None
    """0: not known, or endless."""
    progress: str | None = None
    """`42%`; of endless data the count of samples."""
    samples_per_s: float | None = None
    throughput: str | None = None
    eta_s: int | None = None
    eta: str | None = None
    lag_s: float | None = None
    """Age of the oldest message of its topics that is not trained."""
    lag_messages: int | None = None
    lag: str | None = None
    snapshot: int | None = None
    """The last committed."""
    metrics: dict[str, float] | None = None
    model: str | None = None
    """NAME/VERSION as it is registered with the gateway."""
    started: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    ended: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    notes: list[str] | None = None
    conditions: list[Condition] | None = None


class TrainingDatasetStatus(Spec):
    """What the mesh says of a TrainingDataset."""

    observedGeneration: int | None = None
    """The newest generation of the object that was registered; the conditions are of it."""
    dataset: str | None = None
    """The name by which jobs find it (`dataset: NAME`): the object's; NAMESPACE--NAME where it is not in the mesh's own
    namespace."""
    phase: str | None = None
    """Pending, Ready, Refused, Deleting."""
    reason: str | None = None
    message: str | None = Field(default=None, max_length=4096)
    revision: int | None = None
    """Counts changes of the specification."""
    rows: int | None = None
    """Of all files; of streams in the windows that are known."""
    files: int | None = None
    tasks: int | None = None
    """Task records of one epoch."""
    size_bytes: int | None = None
    size: str | None = None
    endless: bool | None = None
    """Rows come for ever."""
    columns: int | None = None
    jobs: list[str] | None = Field(default=None, max_length=64)
    """TrainingJobs that name it and have not ended; the first of them."""
    used_by: int | None = None
    """How many there are."""
    registered: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When this revision was."""
    conditions: list[Condition] | None = None


class JobMetricsSpec(Spec):
    """Of which job."""

    job: Name
    """The name of a TrainingJob of this namespace."""


class RoleMetrics(Spec):
    """What one process used and did, of late."""

    role: str = Field(max_length=32)
    index: int = Field(ge=0)
    cpu: float | None = None
    """Cores in use."""
    memory_bytes: int | None = None
    samples_per_s: float | None = None
    step_s: float | None = None
    """Mean of one training step."""
    pull_s: float | None = None
    push_s: float | None = None
    compute_s: float | None = None
    data_s: float | None = None
    rows: int | None = None
    """ps: of its tables."""


class JobMetricsStatus(Spec):
    """The newest measurements of the job."""

    observed: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    phase: str | None = None
    """Of the job."""
    samples: int | None = None
    samples_per_s: float | None = None
    lag_s: float | None = None
    """Of topics: age of the oldest message that is not trained."""
    lag_messages: int | None = None
    loss: float | None = None
    """Of late."""
    auc: float | None = None
    """Of late; test-then-train where the job measures that."""
    metrics: dict[str, float] | None = None
    """Of evaluations: eval_auc ..."""
    cpu: float | None = None
    """Cores in use by all processes."""
    memory_bytes: int | None = None
    """In use by all processes."""
    memory: str | None = None
    roles: list[RoleMetrics] | None = Field(default=None, max_length=4096)


class ModelService(Spec):
    """A model version that the gateway is to serve; the shape of `POST /v1/models`, with its rules of traffic."""

    model: Name | None = None
    """The model's name; by default the object's. It cannot be changed."""
    uri: Annotated[str, Field(min_length=1, max_length=4096)]
    """The exported folder, in the mesh's storage: absolute, or below its root. Another one is another version."""
    framework: Literal["", "torch", "tensorflow", "ensemble"] = ""
    """Empty: as its files say."""
    version: str = Field(default="", max_length=18, pattern=r"^([1-9][0-9]*)?$")
    """A number above all before it; empty: the next."""
    load: bool = True
    """Serve it; false: registered, and not in memory."""
    serving: dict[str, Any] = Field(default={})
    """How it is served (docs/reference/serving.md)."""
    traffic: dict[str, Any] | None = None
    """Rules of traffic of the model's versions, as `PUT /v1/models/NAME/traffic` takes them: versions, weights, shadow,
    idle_s. Left out: as they were set otherwise."""


class ModelServiceStatus(Spec):
    """What the gateway says of a ModelService."""

    observedGeneration: int | None = None
    """The newest generation of the object that was carried out; the conditions are of it."""
    model: str | None = None
    """The name that requests use: `spec.model`; NAMESPACE--NAME where the object is not in the mesh's own namespace."""
    phase: str | None = None
    """Pending, Loading, Ready, Failed, Unloaded, Refused, Deleting."""
    reason: str | None = None
    message: str | None = Field(default=None, max_length=4096)
    version: str | None = None
    """Of the model, that this object's specification has become."""
    ready_versions: list[str] | None = Field(default=None, max_length=256)
    """All of the model's versions that serve."""
    replicas: int | None = None
    """Gateways that follow this object."""
    ready_replicas: int | None = None
    """Of these, that serve the version."""
    ready: str | None = None
    """Serving / following."""
    traffic: dict[str, Any] | None = None
    """The rules that this object has set; none: it says nothing of them."""
    framework: str | None = None
    loaded: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    conditions: list[Condition] | None = None
