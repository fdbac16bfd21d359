"""recmesh's own planner: dynamic programming over the horizon of the forecast, with the backlog inside the model.

State: (workers running, samples waiting). In each block of time the count is kept or changed; a change stops training
for `restart_s`, and what comes meanwhile waits. A block is as many steps as a stop takes, so that none reaches into
the next. Cost of a block: worker-seconds, lag, lag near and above the SLO, changes. Keeping costs nothing more than
the block itself, and a change costs the same from wherever it comes, so one pass backwards needs blocks × counts ×
backlogs (interpolated between grid points), not counts².

What comes is not known, only its mean and deviation. So what waits after a block is the mean of max(0, what waited +
what comes - what is trained) over a normal error (the loss of the newsvendor): a worker is added where the lag that it
is expected to save is worth more than itself, not where a quantile crosses a count.

What the costs weigh against each other was tuned on earlier data (`bench autoscale`): a stop is paid for by all workers
that it stops, a change as such by one.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import Schedule, StreamView
from services.brain.domain.streams.answer import answered
from services.brain.domain.streams.lag import arrivals

Counts = NDArray[np.int64]

BACKLOGS = 24
"""Grid points, denser where little waits."""
NEAR_BLOCKS = 12
"""So many are as short as may be, as many twice as long, and what is farther away is four times as long."""
FRESH = 0.05
"""The share of the SLO up to which lag is all but none: a minute of 20 min."""
NEAR_SLO = 0.7
"""The share of the SLO from which lag is dear: what is foreseen is a little wrong."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Costs in worker-seconds; `typical` is the mean count that demand needs."""

    stop: float = 1.0
    """Of a second for which a change stops training, times typical."""
    change_s: float = 400.0
    """Of a change as such."""
    lag: float = 0.3
    """Of a second with a lag of one SLO, times typical."""
    waiting: float = 13.0
    """Of a second with a lag of `FRESH` or more (of less: in proportion), on top, times typical. Where a change stops
    training, so that lag must be, it is as much less per second as a stop and that lag are longer than it alone, and
    lag up to both counts."""
    violation: float = 20.0
    """Of a second above the SLO, on top, times typical."""
    errors: float = 0.5
    """Share of the forecast's standard deviation that is planned for: the next plan mends a part of each error."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """The plan of least cost by the forecast."""

    name: str = "horizon"
    weights: Weights = field(default_factory=Weights)

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        """One pass backwards for what each state costs, one forwards from the state of now."""
        model = _Model(stream, self.weights)
        plan, waits = model.forwards(model.backwards())
        changes = int(np.count_nonzero(np.diff(np.concatenate([[stream.workers], plan]))))
        why = (
            f"{changes} changes, {plan.sum() * stream.step_s / 3600:.1f} worker-hours and "
            f"{float((waits / model.coming).max()):.0f} s of lag at most are foreseen"
        )
        return answered(stream, plan, (why,) * len(plan), stream.demand)


def foreseen(stream: StreamView) -> tuple[Floats, Floats]:
    """Samples per second in each step, and their standard deviation; where that is not told, the quantile, as if it
    were certain."""
    if stream.expected is None or stream.spread is None:
        return stream.demand, np.zeros_like(stream.demand)
    return stream.expected, stream.spread


def left_over(excess: Floats, deviation: float) -> Floats:
    """E[max(0, X)] of a normal X: mean `excess`, standard `deviation`, in the same unit."""
    if deviation <= 0.0:
        return np.maximum(excess, 0.0)
    off = excess / deviation
    density = np.exp(-0.5 * off * off) / math.sqrt(2.0 * math.pi)
    loss: Floats = np.maximum(deviation * density + excess * ndtr(off), 0.0)
    return loss


def blocks(steps: int, *, least: int) -> Counts:
    """How many steps each block has: at least `least` but for the last, more of them farther away."""
    sizes: list[int] = []
    while steps > 0:
        sizes.append(min(steps, least * (1, 2, 4)[min(len(sizes) // NEAR_BLOCKS, 2)]))
        steps -= sizes[-1]
    return np.array(sizes)


class _Model:
    """Costs and moves on a grid of backlogs, (counts, backlogs)."""

    def __init__(self, stream: StreamView, weights: Weights) -> None:
        self.stream, self.weights = stream, weights
        steps = len(stream.demand)
        self.sizes = blocks(steps, least=max(math.ceil(stream.restart_s / stream.step_s), 1))
        starts = np.cumsum(self.sizes) - self.sizes
        self.spans_s = self.sizes * stream.step_s
        self.begins_s = starts * stream.step_s
        load, deviation = foreseen(stream)
        self.load = np.add.reduceat(load, starts) / self.sizes
        self.deviation = weights.errors * np.add.reduceat(deviation, starts) / self.sizes
        self.coming = np.add.reduceat(arrivals(stream), starts) / self.sizes
        self.counts = np.arange(stream.least, stream.most + 1)
        self.rates = stream.rates(self.counts.astype(np.float64))
        self.now = float(stream.rates(np.array([float(stream.workers)]))[0])
        best = np.maximum.accumulate(self.rates)
        needed = np.minimum(np.searchsorted(best, self.load), len(best) - 1)
        self.typical = float(self.counts[needed].mean())
        self.change = self.typical * weights.stop * stream.restart_s + weights.change_s
        self.most = max(stream.backlog, 3 * stream.lag_slo_s * float(self.coming.max()), 1.0)
        self.grid = self.most * np.linspace(0.0, 1.0, BACKLOGS) ** 2

    def backwards(self) -> list[Floats]:
        """Cost to go before each block and after the last, each (counts, backlogs)."""
        ahead = [self._after_the_last()]
        for block in reversed(range(len(self.load))):
            keep = self._total(block, self.grid, ahead[-1], stop=False)[0]
            change = self._total(block, self.grid, ahead[-1], stop=True)[0].min(axis=0) + self.change
            ahead.append(np.minimum(keep, change))
        return ahead[::-1]

    def forwards(self, ahead: list[Floats]) -> tuple[Counts, Floats]:
        """From what runs and waits now: the count of each step, and what waits after each block."""
        plan, waits = np.empty(len(self.load), dtype=np.int64), np.empty(len(self.load))
        running, backlog = self.stream.workers, self.stream.backlog
        for block in range(len(self.load)):
            now = np.array([backlog])
            keep, kept = self._total(block, now, ahead[block + 1], stop=False)
            change, stopped = self._total(block, now, ahead[block + 1], stop=True)
            own = self.counts == running
            chosen = int(np.argmin(np.where(own, keep[:, 0], change[:, 0] + self.change)))
            backlog = float(kept[chosen, 0] if own[chosen] else stopped[chosen, 0])
            running = int(self.counts[chosen])
            plan[block], waits[block] = running, backlog
        return np.repeat(plan, self.sizes), waits

    def _total(self, block: int, backlog: Floats, ahead: Floats, *, stop: bool) -> tuple[Floats, Floats]:
        """Cost of a block and of all that follow, and what waits after it, each (counts, backlogs)."""
        span_s = float(self.spans_s[block])
        excess = backlog + (self.load[block] * span_s - self._served(block, stop=stop))[:, None]
        after = left_over(excess, float(self.deviation[block]) * span_s)
        per_slo = 1.0 / (self.coming[block] * self.stream.lag_slo_s)
        over = np.minimum(np.maximum(after * (per_slo / (1.0 - NEAR_SLO)) - NEAR_SLO / (1.0 - NEAR_SLO), 0.0), 1.0)
        mean = (after + backlog) * (0.5 * per_slo)
        fresh_s = FRESH * self.stream.lag_slo_s
        stale_s = fresh_s + self.stream.restart_s
        waiting = np.minimum(mean * (self.stream.lag_slo_s / stale_s), 1.0) * (fresh_s / stale_s)
        dear = self.weights.lag * mean + self.weights.waiting * waiting + self.weights.violation * over
        cost = self.counts[:, None] + self.typical * dear
        place = np.minimum(np.sqrt(after / self.most) * (BACKLOGS - 1), BACKLOGS - 1.000001)
        low = place.astype(np.intp)
        share = np.minimum((after - self.grid[low]) / (self.grid[low + 1] - self.grid[low]), 1.0)
        flat, rows = ahead.reshape(-1), low + np.arange(len(self.counts))[:, None] * BACKLOGS
        total: Floats = cost * span_s + (1.0 - share) * flat[rows] + share * flat[rows + 1]
        return total, after

    def _served(self, block: int, *, stop: bool) -> Floats:
        """Samples that each count trains in a block, (counts,)."""
        stream, span_s = self.stream, float(self.spans_s[block])
        served = self.rates * (span_s - (min(stream.restart_s, span_s) if stop else 0.0))
        waiting_s = min(max(stream.lead_s - float(self.begins_s[block]), 0.0), span_s)
        if waiting_s > 0:
            share = waiting_s / span_s
            limited = share * np.minimum(served, self.now * span_s) + (1 - share) * served
            served = np.where(self.counts > stream.workers, limited, served)
        return served

    def _after_the_last(self) -> Floats:
        """What waits at the end must still be trained, at the best rate there is."""
        drain_s = self.grid / max(float(self.rates.max()), 1e-9)
        best = float(self.counts[int(np.argmax(self.rates))])
        return np.broadcast_to(best * drain_s, (len(self.counts), BACKLOGS)).copy()
