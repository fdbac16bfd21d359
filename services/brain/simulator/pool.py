"""What all jobs of one model have shown, together: what a job that has shown nothing yet is believed to do.

Jobs of a model differ by a factor (their data and features are their own). It is taken from the first size that a job
has in common with others; a job that has none yet is taken as it is. To relate it by what the common model says of its
size instead would let that model confirm itself.
"""

from collections.abc import Callable, Sequence

from recmesh.plugins.planning import Throughput
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

        Returns the factor, None while the job has no size in common with others.
        """
        before = self._seen.get(size)
        if before is None:
            self._seen[size] = Seen((log - (factor or 0.0)) * beats, beats, at)
            return factor
        if factor is None:
            factor = log - before.total / before.beats
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
