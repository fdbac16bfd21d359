"""Plan, execute, measure: when a job's speed may be measured, and whether a change of its plan was for the better.

A change is judged by what the job does afterwards, never by what was predicted: one that made it slower is taken back.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.jobmaster.domain.job import RolePlan, Trial
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.vitals import Beat

MAX_POINTS = 4096


@dataclass(slots=True)
class SteadyRate:
    """Samples per second over a window in which nothing changed, and before which nothing did for a while.

    Each worker's own count is what is measured, between two of its heartbeats: what shardsvc knows of a job's progress
    comes some seconds late and a lease at a time.
    """

    since: float | None = None
    """Since when nothing has changed; None: something is changing."""
    _points: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    """By incarnation of a worker: when it was heard, and what it had trained."""

    def hear(self, now: float, workers: Sequence[Beat], *, is_steady: bool, limits: Limits) -> None:
        """Once per look. What is heard while things change, or shortly after, says nothing."""
        heard = {beat.incarnation: beat for beat in workers}
        is_other = self.since is not None and (heard.keys() != self._points.keys() or self._has_gone_back(heard))
        if not is_steady or is_other:
            self.since = None
            self._points.clear()
            return
        if self.since is None:
            self.since = now
            self._points = {name: deque(maxlen=MAX_POINTS) for name in heard}
        for name, points in self._points.items():
            beat = heard[name]
            if beat.at < self.since + limits.plan_settle_s or (points and beat.at <= points[-1][0]):
                continue
            points.append((beat.at, beat.samples))
            while len(points) > 2 and points[1][0] <= points[-1][0] - limits.plan_window_s:
                points.popleft()

    def _has_gone_back(self, heard: Mapping[str, Beat]) -> bool:
        return any(points and heard[name].samples < points[-1][1] for name, points in self._points.items())

    def per_s(self, *, limits: Limits) -> float | None:
        """Of all workers together; None until a whole window of each lies behind."""
        if not self._points or any(len(points) < 2 for points in self._points.values()):
            return None
        spans = [(points[0], points[-1]) for points in self._points.values()]
        if any(after[0] - before[0] < limits.plan_window_s for before, after in spans):
            return None
        return sum((after[1] - before[1]) / (after[0] - before[0]) for before, after in spans)


def overhead_s(trial: Trial, *, now: float, samples: int) -> float:
    """Seconds of training at the rate of before that the change has cost from its beginning until now."""
    lost_s = now - trial.began - (samples - trial.samples) / trial.rate_before if trial.rate_before > 0 else 0.0
    return max(0.0, lost_s)


def fault_of(trial: Trial, rate: float, *, limits: Limits) -> str:
    """Why the change is to be taken back; empty: it stays. A smaller plan may cost what it said it would."""
    promised = min(trial.rate_before, trial.rate_expected or trial.rate_before)
    least = promised * (1.0 - limits.plan_tolerance)
    if rate >= least:
        return ""
    return f"{rate:,.0f} samples/s, {trial.rate_before:,.0f} before and at least {least:,.0f} wanted"


def differences(before: Mapping[str, RolePlan], after: Mapping[str, RolePlan]) -> str:
    """What a change of plan changes, for people: `worker 1 → 3; ps 1 → 2, 0.5 → 1 cores`."""
    parts = []
    for role in sorted({*before, *after}, reverse=True):
        old, new = before.get(role), after.get(role)
        if old is None or new is None or old == new:
            continue
        told = []
        if old.replicas != new.replicas:
            told.append(f"{old.replicas} → {new.replicas}")
        if old.cpu != new.cpu:
            told.append(f"{old.cpu:g} → {new.cpu:g} cores")
        if old.memory_bytes != new.memory_bytes:
            told.append(f"{old.memory_bytes >> 20:,} → {new.memory_bytes >> 20:,} MiB")
        if told:
            parts.append(f"{role} {', '.join(told)}")
    return "; ".join(parts)
