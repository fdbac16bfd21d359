"""What brain asks of other services, in its own words."""

from collections.abc import Sequence
from typing import Protocol

from recmesh.plugins.planning import Floats


class Forecaster(Protocol):
    """forecaster. MeshError where it cannot be asked, or has no forecast; its message says why."""

    async def forecast(
        self, series: str, *, steps: int, step_s: float, now: float, level: float
    ) -> tuple[Floats, Floats, str]:
        """Mean and upper end of the interval that holds the rate with probability `level`, (steps,) each; the model."""
        ...

    async def history(self, series: str, *, since: float, step_s: float) -> Sequence[tuple[float, float]]:
        """(begin of a step, rate), oldest first; steps without one are left out."""
        ...
