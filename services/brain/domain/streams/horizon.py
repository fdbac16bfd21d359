"""recmesh's own planner: dynamic programming over the horizon of the forecast, with the backlog inside the model.

State: (workers running, samples waiting). In each step the count is kept or changed; a change stops training for
`restart_s`, and what comes meanwhile waits. Cost of a step: worker-seconds, lag, lag above the SLO, changes. Keeping
costs nothing more than the step itself, and a change costs the same from wherever it comes, so one pass backwards
needs steps × counts × backlogs (interpolated between grid points), not counts².

What the four costs weigh against each other nobody knows beforehand. So several weights are tried; each plan, and
KALE's, is run through the same outlook, and the one is taken whose columns (worker-seconds, accumulated lag,
violations, changes) have the least geometric mean over KALE's *and* of which none is above KALE's, by the forecast.
KALE's own plan is one of them: there is always an answer, and never a worse one than its, as far as can be foreseen.

Of lag, KALE's is what it comes to by planning anew before each step (`draining`): its plan of now, seen to the end,
lags more than it ever will, and whoever planned up to that would lag more than KALE does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import Schedule, StreamView
from services.brain.domain.streams.answer import answered
from services.brain.domain.streams.kale import Kale
from services.brain.domain.streams.lag import Outlook, arrivals, outlook

Counts = NDArray[np.int64]

BACKLOGS = 24
"""Grid points, denser where little waits."""
WORST = 10.0
"""What something over nothing counts in a ratio; nothing over nothing counts 1 (MATH section 5)."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Costs, all in worker-seconds at KALE's mean count."""

    change_s: float
    """Of one change, seconds."""
    lag: float
    """Of a second with a lag of one SLO."""
    violation: float = 20.0
    """Of a second above the SLO, on top."""


TRIED = tuple(Weights(change_s, lag) for change_s in (30.0, 200.0, 900.0, 3600.0) for lag in (0.05, 0.3, 1.5))


@dataclass(frozen=True, slots=True)
class Horizon:
    """The best plan of those that several weights give, none of its columns above KALE's."""

    name: str = "horizon"
    weights: Sequence[Weights] = TRIED

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        """Plans, their outlooks, the best."""
        kale = Kale().schedule(stream, rng)
        reference = np.array(kale.workers, dtype=np.int64)
        base = outlook(stream, reference)
        best, foreseen, score = reference, base, 1.0
        allowed = replace(base, lag_s=np.minimum(base.lag_s, draining(stream).lag_s))
        for plan in cheapest(stream, self.weights, typical=float(reference.mean())):
            found = outlook(stream, plan)
            ratios = against(found, allowed)
            mean = float(np.exp(np.mean(np.log(ratios))))
            if max(ratios) <= 1 + 1e-9 and mean < score - 1e-9:
                best, foreseen, score = plan, found, mean
        why = (
            f"{foreseen.changes} changes, {foreseen.worker_s / 3600:.1f} worker-hours and "
            f"{foreseen.lag_s.max():.0f} s of lag at most are foreseen; "
            + ("as kale plans" if best is reference else f"{score:.2f} of what kale would cost")
        )
        return answered(stream, best, (why,) * len(best), stream.demand)


def against(found: Outlook, base: Outlook) -> tuple[float, ...]:
    """Each column over the reference's: x/0 counts 10, 0/0 counts 1; floored so that a zero does not hide the rest."""
    return tuple(
        max(mine / theirs, 0.01) if theirs > 0 else (WORST if mine > 0 else 1.0)
        for mine, theirs in zip(found.columns, base.columns, strict=True)
    )


def draining(stream: StreamView) -> Outlook:
    """What KALE would come to by planning anew before each step, its backlog of then within its demand.

    Without stabilising, which only adds workers: the least lag that it may come to.
    """
    plan = np.empty(len(stream.demand), dtype=np.int64)
    running, waits = stream.workers, stream.backlog
    drain_s = max(stream.drain_s, stream.step_s)
    counts = np.arange(stream.least, stream.most + 1)
    best = np.maximum.accumulate(stream.rates(counts.astype(np.float64)))
    top = int(np.argmax(best))
    made = best[: top + 1]
    for step in range(len(plan)):
        load = stream.demand[step] + waits / drain_s
        index = min(int(np.searchsorted(made, load, side="right")), top)
        stop_s = min(stream.restart_s, stream.step_s) if counts[index] != running else 0.0
        waits = max(0.0, waits + stream.demand[step] * stream.step_s - made[index] * (stream.step_s - stop_s))
        running = plan[step] = counts[index]
    return outlook(stream, plan)


def cheapest(stream: StreamView, weights: Sequence[Weights], *, typical: float) -> Counts:
    """The plan of least cost by the forecast for each of the weights, (weights, steps)."""
    model = _Model(stream, weights, typical)
    return model.forwards(model.backwards())


class _Model:
    """Costs and moves on a grid of backlogs. Moves are the same for all weights; costs are (weights, counts, ...)."""

    def __init__(self, stream: StreamView, weights: Sequence[Weights], typical: float) -> None:
        self.stream, self.typical = stream, max(typical, 1.0)
        self.change_s, self.lag, self.violation = (
            np.array([getattr(each, name) for each in weights])[:, None, None]
            for name in ("change_s", "lag", "violation")
        )
        self.counts = np.arange(stream.least, stream.most + 1)
        self.rates = stream.rates(self.counts.astype(np.float64))
        self.now = float(stream.rates(np.array([float(stream.workers)]))[0])
        self.coming = arrivals(stream)
        most = max(stream.backlog, 3 * stream.lag_slo_s * float(self.coming.max()), 1.0)
        self.grid = most * np.linspace(0.0, 1.0, BACKLOGS) ** 2

    def backwards(self) -> list[Floats]:
        """Cost to go before each step and after the last, each (weights, counts, backlogs)."""
        ahead = [self._after_the_last()]
        for step in reversed(range(len(self.stream.demand))):
            keep = self._total(step, self._after(step, self.grid, stop=False), ahead[-1])
            change = self._total(step, self._after(step, self.grid, stop=True), ahead[-1])
            change += self.typical * self.change_s
            ahead.append(np.minimum(keep, change.min(axis=1, keepdims=True)))
        return ahead[::-1]

    def forwards(self, ahead: list[Floats]) -> Counts:
        """From what runs and waits now, by the cost to go: one plan per weights."""
        many, steps = len(self.change_s), len(self.stream.demand)
        plans = np.empty((many, steps), dtype=np.int64)
        running = np.full(many, self.stream.workers)
        waits = np.full(many, self.stream.backlog)
        each = np.arange(many)
        for step in range(steps):
            kept = self._after(step, waits[:, None, None], stop=False)
            stopped = self._after(step, waits[:, None, None], stop=True)
            keep = self._total(step, kept, ahead[step + 1])[:, :, 0]
            change = (self._total(step, stopped, ahead[step + 1]) + self.typical * self.change_s)[:, :, 0]
            own = self.counts[None, :] == running[:, None]
            chosen = np.argmin(np.where(own, keep, change), axis=1)
            waits = np.where(own[each, chosen], kept[each, chosen, 0], stopped[each, chosen, 0])
            running = plans[:, step] = self.counts[chosen]
        return plans

    def _after(self, step: int, backlog: Floats, *, stop: bool) -> Floats:
        """What waits after a step with each count, (..., counts, backlogs)."""
        stream, step_s = self.stream, self.stream.step_s
        served = self.rates * (step_s - (min(stream.restart_s, step_s) if stop else 0.0))
        waiting_s = float(np.clip(stream.lead_s - step * step_s, 0.0, step_s))
        if waiting_s > 0:
            share = waiting_s / step_s
            limited = share * np.minimum(served, self.now * step_s) + (1 - share) * served
            served = np.where(self.counts > stream.workers, limited, served)
        after: Floats = np.maximum(0.0, backlog + stream.demand[step] * step_s - served[:, None])
        return after

    def _total(self, step: int, after: Floats, ahead: Floats) -> Floats:
        """Cost of a step that leaves `after` waiting, and of all that follow, (weights, counts, backlogs)."""
        slos = after / self.coming[step] / self.stream.lag_slo_s
        cost = self.counts[:, None] + self.typical * (self.lag * slos + self.violation * (slos > 1))
        place = np.clip(np.searchsorted(self.grid, after, side="right") - 1, 0, len(self.grid) - 2)
        low, high = self.grid[place], self.grid[place + 1]
        share = np.minimum((after - low) / (high - low), 1.0)
        rows = np.arange(len(self.counts))[:, None] * len(self.grid) + place
        if after.ndim == 2:  # the same backlogs for all weights
            each = ahead.reshape(len(self.lag), -1)
            low_ahead, high_ahead = each[:, rows], each[:, rows + 1]
        else:
            rows = rows + np.arange(len(self.lag))[:, None, None] * ahead[0].size
            low_ahead, high_ahead = ahead.reshape(-1)[rows], ahead.reshape(-1)[rows + 1]
        total: Floats = cost * self.stream.step_s + (1 - share) * low_ahead + share * high_ahead
        return total

    def _after_the_last(self) -> Floats:
        """What waits at the end must still be trained, at the best rate there is."""
        drain_s = self.grid / max(float(self.rates.max()), 1e-9)
        best = float(self.counts[int(np.argmax(self.rates))])
        return np.broadcast_to(best * drain_s, (len(self.lag), len(self.counts), len(self.grid)))
