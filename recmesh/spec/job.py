"""`TrainingJob`: what a user asks recmesh to train. docs/reference/job.md is generated from it."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from recmesh.spec.base import EntryPoint, Fault, Label, Name, PositiveInt, Spec, json_faults, rule
from recmesh.spec.dataset import DatasetSpec
from recmesh.spec.namespaces import NAMESPACE_END
from recmesh.spec.policies import CleanPodPolicy, PodFailurePolicy, PodGroupPolicy
from recmesh.spec.quantity import CPU, LEAST_MEMORY_BYTES, MIB, Memory, memory_fault
from recmesh.spec.scaling import Scaling
from recmesh.spec.template import template_faults

RoleName = Literal["ps", "worker", "data", "evaluator"]

HYPERPARAMETERS = {
    "sgd": ("weight_decay",),
    "adagrad": ("eps", "initial_accumulator", "weight_decay"),
    "rowwise_adagrad": ("eps", "initial_accumulator", "weight_decay"),
    "adam": ("beta1", "beta2", "eps", "weight_decay"),
    "ftrl": ("initial_accumulator", "l1", "l2", "weight_decay"),
}
"""What each kind of optimizer goes by beside `lr`."""
LEAST_RATE = 1e-12
MOST = 1e6
"""Of rates and hyperparameters: servers compute in float32, and beyond it nothing is learned."""

# Above it float32 knows 1 only, and Adam divides by 1 - beta.
Beta = Annotated[float, Field(ge=0, le=0.999_999)]
OWN_MANAGER = "recmesh.dev/jobmaster"
MANAGER = r"^([a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*)?$"
"""A name with the domain of whoever gave it."""

Hyper = Annotated[float, Field(ge=0, le=MOST)]
Rate = Annotated[float, Field(ge=LEAST_RATE, le=MOST)]


class Optimizer(Spec):
    """How the parameter servers apply gradients."""

    kind: Literal["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"] = "adagrad"
    lr: Rate = 0.02
    beta1: Beta = 0.9
    """adam, as `beta2`. A hyperparameter that the kind does not use is refused unless it has its default."""
    beta2: Beta = 0.999
    eps: float = Field(default=1e-8, ge=1e-30, le=MOST)
    """adagrad, rowwise_adagrad, adam."""
    initial_accumulator: Hyper = 0.0
    """adagrad, rowwise_adagrad, ftrl: 0 as in torch; TensorFlow starts at 0.1, which holds rare rows back."""
    weight_decay: Hyper = 0.0
    l1: Hyper = 0.0
    """ftrl: weights that the data does not pull further are exactly zero."""
    l2: Hyper = 0.0
    """ftrl: as TensorFlow counts it (half of the paper's)."""

    @rule
    def _hyperparameters_are_used(self) -> Iterator[Fault]:
        used = HYPERPARAMETERS[self.kind]
        for name in sorted({name for names in HYPERPARAMETERS.values() for name in names} - set(used)):
            given, default = getattr(self, name), type(self).model_fields[name].default
            if given != default:
                yield name, f"{self.kind} does not use it; it goes by lr, {', '.join(used)}"


class TablePolicy(Spec):
    """Which ids of an embedding table get a row, which rows go again, and how values are stored."""

    min_frequency: int = Field(default=1, ge=1, lt=2**32)
    """An id that occurred less often reads as its initial value and is not trained; it takes 32 bytes and an entry of
    the index. The occurrence that reaches it is the first that counts."""
    ttl_steps: int = Field(default=0, ge=0, lt=2**62)
    """Rows that no batch of so many in succession touched are evicted; 0: none. An id that comes back starts anew."""
    max_bytes: Annotated[Memory, Field(ge=MIB)] | None = None
    """Of the table's rows (not of the index), over all servers by their share of slots; beyond, the rarest go."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of stored values; bfloat16 halves them, rounding by chance. The optimizer's state is float32."""


class LrPoint(Spec):
    """The learning rate is multiplied by `factor` at `step`, linearly between points."""

    step: int = Field(ge=0)
    factor: Hyper


class Model(Spec):
    """What is trained: one of the zoo, or the user's own code."""

    zoo: Literal["", "wide_deep", "xdeepfm", "dcn_v2", "deepfm", "torch_dcn_v2", "dlrm", "mmoe", "din", "mtrm"] = ""
    entrypoint: EntryPoint | None = None
    """The user's `main(job)`: `package.module:function`."""
    code: str = ""
    """Folder with the user's code; `recmesh submit` packs it, and replaces the path by `sha256:...`."""
    image: str = ""
    """Container image that holds the user's code (Kubernetes); on one machine `code` is needed."""
    params: dict[str, Any] = {}
    """Given to the model as they are. Those of the zoo: `recmesh/zoo/defaults.py`; unknown ones are refused."""

    @rule
    def _one_model(self) -> Iterator[Fault]:
        if bool(self.zoo) == bool(self.entrypoint):
            yield "", "give either zoo or entrypoint"

    @rule
    def _params_are_json(self) -> Iterator[Fault]:
        yield from json_faults("params", self.params)

    @rule
    def _code_has_entrypoint(self) -> Iterator[Fault]:
        if self.code and not self.entrypoint and not self.zoo:
            yield "code", "needs an entrypoint in it"


class Role(Spec):
    """How many processes of a role, and how large."""

    replicas: int | None = Field(default=None, ge=0)
    """Pins the count; without it the brain decides between min and max."""
    min: int = Field(default=1, ge=0)
    max: int = Field(default=8, ge=0)
    cpu: CPU | None = None
    memory: Memory | None = None
    """Pins the size; with `memory_max` it is where the size begins."""
    memory_max: Memory | None = None
    """Up to here a process's limit may be raised, before or after it was too small."""
    gpu: float = Field(default=0, ge=0)
    """Refused on one machine: its processes get none."""
    gpu_kind: str = ""
    env: dict[str, str] = {}
    pod_template: dict[str, Any] = {}
    """`metadata` (labels, annotations) and `spec` of a pod, merged into the role's pods on Kubernetes: volumes, node
    selection, tolerations, service account; env and mounts of the container `role` (docs/reference/pods.md)."""

    @rule
    def _min_below_max(self) -> Iterator[Fault]:
        if self.min > self.max:
            yield "min", f"min {self.min} is above max {self.max}"

    @rule
    def _replicas_below_max(self) -> Iterator[Fault]:
        if self.replicas is not None and self.replicas > self.max:
            yield "replicas", f"replicas {self.replicas} is above max {self.max}"

    @rule
    def _memory_below_its_max(self) -> Iterator[Fault]:
        if self.memory_max is not None and (self.memory is None or self.memory > self.memory_max):
            yield "memory_max", "memory_max bounds memory: give both, and memory not above it"

    @rule
    def _memory_suffices_for_a_process(self) -> Iterator[Fault]:
        if self.memory is not None and (reason := memory_fault(self.memory)):
            yield "memory", reason

    @rule
    def _pod_template_is_json(self) -> Iterator[Fault]:
        yield from json_faults("pod_template", self.pod_template)
        yield from template_faults("pod_template", self.pod_template)


class DataRole(Role):
    """Data executors: processes that read and transform rows for workers, which read themselves where there is none."""

    min: int = Field(default=0, ge=0)
    """From 1 on, with a larger `max`, no `replicas` and not `shared`, the number of executors follows what workers wait
    for; else it is `replicas`, or this."""
    mode: Literal["forward", "rebalance"] = "rebalance"
    """`forward`: a task is decoded by the executor that it came to. `rebalance`: one whose queue is long passes tasks,
    not decoded yet, to others that have announced room; none is passed on twice."""
    refuse_above: int = Field(default=4, ge=1, le=256)
    """rebalance: with more tasks waiting, an executor announces that it has no room, and passes tasks on."""
    accept_below: int = Field(default=2, ge=1, le=256)
    """rebalance: with fewer tasks waiting, it announces room again."""
    buffer: Annotated[Memory, Field(ge=MIB)] = 256 * MIB
    """Decoded rows that one executor keeps for workers, at most; one task more for each that it decodes at once."""
    shared: bool = False
    """Executors are shared with the other jobs that say so and read their data in the same way: what several of them
    ask for is decoded once. A job may have none of its own then."""

    @rule
    def _room_begins_below_its_end(self) -> Iterator[Fault]:
        if self.accept_below > self.refuse_above:
            yield "accept_below", f"accept_below {self.accept_below} is above refuse_above {self.refuse_above}"

    @rule
    def _buffer_fits_into_memory(self) -> Iterator[Fault]:
        if self.memory is not None and self.memory < self.buffer + LEAST_MEMORY_BYTES:
            yield "buffer", "leaves a process less than 64 MiB of its memory"


class Roles(Spec):
    """The processes of a job."""

    ps: Role = Role(min=1, max=8)
    worker: Role = Role(min=1, max=8)
    data: DataRole = DataRole()
    evaluator: Role = Role(min=0, max=1, replicas=0)


class EarlyStopping(Spec):
    """Stop when the evaluation no longer improves; success at the next snapshot."""

    metric: Literal["auc", "loss"] = "auc"
    patience: PositiveInt = 3
    min_delta: float = Field(default=0.0, ge=0)


class NanPolicy(Spec):
    """What a worker does with a batch whose loss or gradients are not finite."""

    action: Literal["skip", "fail"] = "skip"
    limit: int = Field(default=100, ge=0)
    """Skipped batches of the whole job (one trained again after a rollback counts again); one more fails it."""


class Synchronous(Spec):
    """Steps of several batches, each computed from the model as the step before left it."""

    batches_per_step: int = Field(ge=1, le=1024)
    """Consecutive batches whose mean gradient is applied at once, however many workers compute them: the model is that
    of batches so many times as large. One step, and a schedule's too, is so many batches. More workers than this
    stand idle; a step's gradients wait in memory, at the servers and at the workers."""


class Training(Spec):
    """Batches, epochs and optimizers."""

    batch_size: PositiveInt = 4096
    epochs: PositiveInt = 1
    seed: int = Field(default=0, ge=0, lt=2**63)
    optimizer: Optimizer = Optimizer()
    """For the dense part, and for tables that name none of their own."""
    table_optimizers: dict[str, Optimizer] = {}
    """By table; `*` stands for all others. A table that the model does not have is refused."""
    tables: dict[str, TablePolicy] = {}
    """By table; `*` stands for all others. A table that the model does not have is refused."""
    lr_schedule: list[LrPoint] = []
    clip_norm: float | None = Field(default=None, ge=LEAST_RATE, le=1e12)
    """Global norm to which the gradients of a batch are clipped."""
    early_stopping: EarlyStopping | None = None
    nan: NanPolicy = NanPolicy()
    shard_batches: PositiveInt = 64
    """Batches in one lease; one in synchronous mode, so that all workers share every step."""
    in_flight: int = Field(default=2, ge=1, le=16)
    """Batches of one worker between pull and the last ack: with so many workers as there are, no gradient is usually
    older than `workers * in_flight` batches. In synchronous mode, batches of the current step that a worker has pulled
    and not yet handed over."""
    staleness: int | None = Field(default=None, gt=0, lt=2**31)
    """Most batches that a parameter server may have applied between a batch's pull and its push: above it the push has
    no effect, and the batch is pulled and computed again. None: no bound but `in_flight`. It should not be below
    `workers * in_flight`, or workers wait for one another by computing in vain; `recmesh submit` notes one that is
    below it with the fewest workers."""
    sync: Synchronous | None = None
    """Synchronous mode; None: every batch is applied as it comes."""
    quarantine_limit: int = Field(default=10, ge=0)
    """Batches that may be set aside because they kill workers (a signal, out of memory); one more fails the job. An
    exception of the user's model is taken for a mistake in its code when it is a programming error (TypeError,
    KeyError, ...) or comes in a worker's first batch, as in a replacement that gets the batch again: then nothing is
    set aside, and the job fails as `UserError`."""

    @property
    def lease_batches(self) -> int:
        """Batches in one lease."""
        return 1 if self.sync else self.shard_batches

    @rule
    def _staleness_is_of_asynchronous_mode(self) -> Iterator[Fault]:
        if self.sync and self.staleness:
            yield "staleness", "synchronous steps are never stale: give either sync or staleness"

    @rule
    def _ftrl_divides_by_its_rate(self) -> Iterator[Fault]:
        kinds = {self.optimizer.kind, *(optimizer.kind for optimizer in self.table_optimizers.values())}
        for place, point in enumerate(self.lr_schedule if "ftrl" in kinds else []):
            if point.factor < LEAST_RATE:
                yield f"lr_schedule.{place}.factor", f"ftrl divides by the rate: at least {LEAST_RATE:g}"

    @field_validator("lr_schedule")
    @classmethod
    def _ascending(cls, points: list[LrPoint]) -> list[LrPoint]:
        if any(a.step >= b.step for a, b in pairwise(points)):
            raise ValueError("steps must ascend")
        return points


class Evaluation(Spec):
    """Rows to judge the model by."""

    data: DatasetSpec | None = None
    """None: the training data's source with `rows`. It must have the features of `data`, dense ones in their order, and
    as many labels."""
    rows: tuple[float, float] | None = None
    """With no `data`: this part of the training source, such as [0.8, 1.0]."""
    every_s: float | None = Field(default=None, gt=0)
    """Also while training, by the evaluator role."""
    max_rows: PositiveInt = 1_000_000

    @rule
    def _data_or_rows(self) -> Iterator[Fault]:
        if (self.data is None) == (self.rows is None):
            yield "", "give either data or rows"

    @rule
    def _rows_are_fractions(self) -> Iterator[Fault]:
        if self.rows is not None and not 0.0 <= self.rows[0] < self.rows[1] <= 1.0:
            yield "rows", "must be two fractions 0 <= from < to <= 1"


class CheckpointPolicy(Spec):
    """When snapshots are cut, and how many are kept."""

    every_s: float = Field(default=60, ge=0.1)
    keep: PositiveInt = 3
    """The newest committed ones, and what they build on; never fewer than one."""
    full_every: PositiveInt = 5
    """Every n-th snapshot is whole; those between hold what changed since the one before, and a restore reads
    them all. 1: every snapshot is whole."""


class Freshness(Spec):
    """The model is served while it trains: soon after its first snapshot it is exported with its tables beside the
    program, registered, and from then on each committed snapshot is a version that servers apply within seconds."""

    every_s: float = Field(default=1.0, ge=0.1, le=3600)
    """A snapshot is cut this often where something was trained: a delta of rows, and all dense blocks. It takes the
    place of `checkpoint.every_s` where that is longer."""
    full_every: int = Field(default=64, ge=1, le=1024)
    """Every n-th is whole. It takes the place of `checkpoint.full_every` where that is less."""
    keep: int = Field(default=120, ge=1, le=250)
    """Versions that may be rolled back to. It takes the place of `checkpoint.keep` where that is less."""


class InitFrom(Spec):
    """Start from what another job learned."""

    job: str = ""
    snapshot: int = Field(default=0, ge=0)
    """0: the newest committed."""
    model: str = ""
    """A registered model; its job's snapshot is used."""

    @rule
    def _one_source(self) -> Iterator[Fault]:
        if bool(self.job) == bool(self.model):
            yield "", "give either job or model"


class Export(Spec):
    """Where the trained model goes."""

    model_name: Name | None = None
    """None: the job's name. Registered with the gateway under this name."""
    namespace: Name | None = None
    """The model is NAMESPACE--NAME, which keys with this namespace may use."""
    serve: bool = True
    """Load the new version at once."""
    serving: dict[str, Any] = {}
    """How it is served, and which predictions are logged (docs/reference/serving.md, loop.md)."""

    def name_for(self, job: str) -> str:
        """The model's name when the job's is this."""
        name = self.model_name or job
        return f"{self.namespace}{NAMESPACE_END}{name}" if self.namespace else name


class Tracking(Spec):
    """Where the job's metrics go beside the mesh's own pages (docs/reference/tracking.md)."""

    tensorboard: bool = False
    """Event files, in a folder of jobmaster's that TensorBoard shows."""
    mlflow: bool = False
    """A run of the tracking server that jobmaster knows."""
    experiment: Label = "recmesh"
    """Of MLflow; made where there is none."""
    every_s: float = Field(default=10, ge=1, le=3600)

    @rule
    def _somewhere(self) -> Iterator[Fault]:
        if not (self.tensorboard or self.mlflow):
            yield "", "give tensorboard or mlflow, or both: else leave tracking out"


class TrainingJob(Spec):
    """One job; the same shape in YAML, JSON, REST, events and, on Kubernetes, in `spec`."""

    api_version: Literal["recmesh.dev/v1alpha1"] = "recmesh.dev/v1alpha1"
    name: Name
    owner: Label = "default"
    namespace: Name | None = None
    """Whose job it is: lists and quotas know it, and `dataset` is one of its own. On Kubernetes its object's."""
    labels: dict[Label, str] = {}
    model: Model
    data: DatasetSpec | None = None
    """The dataset, inline."""
    dataset: Name | None = None
    """Or the name of a registered one (`recmesh dataset register`)."""
    mode: Literal["batch"] = "batch"
    roles: Roles = Roles()
    scaling: Scaling | None = None
    """Of a job that trains on topics: its workers follow the forecast of what comes in. None: brain plans it as it does
    jobs on files, by their speed."""
    training: Training = Training()
    evaluation: Evaluation | None = None
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    freshness: Freshness | None = None
    """None: a model is served when its job ends."""
    init_from: InitFrom | None = None
    export: Export | None = Export()
    tracking: Tracking | None = None
    """None: metrics are on the mesh's pages, in its events and at its scrape addresses alone."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    """Of jobs that train, those of higher priority get what is free first. No job waits for another to start."""
    deadline: float | None = None
    """Unix seconds by which the job should end; one in the past is refused. brain gives the job what it
    needs for that, where there is as much; the job goes on after it: `active_deadline_s` ends it."""
    backoff_limit: int = Field(default=10, ge=0)
    """Restarts of failed roles (all together) before the job fails; not those by batches that were set aside."""
    active_deadline_s: float | None = Field(default=None, gt=0)
    """The job fails when it has not ended so long after its start."""
    ttl_after_end_s: float | None = Field(default=None, ge=0)
    """After this time the job's record and checkpoints are deleted; the model stays."""
    suspend: bool = False
    """Nothing of it runs: a job that trains saves a snapshot first, and goes on from it when this is false again. May
    change while the job lives; its `active_deadline_s` begins anew then."""
    pod_failure_policy: PodFailurePolicy = PodFailurePolicy()
    """Which ends of processes fail the job, count, or are ignored; also of processes that are no pods."""
    clean_pod_policy: CleanPodPolicy = "Running"
    """Pods of a job that has ended. `All`: deleted, with their logs. `Running`: those that were still at work are
    deleted, the others stay as long as the job's record. `None`: none is deleted; those at work end by themselves
    (after 15 s they are deleted all the same)."""
    pod_group_policy: PodGroupPolicy | None = None
    """Gang scheduling, where pods are placed by a scheduler that knows it."""
    managed_by: Annotated[str, Field(max_length=63, pattern=MANAGER)] = ""
    """Of an object: the controller that is to care for it, such as `kueue.x-k8s.io/multikueue`; jobmaster then leaves
    the object alone. Empty, or `recmesh.dev/jobmaster`: jobmaster."""

    @property
    def is_foreign(self) -> bool:
        """Another controller cares for it."""
        return self.managed_by not in ("", OWN_MANAGER)

    @property
    def snapshot_every_s(self) -> float:
        """Seconds between snapshots."""
        every_s = self.checkpoint.every_s
        return min(every_s, self.freshness.every_s) if self.freshness else every_s

    @property
    def snapshot_full_every(self) -> int:
        """Every n-th snapshot is whole."""
        return max(self.checkpoint.full_every, self.freshness.full_every if self.freshness else 0)

    @property
    def snapshots_kept(self) -> int:
        """Committed ones, beside what they build on."""
        return max(self.checkpoint.keep, self.freshness.keep if self.freshness else 0)

    @rule
    def _what_is_fresh_is_served(self) -> Iterator[Fault]:
        if self.freshness is not None and (self.export is None or not self.export.serve):
            yield "freshness", "is of a model that is served: export must not be null, nor export.serve false"

    @rule
    def _one_dataset(self) -> Iterator[Fault]:
        if (self.data is None) == (self.dataset is None):
            yield "data", "give either data or dataset"

    @rule
    def _servers(self) -> Iterator[Fault]:
        ps = self.roles.ps
        if ps.replicas == 0 or ps.max < 1:
            field = "replicas" if ps.replicas == 0 else "max"
            yield f"roles.ps.{field}", "a job needs at least one parameter server"

    @rule
    def _workers(self) -> Iterator[Fault]:
        if self.roles.worker.max < 1:
            yield "roles.worker.max", "a job needs at least one worker"

    @rule
    def _model_has_a_name(self) -> Iterator[Fault]:
        if self.export is not None and len(self.export.name_for(self.name)) > 63:
            yield "export.namespace", "makes a name of more than 63 characters together with the model's"

    @rule
    def _streams_are_trained_once_and_as_they_come(self) -> Iterator[Fault]:
        data = self.data
        if data is None or not data.streams:
            return
        if data.endless and self.training.epochs > 1:
            yield "training.epochs", "must be 1: the streams of data never end"
        elif data.has_topics and self.training.epochs > 1:
            yield "training.epochs", "must be 1: a topic is trained as it comes, once"
        if self.training.sync:
            yield "training.sync", "is for a dataset of one source: the steps of a stream's end are not known before it"

    @rule
    def _scaling_follows_topics(self) -> Iterator[Fault]:
        if self.scaling is not None and self.data is not None and not self.data.has_topics:
            yield "scaling", "follows what comes in on topics, and data has none"

    @rule
    def _evaluation_ends(self) -> Iterator[Fault]:
        evaluation = self.evaluation
        if evaluation is None:
            return
        if evaluation.rows is not None and self.data is not None and self.data.streams:
            yield "evaluation.rows", "is a part of one source, and data has streams; give evaluation.data"
        if evaluation.data is not None and evaluation.data.endless:
            yield "evaluation.data.streams", "never end; give each source an end"
        elif evaluation.data is not None and evaluation.data.has_topics:
            yield "evaluation.data.streams", "have a topic, which only training follows; evaluation needs files"

    @rule
    def _stopping_needs_evaluation(self) -> Iterator[Fault]:
        if self.training.early_stopping and not (self.evaluation and self.evaluation.every_s):
            yield "training.early_stopping", "needs evaluation.every_s"
