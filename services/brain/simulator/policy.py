"""A planner with what the service puts around it: what it is shown, and what its changes cost."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from recmesh.plugins.planning import Planner, Throughput
from services.brain.domain.throughput.observations import Observation
from services.brain.domain.warmstart import WarmStart
from services.brain.simulator.costs import Costs


class Learn(Protocol):
    """How a model is made of what a job has shown."""

    def __call__(
        self, seen: Sequence[Observation], /, *, now: float, shared_batch: bool, prior: Throughput | None
    ) -> Throughput | None:
        """None while that is too little. `prior`: what is known of a similar job."""


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
    """Jobs begin with brain's first plan, made from similar jobs that have ended; None: as their user asks."""
    shared: bool = False
    """What jobs of one model have shown together is the prior of each."""
    takes_back: bool = False
    """A change that made a job slower is undone, and not proposed again for an hour, as jobmaster and brain do."""
    costs: Costs = field(default_factory=Costs)
