"""What planners are told of the future: the same for all of them, made beforehand, one row per planning step."""

from dataclasses import dataclass
from typing import Protocol

from recmesh.plugins.planning import Floats


@dataclass(frozen=True, slots=True)
class Forecast:
    """Made at one time for the steps from then on; samples per second, each (ahead,)."""

    mean: Floats
    upper: Floats
    """The quantile that demand is planned by."""
    spread: Floats
    """Standard deviation."""


class Forecasts(Protocol):
    """One forecast per planning step. None may know what came after its step began."""

    def at(self, step: int) -> Forecast:
        """The forecast made when step `step` of the series begins; its first entry is that step."""


@dataclass(frozen=True, slots=True)
class Given:
    """Forecasts made beforehand: row i is of step `first + i`; each (origins, ahead)."""

    first: int
    mean: Floats
    upper: Floats
    spread: Floats

    def at(self, step: int) -> Forecast:
        """IndexError for a step of which there is none."""
        row = step - self.first
        if not 0 <= row < len(self.mean):
            raise IndexError(f"no forecast was made at step {step}; there are {len(self.mean)} from {self.first} on")
        return Forecast(self.mean[row], self.upper[row], self.spread[row])
