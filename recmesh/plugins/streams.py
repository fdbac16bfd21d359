"""Planners of online training: a forecast of demand in, a schedule of workers out.

Found by the entry-point group `recmesh.stream_planners`; pure, as planners of jobs are.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from recmesh.plugins.planning import Floats

GROUP = "recmesh.stream_planners"


class WorkerRates(Protocol):
    """Samples per second of a job by its number of workers; not necessarily monotonic."""

    def __call__(self, workers: Floats) -> Floats:
        """Shape (n,) in, shape (n,) out."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """An online job at the moment of planning. ValueError names the field that no job can have."""

    job_id: str
    now: float
    step_s: float
    """Length of each step of `demand` and of the answer."""
    demand: Floats
    """Samples per second to be expected in each step from now on, (steps,): the chosen quantile of the forecast."""
    rates: WorkerRates
    workers: int
    """Running now."""
    least: int = 1
    most: int = 64
    since_s: float = 0.0
    """Seconds for which the present count has been held."""
    backlog: float = 0.0
    """Samples that wait."""
    drain_s: float = 1200.0
    """In how long a backlog should be gone."""
    lag_slo_s: float = 1200.0
    """The age of the oldest waiting sample that must not be passed."""
    restart_s: float = 0.0
    """Seconds for which a change of the count stops training."""
    lead_s: float = 0.0
    """From the decision until a new worker trains."""
    past: Floats | None = None
    """Demand of the steps before now, oldest first."""
    past_workers: Floats | None = None
    """Workers of the same steps."""
    expected: Floats | None = None
    """Mean of the forecast in each step, (steps,); `demand` is its quantile."""
    spread: Floats | None = None
    """Standard deviation of the forecast in each step, (steps,)."""
    workers_per_ps: float = 0.0
    """The fixed ratio r of workers to parameter servers at which `rates` was measured; 0: servers are not planned."""

    def __post_init__(self) -> None:
        _check_series("demand", self.demand, steps=None, least=1)
        for name in ("expected", "spread"):
            _check_series(name, getattr(self, name), steps=len(self.demand))
        _check_series("past", self.past, steps=None)
        _check_series("past_workers", self.past_workers, steps=None if self.past is None else len(self.past))
        for name in ("step_s", "drain_s"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("workers", "since_s", "backlog", "lag_slo_s", "restart_s", "lead_s", "workers_per_ps"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least and most must be 1 <= least <= most, not {self.least} and {self.most}")


@dataclass(frozen=True, slots=True)
class Schedule:
    """How many workers in each step, from now on."""

    workers: tuple[int, ...]
    reasons: tuple[str, ...]
    """Why, in words, one per step."""
    unmet: tuple[bool, ...]
    """Steps whose demand no allowed count meets."""
    ps: tuple[int, ...] = ()
    """Parameter servers in each step, ceil(w/r); empty where the view has no ratio."""


def _check_series(name: str, values: Floats | None, *, steps: int | None, least: int = 0) -> None:
    if values is None:
        return
    if values.ndim != 1 or len(values) < least or (steps is not None and len(values) != steps):
        wanted = "at least one step" if steps is None and least else f"{steps} steps" if steps is not None else "steps"
        raise ValueError(f"{name} must be one row of {wanted}, not of shape {values.shape}")
    if not (np.isfinite(values) & (values >= 0.0)).all():
        raise ValueError(f"{name} must be finite and at least 0 in each step")


class StreamPlanner(Protocol):
    """Chooses counts of workers over the horizon of the forecast."""

    @property
    def name(self) -> str:
        """What it is found by."""

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        """One count per step of demand, from `least` to `most`."""
