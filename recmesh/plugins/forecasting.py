"""Forecast models: a history in, a fitted model out that predicts from any moment of it.

Found by the entry-point group `recmesh.forecasters`; pure: time and randomness are arguments, no I/O. What is done with
their predictions (choice by backtest, combination, intervals, drift) is the service's, and the same for all.
"""

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

GROUP = "recmesh.forecasters"
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


class Unfit(ValueError):
    """The history does not suffice for this model; the message says why. The model is then passed over."""


@dataclass(frozen=True, slots=True)
class SeriesView:
    """What a model is fitted to. ValueError names the field that no series can have."""

    values: Floats
    """Rates from 0 up, (n,), oldest first, one for each step; gaps are filled."""
    step_s: float
    seasons: tuple[int, ...]
    """Steps after which it may repeat itself (a day, a week), shortest first; each shorter than the history. May be
    empty."""
    leads: tuple[int, ...]
    """Steps ahead that will be asked for, ascending; 1 is the next value. Others in between may be asked too."""
    weights: Floats
    """How much each value is worth to learn from, (n,), 0 to 1: 0 where it was filled in, little on unusual days."""
    seconds: float = 60.0
    """What fitting may take, for models whose fitting can be cut short."""

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or not len(self.values):
            raise ValueError(f"values must be one row of at least one value, not of shape {self.values.shape}")
        if self.weights.shape != self.values.shape:
            raise ValueError(f"weights must be as long as values, not of shape {self.weights.shape}")
        if not (np.isfinite(self.values).all() and self.values.min() >= 0):
            raise ValueError("values must be finite and from 0 up")
        if not (self.weights.min() >= 0 and self.weights.max() <= 1):
            raise ValueError("weights must lie in 0..1")
        if not 0.0 < self.step_s < math.inf:
            raise ValueError(f"step_s must be above 0, not {self.step_s}")
        if list(self.seasons) != sorted(set(self.seasons)) or any(not 2 <= s < len(self.values) for s in self.seasons):
            raise ValueError(f"seasons must ascend, from 2 up to below {len(self.values)}, not {self.seasons}")
        if not self.leads or list(self.leads) != sorted(set(self.leads)) or self.leads[0] < 1:
            raise ValueError(f"leads must ascend from 1 up, not {self.leads}")


class Fitted(Protocol):
    """A model that has learned. It can be pickled: it moves between processes of the service."""

    def rolling(self, values: Floats, origins: Ints, leads: Ints) -> Floats:
        """Predictions, (len(origins), len(leads)): of values[origin + lead - 1], from values[:origin] alone.

        Origins lie in 1..len(values), and `values` may hold more than was there when it was fitted, or start later.
        """
        ...


class Forecaster(Protocol):
    """A kind of model. It can be made without arguments."""

    @property
    def name(self) -> str:
        """What answers and figures call it, and the name of its entry point."""
        ...

    @property
    def dear(self) -> bool:
        """Fitting takes seconds: it is tried for the series where that pays, not for all."""
        ...

    def fit(self, view: SeriesView, rng: np.random.Generator) -> Fitted:
        """Learn. Unfit when the history does not suffice. All randomness comes from `rng`."""
        ...
