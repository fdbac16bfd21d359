"""Madu (Luo et al., SoCC 2022) as a peer: proactive, aware of the uncertainty of the forecast, shy of scaling down.

What the paper's abstract says and this keeps: demand is learned together with its uncertainty; capacity follows from
use per worker at a target utilisation; the overhead of scaling is kept in check. The details are not public, so this
is the reading taken, and a generous one:

- demand of a step is the forecast's mean plus `sigmas` of its standard deviation (without those two, the quantile
  given, plus `sigmas` of what past demand moved by from step to step);
- workers are the fewest whose f(w), at `target` use, exceeds the largest demand until new workers could be there: f is
  given to it, where the original fits a line per service;
- it grows at once, and shrinks only by at least `shrink_share` of what it has, because too few cost more than too many.
"""

from dataclasses import dataclass

import numpy as np

from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import Schedule, StreamView
from services.brain.domain.streams.answer import answered
from services.brain.domain.streams.kale import fewest


@dataclass(frozen=True, slots=True)
class Madu:
    """`sigmas`, `target` and `shrink_share` are to be tuned on earlier data."""

    name: str = "madu"
    sigmas: float = 1.5
    target: float = 0.9
    shrink_share: float = 0.1

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        """Up at once, down by enough."""
        load = self.demand(stream)
        ahead = 1 + int(np.ceil((stream.lead_s + stream.restart_s) / stream.step_s))
        reach = np.array([load[step : step + ahead].max() for step in range(len(load))])
        needed = fewest(stream.rates, reach / self.target, least=stream.least, most=stream.most).workers
        count, counts, reasons = stream.workers, np.empty(len(load), dtype=np.int64), []
        for step, need in enumerate(needed):
            grow, shrink = need > count, need <= count - max(1.0, self.shrink_share * count)
            if grow or shrink or not stream.least <= count <= stream.most:
                count = int(need)
            counts[step] = count
            reasons.append(
                f"{int(need)} for {reach[step]:,.0f}/s, mean and {self.sigmas:g} deviations, at {self.target:.0%} use"
                + ("" if count == need else f"; not worth a change from {count}")
            )
        return answered(stream, counts, reasons, load)

    def demand(self, stream: StreamView) -> Floats:
        """Upper demand of each step, (steps,)."""
        if stream.expected is not None and stream.spread is not None:
            upper: Floats = stream.expected + self.sigmas * stream.spread
            return upper
        if stream.past is None or len(stream.past) < 3:
            return stream.demand
        moved = float(np.std(np.diff(stream.past)) / np.sqrt(2))
        widened: Floats = stream.demand + self.sigmas * moved
        return widened
