"""The Horizontal Pod Autoscaler of Kubernetes, on the utilisation of workers: the reactive peer.

desired = ceil(workers · utilisation / target), unless the ratio is within the tolerance of 1. Utilisation is what a
job trains over what its workers can: with a backlog it is 1, so a starved job grows by 1/target per decision and no
faster. Of the decisions of the last 300 s the largest holds (downscale stabilisation). Where a plan's step holds
several periods, the decision is repeated as often as new workers can be seen at work in it.

The answer is one count for all steps: it looks at no forecast.
"""

import math
from dataclasses import dataclass

import numpy as np

from recmesh.plugins.streams import Schedule, StreamView
from services.brain.domain.streams.answer import held


@dataclass(frozen=True, slots=True)
class Hpa:
    """Kubernetes' defaults; `target` is to be tuned on earlier data."""

    name: str = "hpa"
    target: float = 0.8
    tolerance: float = 0.1
    down_window_s: float = 300.0
    period_s: float = 15.0

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        """The count after this step's decisions, held."""
        measured = float(stream.past[-1]) if stream.past is not None and len(stream.past) else float(stream.demand[0])
        seen_after_s = max(self.period_s, stream.restart_s + stream.lead_s)
        count = stream.workers
        used = self._used(stream, count, measured, stream.backlog)
        for _ in range(max(1, int(stream.step_s // seen_after_s))):
            count = min(max(self._desired(stream, count, measured, stream.backlog), stream.least), stream.most)
        window = max([count, *self._recent(stream)])
        if count < stream.workers and window > count:
            count = min(window, stream.workers)
        return held(stream, count, f"workers are used to {used:.0%}, the target is {self.target:.0%}")

    def _recent(self, stream: StreamView) -> list[int]:
        """What was desired in the steps of the window before now."""
        if stream.past is None or stream.past_workers is None:
            return []
        steps = min(int(self.down_window_s // stream.step_s), len(stream.past), len(stream.past_workers))
        return [
            self._desired(stream, int(stream.past_workers[-back]), float(stream.past[-back]), 0.0)
            for back in range(1, steps + 1)
        ]

    def _desired(self, stream: StreamView, count: int, measured: float, backlog: float) -> int:
        ratio = self._used(stream, count, measured, backlog) / self.target
        return count if abs(ratio - 1) <= self.tolerance else math.ceil(count * ratio - 1e-9)

    def _used(self, stream: StreamView, count: int, measured: float, backlog: float) -> float:
        capacity = float(stream.rates(np.array([float(count)]))[0])
        return 1.0 if backlog > 0 or capacity <= 0 else min(1.0, measured / capacity)
