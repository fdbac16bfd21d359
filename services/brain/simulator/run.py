"""One job while it is simulated."""

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from recmesh.plugins.planning import Allocation, Resources, Throughput
from services.brain.domain.model import Change
from services.brain.domain.throughput.observations import Mode, Observation
from services.brain.domain.throughput.pool import Seen, Size
from services.brain.simulator.cluster import Pods
from services.brain.simulator.faults import Clock
from services.brain.simulator.job import Job, ModelFacts
from services.brain.simulator.truth import Use

HEARTBEAT_S = 30.0


def size_of(allocation: Allocation) -> Size:
    """What its speed depends on."""
    return allocation.workers, allocation.ps, allocation.worker_cpu, allocation.ps_cpu


def observation(facts: ModelFacts, size: Size, seen: Seen) -> Observation:
    """As the service's learning takes it."""
    workers, ps, worker_cpu, ps_cpu = size
    return Observation(
        workers, ps, seen.rate, worker_cpu, ps_cpu,
        batch=facts.batch_size / workers if facts.sync else facts.batch_size,
        at=seen.at, mode=Mode.SYNC if facts.sync else Mode.ASYNC, hardware=facts.gpu_kind, windows=seen.windows,
    )  # fmt: skip


class Phase(StrEnum):
    """Where a job is; the last two are ends."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Trial:
    """A change whose worth is not measured yet."""

    before: Allocation
    rate_before: float
    rate_expected: float


@dataclass(slots=True)
class Run:
    """State and account. Between two events a job trains `rate · slow` samples a second from `train_from` on."""

    job: Job
    index: int
    deaths: Clock
    slowness: Clock
    fate: np.random.Generator
    """Draws what befalls the job: the same under every policy."""
    noise: np.random.Generator
    wanted: Allocation
    """What it begins with when there is room."""
    phase: Phase = Phase.QUEUED
    allocation: Allocation | None = None
    worker_pods: Pods = field(default_factory=lambda: Pods(Resources()))
    ps_pods: Pods = field(default_factory=lambda: Pods(Resources()))
    retiring: list[tuple[Pods, int]] = field(default_factory=list)
    """Processes that go when the change under way is done."""
    target: Allocation | None = None
    """Of the change under way."""
    measured: float = 0.0
    """The rate when it was last looked at; 0: nothing was measured."""
    trial: Trial | None = None
    tried: list[Change] = field(default_factory=list)
    """What came of changes that were judged."""
    change_id: int = 0
    rate: float = 0.0
    use: Use = field(default_factory=lambda: Use(0.0, 0.0))
    slow: float = 1.0
    train_from: float = math.inf
    updated: float = 0.0
    epoch: int = 0
    """Events foretold under an older one no longer happen."""
    due_at: float = 0.0
    idle: int = 0
    """Decisions in a row that left it as it is."""
    steady: bool = False
    """It was last left alone because nothing was better."""
    refused_at: int = -1
    """`Cluster.freed` when it last found no room."""
    done: float = 0.0
    """Samples trained and kept."""
    trained: float = 0.0
    """Samples trained, kept or not."""
    lost: float = 0.0
    """Samples that a rollback threw away."""
    saved_from: float = 0.0
    """Checkpoints are taken at multiples of their interval from here."""
    started: float = math.nan
    ended: float = math.nan
    paused_s: float = 0.0
    restarts: int = 0
    faults: int = 0
    requeued: int = 0
    """Times that a node failed and nothing else had room for what was on it: it waited again."""
    changes: int = 0
    taken_back: int = 0
    """Of them, those that only undid the one before."""
    explored: int = 0
    no_node: int = 0
    """Decisions that fitted the cluster's sum and no nodes."""
    seen_at: float = 0.0
    seen: dict[Size, Seen] = field(default_factory=dict)
    learned: Throughput | None = None
    prior: Throughput | None = None
    """What was known of its model then."""
    learned_from: dict[Size, float] = field(default_factory=dict)
    """Mean rate of each size when it was last fitted."""
    factor: float | None = None
    """Logarithm of its speed relative to other jobs of its model, where they share what they see."""
    front: tuple[Allocation, ...] = ()
    """Candidates of the last proposal."""
    first: Allocation | None = None
    steps: list[tuple[float, Allocation]] = field(default_factory=list)
    """When it began to train at each size."""

    @property
    def remaining(self) -> float:
        """Samples."""
        return max(0.0, self.job.samples - self.done)

    @property
    def processes(self) -> int:
        """Those that train or wait to."""
        return self.worker_pods.count + self.ps_pods.count

    def observe(self, now: float, sd: float) -> Seen | None:
        """What heartbeats told since the last look: each is off by `sd` (of the logarithm). None: none came."""
        assert self.allocation is not None
        beats = int((now - max(self.train_from, self.seen_at)) / HEARTBEAT_S)
        if self.phase is not Phase.RUNNING or beats < 1:
            return None
        log = math.log(self.rate * self.slow) + float(self.noise.normal(0.0, sd / math.sqrt(beats)))
        before = self.seen.get(size_of(self.allocation), Seen(0.0, 0, 0.0))
        self.seen[size_of(self.allocation)] = Seen(before.total + log * beats, before.windows + beats, now)
        self.seen_at = now
        return Seen(log * beats, beats, now)

    def observations(self) -> list[Observation]:
        """What it has shown at each size it has had."""
        return [observation(self.job.facts, size, seen) for size, seen in self.seen.items()]
