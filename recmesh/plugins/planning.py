"""Planners of training jobs: what one is given and what it answers.

A planner is a class without arguments, named by an entry point of the group `recmesh.planners`. It is pure: the same
views and the same generator give the same answer, and nothing is read or written on the way. `brain` calls `propose`
for each job and `select` once for all of them; the simulator calls the same code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

GROUP = "recmesh.planners"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Resources:
    """Cores, bytes and accelerators by kind; also a price per unit of each."""

    cpu: float = 0.0
    memory_bytes: float = 0.0
    gpus: Mapping[str, float] = field(default_factory=dict)

    def plus(self, other: "Resources", times: float = 1.0) -> "Resources":
        """The sum; `times=-1` subtracts."""
        kinds = {*self.gpus, *other.gpus}
        return Resources(
            self.cpu + times * other.cpu,
            self.memory_bytes + times * other.memory_bytes,
            {kind: self.gpus.get(kind, 0.0) + times * other.gpus.get(kind, 0.0) for kind in sorted(kinds)},
        )

    def within(self, room: "Resources") -> bool:
        """Whether `room` holds this, of every kind. What is given back (negative) needs no room."""
        return (
            self.cpu <= max(0.0, room.cpu) + 1e-9
            and self.memory_bytes <= max(0.0, room.memory_bytes) + 0.5
            and all(many <= max(0.0, room.gpus.get(kind, 0.0)) + 1e-9 for kind, many in self.gpus.items())
        )

    def cost(self, prices: "Resources") -> float:
        """Σ amount · price."""
        gpus = sum(many * prices.gpus.get(kind, 0.0) for kind, many in self.gpus.items())
        return self.cpu * prices.cpu + self.memory_bytes * prices.memory_bytes + gpus


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a parameter-server job holds: counts, and the size of one process of each role."""

    workers: int
    ps: int
    worker_cpu: float
    ps_cpu: float
    worker_memory_bytes: int = 0
    ps_memory_bytes: int = 0
    worker_gpus: float = 0.0
    gpu_kind: str = ""

    @property
    def resources(self) -> Resources:
        """The sum over its processes."""
        gpus = {self.gpu_kind: self.workers * self.worker_gpus} if self.worker_gpus else {}
        return Resources(
            self.workers * self.worker_cpu + self.ps * self.ps_cpu,
            self.workers * self.worker_memory_bytes + self.ps * self.ps_memory_bytes,
            gpus,
        )


@dataclass(frozen=True, slots=True)
class Shapes:
    """Many allocations as columns, each of shape (n,): counts, and cores of one process."""

    workers: Floats
    ps: Floats
    worker_cpu: Floats
    ps_cpu: Floats

    @classmethod
    def of(cls, allocations: Sequence[Allocation]) -> "Shapes":
        """One row per allocation."""
        rows = [(each.workers, each.ps, each.worker_cpu, each.ps_cpu) for each in allocations]
        columns = np.array(rows, dtype=np.float64).reshape(-1, 4)
        return cls(*(np.ascontiguousarray(column) for column in columns.T))

    def at(self, rows: NDArray[np.intp]) -> "Shapes":
        """The chosen rows, in the order given."""
        return Shapes(self.workers[rows], self.ps[rows], self.worker_cpu[rows], self.ps_cpu[rows])

    def __len__(self) -> int:
        return len(self.workers)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Samples per second of each shape, and the standard deviation of their logarithm; both (n,)."""

    rate: Floats
    log_sd: Floats


class Throughput(Protocol):
    """What brain has learned of a job's speed.

    It may have a method `doubt_each(allocations) -> Sequence[str]`, too, where asking `doubt` of each takes longer.
    """

    def predict(self, shapes: Shapes) -> Prediction:
        """Vectorised; rates are finite and above 0."""

    def doubt(self, allocation: Allocation) -> str:
        """Why the prediction for it is an extrapolation, in words; "" when it lies within what was measured."""


def doubts(model: Throughput, allocations: Sequence[Allocation]) -> Sequence[str]:
    """The model's doubt of each, in one question where it has a `doubt_each` for that."""
    of_many = getattr(model, "doubt_each", None)
    if of_many is None:
        return [model.doubt(each) for each in allocations]
    answered: Sequence[str] = of_many(allocations)
    return answered


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a user allows: from least to most of each; a pin is the same number twice."""

    workers: tuple[int, int] = (1, 8)
    ps: tuple[int, int] = (1, 8)
    worker_cpu: tuple[float, float] = (1.0, 8.0)
    ps_cpu: tuple[float, float] = (1.0, 8.0)
    cpu_step: float = 0.0
    """Between two sizes of a process; 0: whole cores, and quarters of one where sizes end below two."""
    ps_memory_bytes: int = 0
    """The most that one parameter server may have; 0: whatever its share of the rows needs."""

    def hold(self, allocation: Allocation) -> bool:
        """Whether it lies within."""
        return all(
            low - 1e-9 <= value <= high + 1e-9
            for (low, high), value in (
                (self.workers, allocation.workers),
                (self.ps, allocation.ps),
                (self.worker_cpu, allocation.worker_cpu),
                (self.ps_cpu, allocation.ps_cpu),
            )
        )


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds of training that a change costs the whole job, as measured on this cluster."""

    workers_s: float = 1.0
    ps_s: float = 1.0
    resize_s: float = 1.0
    """Other cores or memory for running processes."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at the moment of planning."""

    job_id: str
    now: Allocation
    """What it holds; what it asks for while `queued`."""
    bounds: Bounds = Bounds()
    throughput: Throughput | None = None
    """None: too little was measured to say anything; a planner may keep, explore by one step, or follow its rule."""
    rate: float = 0.0
    """Samples per second as measured now; 0 while nothing is."""
    remaining: float = 0.0
    """Samples that are still to be trained."""
    deadline: float | None = None
    """Seconds on the clock of `ClusterView.now`."""
    owner: str = ""
    priority: int = 0
    overheads: Overheads = Overheads()
    queued: bool = False
    """It holds nothing yet."""
    asked: Allocation | None = None
    """What its user gave it at the start."""
    ps_state_bytes: float = 0.0
    """What its parameter servers must hold together, forecast to its end; 0: unknown, and then what they have now."""
    front: tuple[Allocation, ...] = ()
    """Candidates of its last proposal, from which a search may start."""
    measured: tuple[Allocation, ...] = ()
    """What it has had, or a job that it does as: known, so that a step to learn leads elsewhere; only counts and cores
    matter."""


PRICES = Resources(1.0, 1.0 / (8 << 30), {})
"""Of a core, of a byte and of accelerators, where nobody sets others."""
POD_PRICE = 0.25

INTERVAL_S = 180.0
"""Between two questions of a job, where nobody sets another."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What may be given out."""

    now: float
    free: Resources
    """Beyond what running jobs hold."""
    prices: Resources = PRICES
    """Per core, byte and accelerator; a kind without a price is free of charge."""
    pod_price: float = POD_PRICE
    """Each process, whatever its size: without it many one-core workers always win (MATH §1)."""
    interval_s: float = INTERVAL_S
    """Seconds to the next decision."""
    horizon_s: float = 3600.0
    """The longest time over which a gain may pay back its overhead."""
    quotas: Mapping[str, Resources] = field(default_factory=dict)
    """What owners may still take beyond what they hold; an owner without an entry is bounded by `free` alone."""
    epsilon: float = 0.05
    """Share of throughput that a scale-down may cost."""
    rho: float = 2.5
    """Weight of short jobs (eq. 14): 0 all equal, below 0 long jobs first."""


class Reason(IntEnum):
    """Why a job has what it has, from the best news to the worst."""

    GROW = 10
    """Faster for more resources, and worth them."""
    FREE_GAIN = 20
    """Faster at no more cost."""
    SHRINK = 30
    """It gives back what it hardly uses, or what its deadline does not need."""
    EXPLORE = 40
    """One step beyond what was measured, to learn what it brings."""
    STARTED = 45
    """It was queued, and begins."""
    KEEP = 50
    """Nothing is better than what it has."""
    TOO_SMALL_A_GAIN = 60
    """Something is faster, but by less than a change is worth."""
    UNCERTAIN = 70
    """Something seems better, but the prediction is a guess, and no step towards it can be tried."""
    PINNED = 80
    """Its user's limits decide: they leave no choice, or it lies outside of them and is moved inside."""
    NO_ROOM = 90
    """The cluster has too little free for anything better."""
    OVER_QUOTA = 100
    """Its owner's quota has too little left for anything better."""
    QUEUED = 110
    """It waits: not even its least start fits now."""
    DEADLINE_LOST = 120
    """No allowed allocation ends in time; it gets what helps most."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One allocation that a job could have instead of its own."""

    allocation: Allocation
    rate: float
    """Samples per second, predicted."""
    gain: float
    """TG in samples per second: Ψ_new·(1 − overhead/h) − Ψ_now."""
    cost: float
    """RC: price of what it takes beyond what the job has; negative where it gives back."""
    reason: Reason = Reason.GROW
    why: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A job's candidates, none of them worse than another in cost and gain; empty: nothing is better than now."""

    job: JobView
    candidates: tuple[Candidate, ...] = ()
    reason: Reason = Reason.KEEP
    """Of an empty proposal."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a job gets. `chosen` None: it keeps what it has (a queued job: it waits)."""

    job_id: str
    allocation: Allocation
    reason: Reason
    why: str
    chosen: Candidate | None = None


class Planner(Protocol):
    """Chooses for each job, then among jobs."""

    name: str

    def propose(self, job: JobView, cluster: ClusterView, rng: np.random.Generator) -> Proposal:
        """Candidates of one job, within its bounds."""

    def select(
        self, proposals: Sequence[Proposal], cluster: ClusterView, rng: np.random.Generator
    ) -> Sequence[Decision]:
        """One decision per proposal, in its order. What all take together fits `cluster.free` and the quotas.

        What one gives back is free at the next decision only: until then its processes still run.
        """
