"""Use cases of forecaster: load, compute, tell."""

import asyncio
import difflib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, MeshError, NotFound, Violation
from recmesh.runtime.telemetry import Metrics
from services.forecaster.domain.budget import Worth, next_to_refine
from services.forecaster.domain.counters import rates_of_counter
from services.forecaster.domain.fitting import Asked, History, Refined
from services.forecaster.domain.forecast import (
    MAX_HORIZON,
    MAX_LEVEL,
    MIN_LEVEL,
    Ask,
    Forecast,
    Predicted,
    answer,
)
from services.forecaster.domain.season import season_for
from services.forecaster.domain.series import Point, SeriesInfo, checked, regular
from services.forecaster.store import SqlStore

DEFAULT_HORIZON = 24
DEFAULT_LEVEL = 0.8
COUNTER_GAP_STEPS = 5
"""A counter that was not read for longer tells no rates of that time."""
SERIES_LIMIT, HISTORY_LIMIT = 10_000, 100_000

_metrics = Metrics("forecaster")
_values = _metrics.counter("values", "Rates that were stored")
_seconds = _metrics.histogram("forecast_seconds", "Time to make a forecast")
_error = _metrics.histogram(
    "backtest_wape",
    "Error of the chosen model over the last season, a share",
    labels=["model"],
    buckets=(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
)


class Models(Protocol):
    """Where predictions are computed."""

    async def predict(self, asked: Asked) -> Predicted:
        """The next values."""
        ...

    async def refine(self, asked: Asked) -> Refined:
        """Try dear models; what is better answers from then on."""
        ...


class App:
    """forecaster without its wires."""

    def __init__(
        self, store: SqlStore, models: Models, *, clock: Clock, updated: Callable[[Forecast], Awaitable[None]]
    ) -> None:
        self._store, self._models, self._clock, self._updated = store, models, clock, updated
        self.made: deque[Forecast] = deque(maxlen=100)
        """The newest forecasts, for the ops page."""
        self._counts = dict.fromkeys(("values", "forecasts", "forecasts_failed", "refined"), 0)
        self._worth: dict[str, tuple[Ask, Worth]] = {}
        """Series that were asked for, in the order of the last time, and what dear models may bring them."""

    async def observe(self, series: str, step_s: float, points: Sequence[Point], *, counter: bool = False) -> int:
        """Store rates; the same again replaces itself. Returns how many steps were stored.

        Of a `counter` the points are what it showed, and the steps that lie between them are stored: begin each
        observation with the last sample of the one before.
        """
        found = checked(series, step_s, points, snap=not counter)
        if counter:
            found = rates_of_counter(found, step_s=step_s, max_gap_s=COUNTER_GAP_STEPS * step_s)
        stored = await asyncio.to_thread(self._store.put, series, step_s, found)
        self._counts["values"] += stored
        _values.inc(stored)
        return stored

    def counts(self) -> dict[str, int]:
        """What was done since the start."""
        return dict(self._counts)

    async def forecast(self, ask: Ask) -> Forecast:
        """The next rates of a series, from its end or from `now` on."""
        started = self._clock.monotonic()
        try:
            made = await self._forecast(_checked_ask(ask))
        except MeshError:
            self._counts["forecasts_failed"] += 1
            raise
        _seconds.observe(self._clock.monotonic() - started)
        _error.labels(made.model).observe(made.error_wape)
        self._counts["forecasts"] += 1
        self.made.append(made)
        return made

    async def _forecast(self, ask: Ask) -> Forecast:
        own_step_s = await self._own_step(ask)
        step_s = ask.step_s or own_step_s
        points = await asyncio.to_thread(self._store.points, ask.series, own_step_s, until=ask.now, limit=HISTORY_LIMIT)
        if not points:
            raise FailedPrecondition(f"series {ask.series!r} has no values before {ask.now:.0f}", reason="NO_HISTORY")
        grid = regular(points, step_s=step_s, own_step_s=own_step_s)
        skipped = max(0, math.floor((ask.now - grid.end) / step_s + 1e-9)) if ask.now else 0
        if skipped + ask.horizon > MAX_HORIZON:
            raise FailedPrecondition(
                f"the history of {ask.series!r} ends {skipped} steps before now",
                reason="STALE_HISTORY",
            )
        season = season_for(grid.values, step_s=step_s, wanted_s=ask.season_s)
        history = History(grid.values, round(grid.start / step_s), step_s, season.all, grid.missing)
        key = f"{ask.series} {step_s:g} {ask.season_s:g}"
        predicted = await self._models.predict(Asked(key, history, skipped + ask.horizon, ask.level))
        if not ask.now:
            self._note_worth(key, replace(ask, step_s=step_s), float(grid.values.mean()), predicted.error)
        return answer(ask, grid, predicted, season, skipped=skipped, made=self._clock.now())

    def _note_worth(self, key: str, ask: Ask, traffic: float, error: float) -> None:
        _, before = self._worth.pop(key, (ask, Worth(key, traffic, error, asked=0)))
        self._worth[key] = ask, replace(before, traffic=traffic, error=error, asked=before.asked + 1)
        while len(self._worth) > SERIES_LIMIT:
            self._worth.pop(next(iter(self._worth)))

    async def refine(self) -> float:
        """Try dear models for the series where that pays most. Returns the CPU seconds spent; 0: none pays."""
        now = self._clock.now()
        chosen = next_to_refine((worth for _, worth in self._worth.values()), now=now)
        if chosen is None:
            return 0.0
        ask, worth = self._worth[chosen.key]
        points = await asyncio.to_thread(self._store.points, ask.series, await self._own_step(ask), limit=HISTORY_LIMIT)
        if not points:
            self._worth.pop(chosen.key, None)
            return 0.0
        grid = regular(points, step_s=ask.step_s, own_step_s=await self._own_step(ask))
        season = season_for(grid.values, step_s=ask.step_s, wanted_s=ask.season_s)
        history = History(grid.values, round(grid.start / ask.step_s), ask.step_s, season.all, grid.missing)
        try:
            refined = await self._models.refine(Asked(chosen.key, history, ask.horizon, ask.level))
        except MeshError:
            self._worth[chosen.key] = ask, worth.found(0.0, worth.seconds, now)
            raise
        self._worth[chosen.key] = ask, worth.found(refined.gain, refined.seconds, now)
        self._counts["refined"] += 1
        return refined.seconds

    async def _own_step(self, ask: Ask) -> float:
        """The stored step to start from: the coarsest that divides the asked one, else the finest."""
        steps = await asyncio.to_thread(self._store.steps, ask.series)
        if not steps:
            names = await asyncio.to_thread(self._store.names)
            near = difflib.get_close_matches(ask.series, names, n=5, cutoff=0.5)
            hint = f"; did you mean {', '.join(near)}?" if near else f"; {len(names)} others are known"
            raise NotFound(f"series {ask.series!r} is unknown{hint}", metadata={"near": ",".join(near)})
        if not ask.step_s:
            return steps[0]
        fitting = [step_s for step_s in steps if _divides(step_s, ask.step_s)]
        if not fitting:
            known = ", ".join(f"{step_s:g}" for step_s in steps)
            raise InvalidArgument(
                f"series {ask.series!r} cannot be forecast at this step",
                violations=[Violation("step_s", f"{ask.step_s:g} is not a multiple of its step ({known})")],
            )
        return fitting[-1]

    async def series(self, *, prefix: str = "", limit: int = 0) -> list[SeriesInfo]:
        """What is stored."""
        return await asyncio.to_thread(self._store.info, prefix=prefix, limit=min(limit or 100, SERIES_LIMIT))

    async def history(self, series: str, *, since: float = 0.0, until: float = 0.0) -> tuple[float, list[Point]]:
        """A series' step and its values in [since, until)."""
        step_s = await self._own_step(Ask(series, horizon=1))
        return step_s, await asyncio.to_thread(self._store.points, series, step_s, since=since, until=until)

    async def watch(self, names: Sequence[str], *, horizon: int) -> None:
        """Forecast the series that someone waits for, and tell; unknown ones are passed over."""
        for name in names:
            try:
                made = await self.forecast(Ask(name, horizon=horizon))
            except NotFound:
                continue
            await self._updated(made)

    async def forget(self, *, older_than_s: float, points_per_series: int) -> int:
        """Keep the store bounded; returns how many values went."""
        before = self._clock.now() - older_than_s
        return await asyncio.to_thread(self._store.forget, before=before, points_per_series=points_per_series)


def _divides(step_s: float, into_s: float) -> bool:
    times = into_s / step_s
    return times > 1 - 1e-9 and abs(times - round(times)) < 1e-9 * times


def _checked_ask(ask: Ask) -> Ask:
    filled = replace(ask, horizon=ask.horizon or DEFAULT_HORIZON, level=ask.level or DEFAULT_LEVEL)
    violations = []
    if not filled.series:
        violations.append(Violation("series", "is empty"))
    if not 1 <= filled.horizon <= MAX_HORIZON:
        violations.append(Violation("horizon", f"{filled.horizon} is not in 1..{MAX_HORIZON}"))
    if not MIN_LEVEL <= filled.level <= MAX_LEVEL:
        violations.append(Violation("level", f"{filled.level:g} is not in {MIN_LEVEL:g}..{MAX_LEVEL:g}"))
    for name in ("step_s", "now", "season_s"):
        value = getattr(filled, name)
        if not math.isfinite(value) or value < 0:
            violations.append(Violation(name, f"{value} is not a number from 0 up"))
    if violations:
        raise InvalidArgument("cannot forecast", violations=violations)
    return filled
