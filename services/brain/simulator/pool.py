"""What all jobs of one model have shown, together: what a job that has shown nothing yet is believed to do.

Jobs of a model differ by a factor (their data and features are their own), so each is related to the others by the
sizes they have in common, or by what the common model says of a size.
"""

import math
from collections.abc import Callable, Sequence

from recmesh.plugins.planning import Allocation, Shapes, Throughput
from services.brain.domain.throughput.observations import Observation
from services.brain.simulator.job import ModelFacts
from services.brain.simulator.run import Seen, Size, observation

REFIT_SHARE = 0.1
"""The common model is fitted again when so many more sizes, or twice the heartbeats, are known."""

Fit = Callable[[Sequence[Observation], float], Throughput | None]
"""(observations, now) → a model."""


class Pool:
    """Of one model."""

    def __init__(self, facts: ModelFacts, fit: Fit) -> None:
        self._facts = facts
        self._fit = fit
        self._seen: dict[Size, Seen] = {}
        self._model: Throughput | None = None
        self._fitted = (0, 0)

    def add(self, size: Size, *, log: float, beats: int, at: float, factor: float | None) -> float | None:
        """A job's mean logarithm of so many heartbeats at a size, and its own factor (a logarithm) if that is known.

        Returns the factor; None while nothing relates the job to the others, so that it adds nothing.
        """
        if factor is None:
            factor = self._related(size, log)
        if factor is None:
            return None
        before = self._seen.get(size, Seen(0.0, 0, at))
        self._seen[size] = Seen(before.total + (log - factor) * beats, before.beats + beats, at)
        return factor

    def model(self, now: float) -> Throughput | None:
        """What is known by now."""
        sizes, beats = len(self._seen), sum(seen.beats for seen in self._seen.values())
        if sizes >= self._fitted[0] + max(1.0, REFIT_SHARE * self._fitted[0]) or beats >= 2 * self._fitted[1] > 0:
            found = [observation(self._facts, size, seen) for size, seen in self._seen.items()]
            self._model = self._fit(found, now)
            self._fitted = (sizes, beats)
        return self._model

    def _related(self, size: Size, log: float) -> float | None:
        if not self._seen:
            return 0.0
        if size in self._seen:
            return log - math.log(self._seen[size].rate)
        if self._model is None:
            return None
        allocation = Allocation(*size)
        if self._model.doubt(allocation):
            return None
        return log - math.log(float(self._model.predict(Shapes.of([allocation])).rate[0]))
