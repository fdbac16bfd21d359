"""Google's Autopilot (EuroSys 2020) as a peer: a statistic of a moving window of past demand, plus a margin.

Three recommenders of the paper: the window's peak, its mean with weights that halve with age, and a percentile. The
count is the fewest workers for that, and it goes down only when it was lower for the whole of `down_window_s`. The
answer is one count for all steps: the past stands for the future.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import Schedule, StreamView
from services.brain.domain.streams.answer import held
from services.brain.domain.streams.kale import fewest

Statistic = Literal["peak", "mean", "percentile"]


@dataclass(frozen=True, slots=True)
class Autopilot:
    """`statistic`, `window_s` and `margin` are to be tuned on earlier data."""

    name: str = "autopilot"
    statistic: Statistic = "percentile"
    window_s: float = 3600.0
    half_life_s: float = 1200.0
    """Of the weights of the mean."""
    percentile: float = 95.0
    margin: float = 0.1
    down_window_s: float = 1200.0

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        """The fewest workers for the window's statistic, held."""
        past = stream.past if stream.past is not None and len(stream.past) else stream.demand[:1]
        count = self._count(stream, past)
        if count < stream.workers:
            back = int(self.down_window_s // stream.step_s)
            earlier = [self._count(stream, past[: len(past) - ago]) for ago in range(1, back + 1) if ago < len(past)]
            count = min(stream.workers, max([count, *earlier]))
        seen = self.estimate(past, stream.step_s)
        return held(
            stream,
            count,
            f"{self.statistic} of the last {self.window_s:.0f} s is {seen:,.0f}/s, with a margin of {self.margin:.0%}",
        )

    def estimate(self, past: Floats, step_s: float) -> float:
        """The statistic of the newest window, samples per second."""
        window = past[-max(1, int(self.window_s // step_s)) :]
        if self.statistic == "peak":
            return float(window.max())
        if self.statistic == "percentile":
            return float(np.percentile(window, self.percentile))
        ages_s = np.arange(len(window))[::-1] * step_s
        return float(np.average(window, weights=0.5 ** (ages_s / self.half_life_s)))

    def _count(self, stream: StreamView, past: Floats) -> int:
        load = np.array([self.estimate(past, stream.step_s) * (1 + self.margin)])
        return int(fewest(stream.rates, load, least=stream.least, most=stream.most).workers[0])
