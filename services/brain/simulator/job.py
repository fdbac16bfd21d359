"""What is known of a job before it runs."""

import math
from dataclasses import dataclass, field

from recmesh.plugins.planning import Allocation, Bounds
from services.brain.domain.model import Job as PlannedJob

SPARE = 1.5
"""Users give servers so many times the memory that they need."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A line of a trace: when it came, how large its user made it, and how long it then took."""

    job_id: str
    arrival_s: float
    workers: int
    duration_s: float
    owner: str = ""
    model: str = ""
    """As the trace calls it; "" where it does not say."""
    deadline_s: float | None = None
    """On the clock of `arrival_s`."""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a user knows of a model before training it, and what the cluster gives one process of it."""

    model: str
    batch_size: int
    bounds: Bounds
    worker_cpu: float
    ps_cpu: float
    worker_memory_bytes: int
    ps_state_bytes: float
    """What the servers hold together."""
    sync: bool = True
    """Workers wait for each other and share one batch; else each has one of its own."""
    worker_gpus: float = 0.0
    gpu_kind: str = ""
    dense_parameters: int = 0
    tables: int = 0
    dim: int = 0

    def asked(self, workers: int) -> Allocation:
        """What a user asks for: as many servers as workers, which is the habit DL2 and Optimus start from."""
        (least, most), (fewest, largest) = self.bounds.workers, self.bounds.ps
        servers = min(max(workers, fewest), largest)
        return Allocation(
            workers=min(max(workers, least), most),
            ps=servers,
            worker_cpu=self.worker_cpu,
            ps_cpu=self.ps_cpu,
            worker_memory_bytes=self.worker_memory_bytes,
            ps_memory_bytes=math.ceil(SPARE * self.ps_state_bytes / servers),
            worker_gpus=self.worker_gpus,
            gpu_kind=self.gpu_kind,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A job of the simulation: what its user asks for, and the samples that it has to train."""

    job_id: str
    arrival_s: float
    facts: ModelFacts
    asked: Allocation
    samples: float
    owner: str = ""
    deadline_s: float | None = None
    priority: int = 0
    speed: float = 1.0
    """Of this job, relative to its model's truth at any size: its data and features are its own."""
    bounds: Bounds = field(default_factory=Bounds)

    @property
    def described(self) -> PlannedJob:
        """As it is submitted to brain."""
        return PlannedJob(
            job_id=self.job_id,
            owner=self.owner,
            model=self.facts.model,
            dense_parameters=self.facts.dense_parameters,
            tables=self.facts.tables,
            dim=self.facts.dim,
            batch_size=self.facts.batch_size,
            data_rows=max(1, round(self.samples)),
            epochs=1,
            priority=self.priority,
            deadline=self.deadline_s or 0.0,
        )
