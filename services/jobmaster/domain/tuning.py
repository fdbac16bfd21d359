"""Plan, execute, measure: when a job's speed may be measured, and whether a change of its plan was for the better.

A change is judged by what the job does afterwards, never by what was predicted: one that made it slower is taken back.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from services.jobmaster.domain.job import RolePlan, Trial
from services.jobmaster.domain.limits import Limits

MAX_POINTS = 4096


@dataclass(slots=True)
class SteadyRate:
    """Samples per second over a window in which nothing changed, and before which nothing did for a while."""

    since: float | None = None
    """Since when nothing has changed; None: something is changing."""
    _points: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=MAX_POINTS))

    def hear(self, now: float, samples: int, *, is_steady: bool, limits: Limits) -> None:
        """Once per look. What is heard while things change, or shortly after, says nothing."""
        if not is_steady or (self._points and samples < self._points[-1][1]):
            self.since = None
            self._points.clear()
            return
        if self.since is None:
            self.since = now
        if now - self.since < limits.plan_settle_s:
            return
        self._points.append((now, samples))
        while len(self._points) > 2 and self._points[1][0] <= now - limits.plan_window_s:
            self._points.popleft()

    def per_s(self, *, limits: Limits) -> float | None:
        """None until a whole window lies behind."""
        if len(self._points) < 2:
            return None
        (began, before), (ended, after) = self._points[0], self._points[-1]
        return (after - before) / (ended - began) if ended - began >= limits.plan_window_s else None


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
