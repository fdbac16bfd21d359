"""What brain learns of a job, from what the simulated job has shown."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from recmesh.plugins.planning import Allocation, Prediction, Shapes, Throughput, doubts
from services.brain.domain.throughput.learn import learn as learned
from services.brain.domain.throughput.learned import Learned
from services.brain.domain.throughput.observations import Observation

FORETOLD = 0.05
"""A prior that was right within this (of the logarithm, after one factor for the whole job) at every size that a job
has had has nothing to learn from it: thousands of jobs that are like earlier ones cost no fit."""
KEPT = 64
"""Predictions that a model remembers."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A model that answers the same question once: planners ask of the same grid at every look."""

    model: Throughput
    _rates: dict[bytes, Prediction] = field(default_factory=dict)
    _doubts: dict[Allocation, str] = field(default_factory=dict)

    def predict(self, shapes: Shapes) -> Prediction:
        """As the model says."""
        key = b"".join(column.tobytes() for column in (shapes.workers, shapes.ps, shapes.worker_cpu, shapes.ps_cpu))
        found = self._rates.get(key)
        if found is None:
            if len(self._rates) >= KEPT:
                self._rates.clear()
            found = self._rates[key] = self.model.predict(shapes)
        return found

    def doubt(self, allocation: Allocation) -> str:
        """As the model says."""
        return self.doubt_each([allocation])[0]

    def doubt_each(self, allocations: Sequence[Allocation]) -> list[str]:
        """As the model says: what was not asked before is asked at once."""
        known = [self._doubts.get(each) for each in allocations]
        new = [each for each, found in zip(allocations, known, strict=True) if found is None]
        if not new:
            return [found or "" for found in known]
        if len(self._doubts) >= 100 * KEPT:
            self._doubts.clear()
        told = dict(zip(new, doubts(self.model, new), strict=True))
        self._doubts.update(told)
        return [told[each] if found is None else found for each, found in zip(allocations, known, strict=True)]


@dataclass(frozen=True, slots=True)
class Foretold:
    """A prior, up to one factor."""

    prior: Throughput
    factor: float

    def predict(self, shapes: Shapes) -> Prediction:
        """The prior's, times the factor."""
        found = self.prior.predict(shapes)
        return Prediction(found.rate * self.factor, found.log_sd)

    def doubt(self, allocation: Allocation) -> str:
        """The prior's."""
        return self.prior.doubt(allocation)

    def doubt_each(self, allocations: Sequence[Allocation]) -> Sequence[str]:
        """The prior's."""
        return doubts(self.prior, allocations)


def learn(
    seen: Sequence[Observation], *, now: float, shared_batch: bool, prior: Throughput | None
) -> Throughput | None:
    """By the code of the service; None where that says that too little is known."""
    if prior is not None:
        shapes = Shapes.of([each.allocation for each in seen])
        off = np.log([each.samples_per_s for each in seen]) - np.log(prior.predict(shapes).rate)
        if np.abs(off - off.mean()).max() <= FORETOLD and not any(doubts(prior, [each.allocation for each in seen])):
            return Foretold(prior, math.exp(float(off.mean())))
    found = learned(seen, now=now, shared_batch=shared_batch, prior=prior)
    return Remembered(found) if isinstance(found, Learned) else None
