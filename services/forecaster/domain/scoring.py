"""What was promised, what came, and how wrong that was, by how far ahead it was said."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from services.forecaster.domain.forecast import Forecast, wape


@dataclass(frozen=True, slots=True)
class Promise:
    """One step of a forecast that is kept to be scored; `lead` 1 is the first step after the history."""

    step_s: float
    lead: int
    at: float
    made: float
    mean: float
    low: float
    high: float
    level: float
    model: str


@dataclass(frozen=True, slots=True)
class Scored:
    """A promise, and the mean rate that came over [at, at + step_s)."""

    promise: Promise
    actual: float

    @property
    def residual(self) -> float:
        """Truth less mean: positive where more came than was said."""
        return self.actual - self.promise.mean

    @property
    def is_covered(self) -> bool:
        """The truth lay in the interval."""
        return self.promise.low <= self.actual <= self.promise.high


@dataclass(frozen=True, slots=True)
class PastError:
    """Over the newest `count` promises of one lead: WAPE, and the share whose truth lay in the interval of `level`."""

    step_s: float
    lead: int
    count: int
    wape: float
    coverage: float
    level: float

    @property
    def lead_s(self) -> float:
        """From the end of the history to the end of the step."""
        return self.lead * self.step_s


def leads(horizon: int) -> list[int]:
    """Which steps of a forecast are kept: 1, 2, 4, ... and the last; errors grow with the lead, not with each step."""
    found = list(itertools.takewhile(lambda lead: lead <= horizon, (2**power for power in range(32))))
    return found if not found or found[-1] == horizon else [*found, horizon]


def promises(made: Forecast) -> list[Promise]:
    """Of a forecast from the end of the history on."""
    return [
        Promise(made.step_s, lead, point.at, made.made, point.mean, point.low, point.high, made.level, made.model)
        for lead in leads(len(made.points)) for point in [made.points[lead - 1]]
    ]  # fmt: skip


def past_errors(scored: Iterable[Scored]) -> list[PastError]:
    """By step and lead, in this order."""
    by_lead: dict[tuple[float, int], list[Scored]] = {}
    for each in scored:
        by_lead.setdefault((each.promise.step_s, each.promise.lead), []).append(each)
    return [_error(step_s, lead, found) for (step_s, lead), found in sorted(by_lead.items())]


def _error(step_s: float, lead: int, scored: Sequence[Scored]) -> PastError:
    actual = np.array([each.actual for each in scored])
    mean = np.array([each.promise.mean for each in scored])
    return PastError(
        step_s, lead, len(scored), wape(actual, mean),
        coverage=sum(each.is_covered for each in scored) / len(scored),
        level=sum(each.promise.level for each in scored) / len(scored),
    )  # fmt: skip
