"""A planner with what the service puts around it: what it is shown, and what its changes cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from recmesh.plugins.planning import Allocation, Planner, Throughput
from services.brain.domain.warmstart import WarmStart
from services.brain.simulator.costs import Costs


@dataclass(frozen=True, slots=True)
class Observation:
    """What a job has shown at one size: the mean of its heartbeats there."""

    allocation: Allocation
    rate: float
    """Samples per second, geometric mean."""
    count: int
    """Heartbeats behind it."""


Learn = Callable[[Sequence[Observation], int], Throughput | None]
"""(what a job has shown so far, its batch size) → a model of its speed, or None while that is too little."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What is compared."""

    name: str
    planner: Planner
    learn: Learn | None = None
    """None: the planner is shown measured rates alone."""
    oracle: bool = False
    """It sees the truth: the bound of what can be learned."""
    warm: WarmStart | None = None
    """Jobs begin with a plan made from similar jobs that have ended, as brain's first plan; None: as their user asks."""
    costs: Costs = field(default_factory=Costs)
