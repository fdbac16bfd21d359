"""The service's pool of one model (`domain.throughput.pool`), with a fit that is made again only for news."""

from collections.abc import Callable, Sequence

from recmesh.plugins.planning import Throughput
from services.brain.domain.throughput import pool
from services.brain.domain.throughput.observations import Observation
from services.brain.simulator.job import ModelFacts
from services.brain.simulator.run import observation

REFIT_SHARE = 0.1
"""The common model is fitted again when so many more sizes, or twice the heartbeats, are known."""

Fit = Callable[[Sequence[Observation], float], Throughput | None]
"""(observations, now) → a model."""


class Pool(pool.Pool):
    """Of all jobs of a model, running or ended."""

    def __init__(self, facts: ModelFacts, fit: Fit) -> None:
        super().__init__()
        self._facts = facts
        self._fit = fit
        self._model: Throughput | None = None
        self._fitted = (0, 0.0)
        self._windows = 0.0

    def add(
        self, job: int, size: pool.Size, *, log: float, windows: float, at: float, factor: float | None
    ) -> float | None:
        """See `domain.throughput.pool.Pool`."""
        self._windows += windows
        return super().add(job, size, log=log, windows=windows, at=at, factor=factor)

    def model(self, now: float) -> Throughput | None:
        """What is known by now."""
        sizes, windows = len(self.seen), self._windows
        if sizes >= self._fitted[0] + max(1.0, REFIT_SHARE * self._fitted[0]) or windows >= 2 * self._fitted[1] > 0:
            found = [observation(self._facts, size, seen) for size, seen in self.seen.items()]
            self._model = self._fit(found, now)
            self._fitted = (sizes, windows)
        return self._model
