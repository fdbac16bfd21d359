"""Nouns of resource planning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the planner sees it; 0 and "" are "unknown"."""

    job_id: str
    owner: str = ""
    model: str = ""
    framework: str = ""
    dense_parameters: int = 0
    tables: int = 0
    dim: int = 0
    batch_size: int = 0
    data_rows: int = 0
    data_bytes: int = 0
    epochs: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    deadline: float = 0.0
    submitted: float = 0.0
    namespace: str = ""
    account: str = ""
    """Whose quota bounds it, where that is not the owner's; known to brain alone."""

    @property
    def payer(self) -> str:
        """By what its quota is known."""
        return self.account or self.owner


@dataclass(frozen=True, slots=True)
class RolePlan:
    """How many processes of a role, and how large each."""

    role: str
    replicas: int
    cpu: float
    memory_bytes: int
    gpu: float = 0.0
    gpu_kind: str = ""


@dataclass(frozen=True, slots=True)
class RoleLimits:
    """What the user allows: bounds of a count or a pin; sizes of 0 are brain's to choose."""

    role: str
    min: int = 1
    max: int = 8
    pinned: int | None = None
    cpu: float = 0.0
    memory_bytes: int = 0
    gpu: float = 0.0
    """Of one process; the user's alone."""
    gpu_kind: str = ""


@dataclass(frozen=True, slots=True)
class Free:
    """What the cluster has left for the job; None: unknown, so it does not bound the plan."""

    cpu: float | None = None
    memory_bytes: int | None = None
    gpus: Mapping[str, float] | None = None
    """By kind; a kind that is not named has none."""
    cluster: str = ""
    """Whose room it is, where jobs are spread over several."""


@dataclass(frozen=True, slots=True)
class Similar:
    """A past job that a plan was made from."""

    job_id: str
    similarity: float
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a job should have, and why."""

    roles: tuple[RolePlan, ...]
    source: str
    """`default` or `similar`; of a change while it trains the planner's name."""
    explanation: str
    similar: tuple[Similar, ...] = ()
    plan_id: str = ""
    job_id: str = ""
    at: float = 0.0
    samples_per_s: float = 0.0
    """Expected of it; 0: not known."""

    def role(self, name: str) -> RolePlan | None:
        """The role's part."""
        return next((role for role in self.roles if role.role == name), None)


@dataclass(frozen=True, slots=True)
class History:
    """A job that has ended."""

    job: Job
    outcome: str
    reason: str = ""
    started: float = 0.0
    ended: float = 0.0
    final_plan: tuple[RolePlan, ...] = ()
    samples_per_s: float = 0.0
    samples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoleUse:
    """What the processes of a role use."""

    has: RolePlan
    """How many there are, and the limits of one."""
    cpu_max: float = 0.0
    """Cores that the busiest used."""
    memory_bytes: int = 0
    """Of the largest."""


@dataclass(frozen=True, slots=True)
class Profile:
    """How a running job does, over the time since its last profile."""

    job_id: str
    at: float
    workers: int
    ps: int
    worker_cpu: float = 0.0
    ps_cpu: float = 0.0
    batch_size: int = 0
    samples_per_s: float = 0.0
    data_s: float = 0.0
    pull_s: float = 0.0
    compute_s: float = 0.0
    push_s: float = 0.0
    ps_busy_share: float = 0.0
    ps_memory_bytes: int = 0
    rows: int = 0
    samples: int = 0
    remaining: int = 0
    worker_cpu_limit: float = 0.0
    """Cores that a worker may use; 0: no limit, or not told."""
    ps_cpu_limit: float = 0.0
    hardware: str = ""
    """cpu, or the kind of the workers' GPU; empty: not told."""
    is_synchronous: bool = False
    """Workers wait for each other in every step."""
    is_steady: bool = False
    """Nothing changed over the window of the rate, nor shortly before."""
    roles: tuple[RoleUse, ...] = ()
    """All that the job has, but for what it shares with others."""
    owner: str = ""
    namespace: str = ""
    capacity_per_s: float = 0.0
    """Samples per second that an online job's workers could train; 0: not known, or it is no online job."""

    def use(self, role: str) -> RoleUse | None:
        """None where nothing is told of it."""
        return next((each for each in self.roles if each.has.role == role), None)


@dataclass(frozen=True, slots=True)
class FitPoint:
    """One configuration, as it was measured and as the model has it."""

    workers: int
    ps: int
    worker_cpu: float
    ps_cpu: float
    measured: float
    predicted: float
    log_sd: float
    at: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What was learned of a job's speed, for people."""

    form: str = ""
    error: float = 0.0
    """Mean |ln| error of a point predicted from all others."""
    coefficients: Mapping[str, float] = field(default_factory=dict)
    points: tuple[FitPoint, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: str = ""
    """Why there is no model; then the rest is empty."""


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A candidate that was considered."""

    workers: int
    ps: int
    worker_cpu: float
    ps_cpu: float
    cost: float
    gain: float
    samples_per_s: float
    reason: str
    why: str
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleStep:
    """A step of an online job's schedule; rates are samples per second."""

    at: float
    demand: float
    """To be planned for: a quantile of the forecast."""
    expected: float
    """The forecast's mean."""
    workers: int
    capacity: float
    """That so many workers have, as far as is known."""
    why: str
    unmet: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """What brain saw and decided when it last looked at a job that trains."""

    job_id: str
    at: float
    planner: str
    reason: str
    why: str
    samples_per_s: float
    now: tuple[RolePlan, ...]
    chosen: tuple[RolePlan, ...] = ()
    """Empty: it keeps what it has."""
    expected_samples_per_s: float = 0.0
    fit: Fit = Fit()
    front: tuple[FrontPoint, ...] = ()
    plan_id: str = ""
    schedule: tuple[ScheduleStep, ...] = ()
    """Of an online job, from now on."""
    step_s: float = 0.0
    """Of the schedule."""


KEPT, TAKEN_BACK, CANCELLED = "kept", "taken back", "cancelled"


@dataclass(frozen=True, slots=True)
class Change:
    """What came of a plan that a job was given while it trained."""

    plan_id: str
    job_id: str
    at: float
    verdict: str
    why: str
    before: tuple[RolePlan, ...]
    after: tuple[RolePlan, ...]
    rate_before: float = 0.0
    rate_expected: float = 0.0
    rate_after: float = 0.0
    """0: it was not measured."""
    overhead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A job that trains, as its jobmaster tells it."""

    job: Job
    limits: Sequence[RoleLimits]
    now: Mapping[str, RolePlan]
    samples_per_s: float
    remaining: int
    free: Free


@dataclass(frozen=True, slots=True)
class FeedAsk:
    """A job's data executors, as its jobmaster tells of them."""

    job_id: str
    now: RolePlan
    """How many there are, and how large one is."""
    least: int
    most: int
    buffer_fill: float
    """Mean over executors and time, from 0 (workers wait) to 1 (executors wait)."""
    cpu_idle: float = 0.0
    memory: float = 0.0
    samples_per_s: float = 0.0
    free: Free = Free()
    owner: str = ""
    namespace: str = ""
