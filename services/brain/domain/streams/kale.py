"""KALE's planner: for each step the fewest workers that meet demand, then stabilised.

f is not monotonic in workers, so the search ends at its maximum (MATH section 2): where nothing up to there exceeds
demand, the maximum is taken, and the step is marked as unmet.

Demand is the forecast's quantile plus backlog / T_drain over the first T_drain seconds: with f(10) against a load a
hair below it, what a stop of ten minutes leaves behind takes 38 days. `pure=True` is equation 10 as printed.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import Schedule, StreamView, WorkerRates
from services.brain.domain.streams.answer import answered
from services.brain.domain.streams.stabilise import Stability, stabilised

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fewest:
    """The fewest workers for each demand, (steps,), and whether they meet it."""

    workers: Counts
    met: NDArray[np.bool_]


def fewest(rates: WorkerRates, demand: Floats, *, least: int, most: int) -> Fewest:
    """The smallest w in least..most with f(w) > demand, up to the (first) maximum of f; else that maximum.

    No demand at all is met by `least`, whatever f is.

    Raises:
        ValueError: `least` is below 1 or above `most`.
    """
    if not 1 <= least <= most:
        raise ValueError(f"from {least} to {most} workers there is no count to choose")
    counts = np.arange(least, most + 1)
    rising = rates(counts.astype(np.float64))
    top = int(np.argmax(rising))
    best_so_far = np.maximum.accumulate(rising[: top + 1])
    first = np.searchsorted(best_so_far, demand, side="right")
    met = (first <= top) | (demand <= 0)
    return Fewest(np.where(demand <= 0, least, counts[np.minimum(first, top)]), met)


def wanted(stream: StreamView) -> Floats:
    """Forecast plus backlog / T_drain, over the steps that begin within T_drain, (steps,)."""
    begins = np.arange(len(stream.demand)) * stream.step_s
    drain_s = max(stream.drain_s, stream.step_s)
    return stream.demand + np.where(begins < drain_s, stream.backlog / drain_s, 0.0)


@dataclass(frozen=True, slots=True)
class Kale:
    """KALE (equations 4 to 10 and algorithm 1), as mended by default; `pure` and `literal` are the paper's letter."""

    name: str = "kale"
    pure: bool = False
    """Demand is the forecast alone."""
    stability: Stability = field(default_factory=Stability)

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        """The fewest workers per step, short segments smoothed away."""
        demand = stream.demand if self.pure else wanted(stream)
        needed = fewest(stream.rates, demand, least=stream.least, most=stream.most)
        workers = stabilised(needed.workers, stream, self.stability)
        reasons = [
            _why(int(need), int(count), float(load), bool(met))
            for need, count, load, met in zip(needed.workers, workers, demand, needed.met, strict=True)
        ]
        return answered(stream, workers, reasons, demand)


def literal() -> Kale:
    """Equation 10 and algorithm 1 to the letter: no backlog, cascades, clipped spikes."""
    return Kale(name="kale-literal", pure=True, stability=Stability(literal=True))


def _why(need: int, count: int, load: float, met: bool) -> str:
    if not met:
        return f"demand of {load:,.0f}/s cannot be met: {need} is the best that may be had"
    if count > need:
        return f"{need} would meet {load:,.0f}/s; held at {count} for stability"
    if count < need:
        return f"{need} would meet {load:,.0f}/s for a short time; what waits is gone within the SLO without it"
    return f"{need} is the fewest for {load:,.0f}/s"
