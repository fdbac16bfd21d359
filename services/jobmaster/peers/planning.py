"""What jobmaster asks of brain: a first plan, better ones while a job trains; and what it tells brain of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from recmesh.spec.scaling import Scaling
from services.jobmaster.domain.facts import JobFacts
from services.jobmaster.domain.job import Capacity, Outcome, RolePlan


@dataclass(frozen=True, slots=True)
class RoleBounds:
    """What a user allows for a role; 0: brain chooses."""

    role: str
    min: int
    max: int
    pinned: int
    cpu: float
    memory_bytes: int
    gpu: float = 0.0
    """Of one process."""
    gpu_kind: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """brain's first plan."""

    roles: Mapping[str, RolePlan]
    source: str
    explanation: str


@dataclass(frozen=True, slots=True)
class RoleUse:
    """What the processes of a role have and use."""

    role: str
    has: RolePlan
    """How many there are, and the limits of one."""
    cpu_max: float
    """Cores that the busiest used."""
    memory_bytes: int
    """Of the largest."""


@dataclass(frozen=True, slots=True)
class JobProfile:
    """How a job does, over the last interval."""

    job_id: str
    at: float
    workers: int
    ps: int
    worker_cpu: float
    ps_cpu: float
    batch_size: int
    samples_per_s: float
    data_s: float
    pull_s: float
    compute_s: float
    push_s: float
    ps_busy_share: float
    ps_memory_bytes: int
    rows: int
    samples: int
    remaining: int
    worker_cpu_limit: float = 0.0
    """Cores that a worker may use; 0: no limit."""
    ps_cpu_limit: float = 0.0
    hardware: str = "cpu"
    """Kind of what computes: cpu, or the kind of the workers' GPU."""
    is_synchronous: bool = False
    is_steady: bool = False
    """Nothing has changed for a while, and the rate is that of a whole window."""
    roles: tuple[RoleUse, ...] = ()
    """All that the job has, but for executors that it shares."""
    owner: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """A job's history, for the config DB."""

    facts: JobFacts
    outcome: str
    reason: str
    started: float
    ended: float
    plan: Mapping[str, RolePlan]
    samples_per_s: float
    samples: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PlanAsk:
    """What brain is told when it is asked for a better plan of a job that trains."""

    facts: JobFacts
    bounds: Sequence[RoleBounds]
    now: Mapping[str, RolePlan]
    """What the job has: counts, and the size of one process."""
    samples_per_s: float
    """Measured over a steady window."""
    remaining: int
    free: Capacity


@dataclass(frozen=True, slots=True)
class Advice:
    """A change that brain proposes."""

    plan_id: str
    planner: str
    roles: Mapping[str, RolePlan]
    reason: str
    explanation: str
    samples_per_s: float
    """Expected of it."""


@dataclass(frozen=True, slots=True)
class FeedAsk:
    """What brain is told of a job's data executors."""

    job_id: str
    owner: str
    namespace: str
    now: RolePlan
    least: int
    most: int
    buffer_fill: float
    """Means over executors and time, from 0 to 1."""
    cpu_idle: float
    memory: float
    samples_per_s: float
    free: Capacity


@dataclass(frozen=True, slots=True)
class Fed:
    """How many there should be."""

    replicas: int
    reason: str
    explanation: str


@dataclass(frozen=True, slots=True)
class ScheduleAsk:
    """What brain is told of an online job."""

    facts: JobFacts
    bounds: Sequence[RoleBounds]
    now: Mapping[str, RolePlan]
    """Workers and parameter servers."""
    rules: Scaling
    series: tuple[str, ...]
    """Rates in forecaster whose sum is the demand."""
    arrivals_per_s: float
    trained_per_s: float
    occupied: float
    """Share of their time in which workers had something to train."""
    lag_s: float
    backlog: int
    since_s: float
    """For so long the present count has been held."""
    pause_s: float
    lead_s: float
    """What a change stops training for, and until its workers train, as measured; 0: not known."""
    free: Capacity


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What an online job should change to now."""

    roles: Mapping[str, RolePlan]
    """Empty: nothing."""
    planner: str
    reason: str
    explanation: str


@dataclass(frozen=True, slots=True)
class LendAsk:
    """What brain is told of a job that could do with fewer workers for a while."""

    facts: JobFacts
    worker: RolePlan
    """That it is planned to have now."""
    least: int
    lent: int
    """Workers that it does without already."""
    settled: bool
    """No worker beyond its plan is there any more."""
    nodes: tuple[str, ...] = ()
    """Of its workers, where they are known."""


@dataclass(frozen=True, slots=True)
class Owed:
    """What the job is to do without."""

    workers: int
    """In all."""
    explanation: str
    again_s: float
    """When to ask again."""


class Brain(Protocol):
    """brain."""

    async def plan(self, facts: JobFacts, bounds: Sequence[RoleBounds], *, free: Capacity) -> Planned:
        """The first plan of a job. ResourceExhausted: its owner's quota has no room for it now."""
        ...

    async def observe(self, profile: JobProfile) -> None:
        """Feeds the throughput model."""
        ...

    async def decide(self, ask: PlanAsk) -> Advice | None:
        """What the job should change to now; None: nothing."""
        ...

    async def feed(self, ask: FeedAsk) -> Fed:
        """How many data executors the job needs now."""
        ...

    async def schedule(self, ask: ScheduleAsk) -> Scheduled:
        """How many workers an online job should have now."""
        ...

    async def lend(self, ask: LendAsk) -> Owed:
        """What an elastic job is to do without for serving's sake, and what it may have back."""
        ...

    async def stream_planners(self) -> Sequence[str]:
        """By which names jobs may be scaled."""
        ...

    async def conclude(self, outcome: Outcome) -> None:
        """What came of a change. Idempotent by plan."""
        ...

    async def suspend(self, job_id: str) -> None:
        """The job holds nothing until it asks for its next first plan. Idempotent."""
        ...

    async def record_job(self, end: JobEnd) -> None:
        """The job ended. Idempotent by job id."""
        ...
