"""Replays one series of arrivals under one planner."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from recmesh.plugins.planning import Floats
from recmesh.plugins.streams import Schedule, StreamPlanner, StreamView, WorkerRates
from services.brain.domain.streams.answer import held
from services.brain.domain.streams.fallback import Band, Measured, corrected, decided, is_wrong, leaves_to_planner
from services.brain.domain.streams.kale import fewest
from services.brain.simulator.online.fifo import Fifo
from services.brain.simulator.online.forecasts import Forecasts

MINUTE_S = 60.0
PAST_STEPS = 288

ASKED_EVERY_S = MappingProxyType({"hpa": MINUTE_S})
"""Those that look at measurements alone are asked each minute, as near to their own period as the clock has."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Of the job and of how it is changed; the same for all planners."""

    rates: WorkerRates
    least: int = 1
    most: int = 40
    step_s: float = 300.0
    """Of the forecast and of plans; whole minutes, shorter than KALE's τ of 600."""
    plan_every_s: float = 300.0
    """Between two plans; whole steps. Until the next the schedule's own steps are taken."""
    restart_s: float = 600.0
    """For which a change stops training."""
    lead_s: float = 0.0
    """Until new workers stand ready; those there are train meanwhile."""
    lag_slo_s: float = 1200.0
    drain_s: float = 1200.0
    fallback: Band | None = None
    """None: what is measured corrects no plan."""


@dataclass(frozen=True, slots=True)
class Course:
    """What happened, minute by minute; each array is (minutes,)."""

    arriving: Floats
    """Samples per second."""
    workers: NDArray[np.int64]
    """That train, or would but for a restart, at the end of the minute."""
    worker_s: Floats
    """Held within the minute, those that start up or restart among them."""
    down_s: Floats
    lag_s: Floats
    """Age of the oldest waiting sample at the end of the minute."""
    backlog: Floats
    changes: int
    corrections: int
    """Minutes in which a measurement stood for the plan, or plans for which it stood for the forecast."""
    reasons: tuple[tuple[int, int, str], ...] = field(repr=False, default=())
    """(minute, count, why) of each change."""


@dataclass(slots=True)
class Adequate:
    """As many workers as the peak needs, all the time: the count with which nothing ever waits."""

    count: int
    name: str = "adequate"

    def schedule(self, stream: StreamView, rng: np.random.Generator) -> Schedule:
        """One count for all steps."""
        return held(stream, self.count, f"{self.count} are enough for the peak")


Tell = Callable[[int], None]


def _silent(_minutes: int) -> None:
    pass


def replay(
    arriving: Floats, forecasts: Forecasts, planner: StreamPlanner, setting: Setting, *, first: int, last: int,
    seed: int = 0, tell: Tell = _silent,
) -> Course:  # fmt: skip
    """Minutes `first` to `last` (not included) of the series; both whole steps. One change at a time. `tell` hears each
    hour how many minutes are done."""
    return _Replay(arriving, forecasts, planner, setting, first, np.random.default_rng(seed)).run(last, tell)


class _Replay:
    def __init__(
        self, arriving: Floats, forecasts: Forecasts, planner: StreamPlanner, setting: Setting, first: int,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self.arriving, self.forecasts, self.planner, self.setting, self.rng = arriving, forecasts, planner, setting, rng
        self.per_step = round(setting.step_s / MINUTE_S)
        self.every = round(ASKED_EVERY_S.get(planner.name, setting.plan_every_s) / MINUTE_S)
        self.first = first
        now = float(arriving[max(0, first - self.per_step) : max(first, 1)].mean())
        start = int(fewest(setting.rates, np.array([now]), least=setting.least, most=setting.most).workers[0])
        if isinstance(planner, Adequate):
            start = planner.count
        self.workers = self.target = start
        self.plan: Schedule | None = None
        self.planned_at = first
        self.changed_s = first * MINUTE_S - 3600.0
        self.lead_left_s = self.stop_left_s = 0.0
        self.fifo = Fifo()
        self.counts: list[int] = []
        self.rows: list[tuple[float, float, float, float]] = []
        self.changes: list[tuple[int, int, str]] = []
        self.measured_until_s, self.measured_count, self.corrections = -1.0, 0, 0
        band = setting.fallback
        self._told = band is not None and leaves_to_planner(self._view(first), band)
        """Measurements go to the planner, and overrule nothing."""

    def run(self, last: int, tell: Tell) -> Course:
        for minute in range(self.first, last):
            if minute % 60 == 0:
                tell(minute - self.first)
            if not self._changing:
                self._decide(minute)
            self._pass(minute)
        table = np.array(self.rows).reshape(-1, 4)
        return Course(
            self.arriving[self.first : last], np.array(self.counts), table[:, 0], table[:, 1], table[:, 2], table[:, 3],
            len(self.changes), self.corrections, tuple(self.changes),
        )  # fmt: skip

    @property
    def _changing(self) -> bool:
        return self.lead_left_s > 0 or self.stop_left_s > 0

    def _decide(self, minute: int) -> None:
        """Asks the planner where a step begins; a measurement may stand for its answer, or for its forecast."""
        due = self.plan is None or minute - self.planned_at >= self.every
        begins = (minute - self.first) % min(self.every, self.per_step) == 0
        if begins and (due or (self._told and self._is_wrong(minute))):
            self.plan, self.planned_at = self._planned(minute), minute
        assert self.plan is not None
        step = min((minute - self.planned_at) // self.per_step, len(self.plan.workers) - 1)
        count, why = self.plan.workers[step], self.plan.reasons[step]
        if self.setting.fallback is not None and not self._told and minute > self.first:
            count, why = self._corrected(minute, count, why)
        if count != self.workers:
            self._change(minute, count, why)

    def _planned(self, minute: int) -> Schedule:
        view, band = self._view(minute), self.setting.fallback
        if band is None or not self._told or minute == self.first:
            return self.planner.schedule(view, self.rng)
        self.corrections += is_wrong(view, self._measured(minute), band)
        return decided(self.planner, view, self._measured(minute), band, self.rng)

    def _measured(self, minute: int) -> Measured:
        return Measured(float(self.arriving[minute - 1]), self.fifo.lag_s)

    def _is_wrong(self, minute: int) -> bool:
        band = self.setting.fallback
        return band is not None and minute > self.first and is_wrong(self._view(minute), self._measured(minute), band)

    def _corrected(self, minute: int, planned: int, why: str) -> tuple[int, str]:
        band = self.setting.fallback
        assert band is not None
        stream, now_s = self._view(minute), minute * MINUTE_S
        found = corrected(stream, held(stream, planned, why), self._measured(minute), band)
        count, reason = found.workers[0], found.reasons[0]
        if count != planned:
            self.corrections += 1
        if count > planned:
            self.measured_until_s, self.measured_count = now_s + band.holds_s, count
        elif now_s < self.measured_until_s and self.measured_count > count:
            return self.measured_count, "a measurement holds"
        return count, reason

    def _change(self, minute: int, count: int, why: str) -> None:
        self.changes.append((minute, count, why))
        self.target, self.changed_s = count, minute * MINUTE_S
        self.lead_left_s = self.setting.lead_s if count > self.workers else 0.0
        self.stop_left_s = self.setting.restart_s

    def _pass(self, minute: int) -> None:
        """One minute, in spans of one state: workers on their way, stopped, training."""
        left_s, held_s, down_s = MINUTE_S, 0.0, 0.0
        arriving = float(self.arriving[minute])
        while left_s > 1e-9:
            if self.lead_left_s > 0:
                span_s, served, count = min(left_s, self.lead_left_s), self._rate(self.workers), self.target
                self.lead_left_s -= span_s
            elif self.stop_left_s > 0:
                self.workers = self.target
                span_s, served, count = min(left_s, self.stop_left_s), 0.0, self.target
                self.stop_left_s -= span_s
                down_s += span_s
            else:
                self.workers = self.target
                span_s, served, count = left_s, self._rate(self.workers), self.workers
            self.fifo.run(span_s, arriving=arriving, served=served)
            held_s += count * span_s
            left_s -= span_s
        self.counts.append(self.workers)
        self.rows.append((held_s, down_s, self.fifo.lag_s, self.fifo.backlog))

    def _rate(self, workers: int) -> float:
        return float(self.setting.rates(np.array([float(workers)]))[0])

    def _view(self, minute: int) -> StreamView:
        """What is known when a minute begins; forecasts of the step it lies in, from then on."""
        setting, now_s = self.setting, minute * MINUTE_S
        told = self.forecasts.at(minute // self.per_step)
        step_s = min(self.every, self.per_step) * MINUTE_S
        per = round(step_s / MINUTE_S)
        since = max(0, minute - PAST_STEPS * per)
        past = self.arriving[minute - (minute - since) // per * per : minute].reshape(-1, per).mean(axis=1)
        counts = np.full(len(past) * per, self.workers, dtype=np.float64)
        if self.counts:
            known = self.counts[-len(counts) :]
            counts[len(counts) - len(known) :] = known
        return StreamView(
            "online", now_s, step_s, told.upper, setting.rates, workers=self.workers, least=setting.least,
            most=setting.most, since_s=now_s - self.changed_s, backlog=self.fifo.backlog, drain_s=setting.drain_s,
            lag_slo_s=setting.lag_slo_s, restart_s=setting.restart_s, lead_s=setting.lead_s, past=past,
            past_workers=counts.reshape(-1, per)[:, -1], expected=told.mean, spread=told.spread,
        )  # fmt: skip
