"""How many workers an online job has: as many as what comes in needs, ahead of the time."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, StringConstraints

from recmesh.spec.base import Fault, Spec, rule

SeriesName = Annotated[str, StringConstraints(pattern=r"^\S+$", max_length=200)]
RATE_STEP_S = 10.0
"""Over so long arrivals on topics are measured."""
MOST_STEPS = 240
"""Of a horizon: planners weigh every step against every count."""


class Scaling(Spec):
    """Workers follow the forecast of what comes in on the job's topics, within `roles.worker.min` and `max`."""

    planner: Annotated[str, Field(min_length=1, max_length=100)] = "horizon"
    """Chooses the counts: horizon, kale, kale-literal, hpa, autopilot, madu, or one that a package adds to brain."""
    step_s: float = Field(default=60.0, ge=1, le=3600)
    """A schedule has one count per step, and is made anew so often; a multiple of 10 s, over which arrivals on topics
    are measured, where `series` names no others."""
    horizon_s: float = Field(default=3600.0, ge=1, le=86_400)
    """So far it looks ahead; at least two steps, at most 240."""
    quantile: float = Field(default=0.8, ge=0.5, le=0.99)
    """Demand is this quantile of the forecast."""
    lag_slo_s: float = Field(default=1200.0, gt=0, le=86_400)
    """The age that the oldest sample which waits must not reach."""
    drain_s: float = Field(default=1200.0, gt=0, le=86_400)
    """In how long a backlog should be gone."""
    hold_s: float = Field(default=300.0, ge=0, le=86_400)
    """Workers go only when the schedule needs none of them for so long, and none has come or gone for so long."""
    fallback: bool = True
    """Where lag or the use of workers leaves its band in spite of the forecast, what is measured decides."""
    dry_run: bool = False
    """brain says what it would do; nothing is changed."""
    workers_per_ps: float = Field(default=0.0, ge=0, le=1000)
    """So many workers to one parameter server: servers follow, ceil(workers / this). 0: they stay as they are."""
    series: list[SeriesName] = Field(default=[], max_length=64)
    """Rates whose sum is the demand, by their names in forecaster; empty: those of the job's own topics."""

    @property
    def steps(self) -> int:
        """Of a schedule."""
        return round(self.horizon_s / self.step_s)

    @rule
    def _steps_are_of_whole_measurements(self) -> Iterator[Fault]:
        times = self.step_s / RATE_STEP_S
        if not self.series and (times < 1 or abs(times - round(times)) > 1e-9):
            yield "step_s", f"must be a multiple of {RATE_STEP_S:g}: arrivals on topics are measured over so long"

    @rule
    def _the_horizon_has_steps(self) -> Iterator[Fault]:
        if not 2 <= self.steps <= MOST_STEPS:
            yield "horizon_s", f"is {self.steps} steps of step_s; from 2 to {MOST_STEPS} can be planned"
