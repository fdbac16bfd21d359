"""What a simulation is given besides jobs, truth and policy, and what came of it."""

import math
from dataclasses import dataclass, field

from recmesh.plugins.planning import INTERVAL_S, ClusterView, Resources
from services.brain.simulator.faults import Faults
from services.brain.simulator.run import Run


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one simulation, whatever the policy."""

    nodes: tuple[Resources, ...]
    seed: int = 0
    interval_s: float = INTERVAL_S
    faults: Faults = field(default_factory=Faults)
    noise_sd: float = 0.05
    """Standard deviation of the logarithm of one heartbeat's rate."""
    until_s: float = math.inf
    """Jobs that run then are said not to have ended."""
    view: ClusterView = field(default_factory=lambda: ClusterView(0.0, Resources()))
    """What planners are told besides the time and what is free."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened under one policy."""

    policy: str
    runs: tuple[Run, ...]
    ended_at: float
    total: Resources
    held: tuple[tuple[float, float, float, float], ...]
    """(from, to, cores, bytes) that one job held."""
    used: tuple[tuple[float, float, float, float], ...]
    """(from, to, cores, bytes) that one job used, while it trained."""
    decisions: int
    reasons: dict[str, int]
