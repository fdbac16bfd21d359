"""What a schedule would lead to, by the forecast: backlog and lag of each step, worker-seconds, changes, violations.

A change of the count stops training for `restart_s`; more workers than now are of use only after `lead_s`. Lag is the
age of the oldest sample that waits, here backlog over the rate at which samples come.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import StreamView


@dataclass(frozen=True, slots=True)
class Outlook:
    """Of one schedule; arrays are (steps,), at the end of each step."""

    backlog: Floats
    lag_s: Floats
    worker_s: float
    changes: int
    violation_s: float
    """How long lag is above the SLO."""

    @property
    def columns(self) -> tuple[float, float, float, float]:
        """What planners are compared by; the less the better: worker-seconds, accumulated lag, violations, changes."""
        return self.worker_s, float(self.lag_s.sum()), self.violation_s, float(self.changes)


def outlook(stream: StreamView, workers: NDArray[np.int64]) -> Outlook:
    """By the stream's demand, from its backlog and its running workers on."""
    steps = len(stream.demand)
    rates = stream.rates(workers.astype(np.float64))
    before = np.concatenate([[stream.workers], workers[:-1]])
    changed = before != workers
    stop_s = np.where(changed, min(stream.restart_s, stream.step_s), 0.0)
    served = rates * (stream.step_s - stop_s)
    if stream.lead_s > 0:
        served = np.minimum(served, _before_lead(stream, workers, served))
    backlog = np.empty(steps)
    waits = stream.backlog
    for step in range(steps):
        waits = max(0.0, waits + stream.demand[step] * stream.step_s - served[step])
        backlog[step] = waits
    lag_s = lag_of(stream, backlog)
    return Outlook(
        backlog,
        lag_s,
        float(workers.sum()) * stream.step_s,
        int(changed.sum()),
        float((lag_s > stream.lag_slo_s).sum()) * stream.step_s,
    )


def lag_of(stream: StreamView, backlog: Floats) -> Floats:
    """Seconds of arrivals that a backlog at the end of each step is, (steps, ...)."""
    coming = arrivals(stream)
    return backlog / coming.reshape((len(coming),) + (1,) * (backlog.ndim - 1))


def arrivals(stream: StreamView) -> Floats:
    """Samples per second that came lately, at each step: what a backlog consists of, above 0, (steps,)."""
    size = max(1, round(stream.lag_slo_s / stream.step_s))
    known = stream.past[-size:] if stream.past is not None else np.empty(0)
    series = np.concatenate([known, stream.demand])
    sums = np.concatenate([[0.0], np.cumsum(series)])
    ends = np.arange(len(known) + 1, len(series) + 1)
    starts = np.maximum(0, ends - size)
    mean = (sums[ends] - sums[starts]) / (ends - starts)
    floor: float = max(float(series.mean()) * 0.01, 1e-9)
    coming: Floats = np.maximum(mean, floor)
    return coming


def _before_lead(stream: StreamView, workers: NDArray[np.int64], served: Floats) -> Floats:
    """What a step can serve at most while workers that were asked for now are still on their way."""
    begins = np.arange(len(workers)) * stream.step_s
    waiting_s = np.clip(stream.lead_s - begins, 0.0, stream.step_s)
    now = float(stream.rates(np.array([float(stream.workers)]))[0])
    share = waiting_s / stream.step_s
    more = workers > stream.workers
    limited: Floats = np.where(more, share * np.minimum(served, now * stream.step_s) + (1 - share) * served, np.inf)
    return limited
