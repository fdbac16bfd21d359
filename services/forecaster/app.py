"""Use cases of forecaster: load, compute, tell."""

import asyncio
import difflib
import math
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Protocol

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import (
    FailedPrecondition,
    InvalidArgument,
    MeshError,
    NotFound,
    ResourceExhausted,
    Violation,
)
from recmesh.runtime.telemetry import Metrics, get_logger
from services.forecaster.domain.budget import Worth, next_to_refine
from services.forecaster.domain.counters import rates_of_counter
from services.forecaster.domain.fitting import Asked, Refined
from services.forecaster.domain.forecast import MAX_HORIZON, Ask, Forecast, Predicted, answer, checked_ask
from services.forecaster.domain.history import History
from services.forecaster.domain.scoring import PastError, Scored, past_errors, promises
from services.forecaster.domain.season import Season, season_for
from services.forecaster.domain.series import MAX_AHEAD_S, Grid, Point, SeriesInfo, checked, main_step
from services.forecaster.domain.tiers import Stored, Tier, grid_of
from services.forecaster.gauges import Gauges
from services.forecaster.store import Grouped, Observation, Promises, Recent, SqlStore, coarsen

COUNTER_GAP_STEPS = 5
"""A counter that was not read for longer tells no rates of that time."""
SERIES_LIMIT, HISTORY_LIMIT, SCORED_LIMIT = 10_000, 100_000, 10_000
MAX_WATCHED = 2_000
SHOWN_S = (60.0, 300.0, 900.0, 3600.0)
LATE_STEPS = 6
"""So many steps ago a rate may have been measured last while gauges still look as far as they should."""
RECENT_S = 600.0
"""Forecasts from a moment longer ago read their history for themselves."""
AT_ONCE = 4
"""Watched series that are forecast at the same time."""
ERRORS_S = 300.0
"""How long past errors are told without a look; those that this process scored are new at once."""
WANTED_S = 900.0
"""After somebody last asked to scale by a series."""

_log = get_logger(__name__)
_metrics = Metrics("forecaster")
_values = _metrics.counter("values", "Rates that were stored")
_refused = _metrics.counter("series_refused", "Batches of rates that are wrong, or of series that would be too many")
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
        self, store: SqlStore, models: Models, *, clock: Clock, updated: Callable[[Forecast], Awaitable[None]],
        gauges: Gauges | None = None, shown_s: Sequence[float] = SHOWN_S, season_s: float = 0.0,
    ) -> None:
        """`shown_s`: how far ahead the gauges of watched series look; `season_s`: what rates usually repeat after."""
        self._store, self._models, self._clock, self._updated = store, models, clock, updated
        self._writes, self._promises, self._recent = Grouped(store), Promises(store), Recent(store)
        self._errors: OrderedDict[str, tuple[float, list[PastError]]] = OrderedDict()
        self._shown_s, self._season_s = tuple(shown_s), season_s
        self._wanted: OrderedDict[str, float] = OrderedDict()
        self.gauges = gauges or Gauges()
        """What Prometheus sees."""
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
        try:
            found = checked(series, step_s, points, now=self._clock.now(), snap=not counter)
        except InvalidArgument:
            _refused.inc()
            raise
        if counter:
            found = rates_of_counter(found, step_s=step_s, max_gap_s=COUNTER_GAP_STEPS * step_s)
        (stored,) = await self._writes.put([Observation(series, step_s, found)])
        if isinstance(stored, ResourceExhausted):
            _refused.inc()
            raise stored
        if found:
            self._recent.stored(series, found[0].at)
        self._stored(stored)
        return stored

    async def observe_many(self, step_s: float, rates: Mapping[str, Sequence[Point]]) -> int:
        """The same of many series; of those that are refused the others know nothing.

        InvalidArgument: none of them can be kept.
        """
        taken: list[Observation] = []
        wrong: list[InvalidArgument] = []
        refused: list[str] = []
        now = self._clock.now()
        for series, points in rates.items():
            try:
                taken.append(Observation(series, step_s, checked(series, step_s, points, now=now)))
            except InvalidArgument as error:
                wrong.append(error)
                refused.append(f"{series!r}: {'; '.join(map(str, error.violations))}")
        if wrong and not taken:
            _refused.inc(len(wrong))
            raise wrong[0]
        told = await self._writes.put(taken)
        for each in taken:
            if each.points:
                self._recent.stored(each.series, each.points[0].at)
        refused += [each.message for each in told if isinstance(each, ResourceExhausted)]
        if refused:
            _refused.inc(len(refused))
            _log.warning("rates of %d series are not kept: %s", len(refused), refused[0])
        stored = sum(each for each in told if isinstance(each, int))
        self._stored(stored)
        return stored

    def _stored(self, count: int) -> None:
        self._counts["values"] += count
        _values.inc(count)

    def counts(self) -> dict[str, int]:
        """What was done since the start."""
        return dict(self._counts)

    async def forecast(self, ask: Ask) -> Forecast:
        """The next rates of a series, from its end or from `now` on."""
        started = self._clock.monotonic()
        try:
            made = await self._forecast(checked_ask(ask))
        except Exception:
            self._counts["forecasts_failed"] += 1
            raise
        _seconds.observe(self._clock.monotonic() - started)
        _error.labels(made.model).observe(made.error_wape)
        self._counts["forecasts"] += 1
        self.made.append(made)
        return made

    async def _forecast(self, ask: Ask) -> Forecast:
        grid = await self._grid(ask)
        step_s = grid.step_s
        skipped = max(0, math.floor((ask.now - grid.end) / step_s + 1e-9)) if ask.now else 0
        if skipped + ask.horizon > MAX_HORIZON:
            raise FailedPrecondition(
                f"the history of {ask.series!r} ends {skipped} steps before now",
                reason="STALE_HISTORY",
            )
        season = await self._season(grid, ask)
        key = f"{ask.series} {step_s:g} {ask.season_s:g}"
        predicted = await self._models.predict(Asked(key, _history(grid, season), skipped + ask.horizon, ask.level))
        if not ask.now or abs(ask.now - self._clock.now()) <= step_s:      # others ask of the past
            self._note_worth(
                key, replace(ask, step_s=step_s), float(grid.values.mean()), predicted.error, skipped + ask.horizon
            )
        return answer(ask, grid, predicted, season, skipped=skipped, made=self._clock.now())

    async def _grid(self, ask: Ask) -> Grid:
        """What is known before `now`, on the asked step or the series' own."""
        own_step_s = await self._own_step(ask)
        step_s = ask.step_s or own_step_s
        grid = await asyncio.to_thread(self._read, ask.series, own_step_s, step_s, ask.now)
        if not len(grid.values):
            before = f"before {ask.now:.0f}" if ask.now else "yet"
            raise FailedPrecondition(
                f"series {ask.series!r} has no whole step of {step_s:g} s {before}", reason="NO_HISTORY"
            )
        return grid

    def _read(self, series: str, own_step_s: float, step_s: float, now: float) -> Grid:
        within_s = HISTORY_LIMIT * step_s
        if now and now < self._clock.now() - RECENT_S:
            rows = self._store.rows(series, own_step_s, until=now, limit=HISTORY_LIMIT, within_s=within_s)
        else:
            rows = self._recent.rows(series, own_step_s, within_s=within_s, limit=HISTORY_LIMIT)
        return grid_of(rows, step_s, now=now, limit=HISTORY_LIMIT)

    async def _season(self, grid: Grid, ask: Ask) -> Season:
        """In a thread: of a series without a day it is a long look."""
        return await asyncio.to_thread(
            season_for, grid.values, step_s=grid.step_s, wanted_s=ask.season_s, usual_s=self._season_s
        )

    def _note_worth(self, key: str, ask: Ask, traffic: float, error: float, ahead: int) -> None:
        _, before = self._worth.pop(key, (ask, Worth(key, traffic, error, asked=0)))
        self._worth[key] = ask, before.was_asked(traffic=traffic, error=error, ahead=ahead)
        while len(self._worth) > SERIES_LIMIT:
            self._worth.pop(next(iter(self._worth)))

    async def refine(self) -> float:
        """Try dear models for the series where that pays most. Returns the CPU seconds spent; 0: none pays.

        A trial that failed has spent its time, too: one core at most works on it.
        """
        now = self._clock.now()
        chosen = next_to_refine((worth for _, worth in self._worth.values()), now=now)
        if chosen is None:
            return 0.0
        ask, worth = self._worth[chosen.key]
        try:
            grid = await self._grid(replace(ask, now=0.0))
        except (NotFound, FailedPrecondition):
            self._worth.pop(chosen.key, None)
            return 0.0
        season = await self._season(grid, ask)
        began = self._clock.monotonic()
        try:
            asked = Asked(chosen.key, _history(grid, season), min(worth.horizon, MAX_HORIZON), ask.level)
            refined = await self._models.refine(asked)
        except MeshError as error:
            spent_s = self._clock.monotonic() - began
            _log.warning("dear models for %s brought nothing in %.0f s: %s", ask.series, spent_s, error.message)
            self._tried(chosen.key, 0.0, spent_s, now)
            return spent_s
        self._tried(chosen.key, refined.gain, refined.seconds, now)
        self._counts["refined"] += 1
        return refined.seconds

    def _tried(self, key: str, gain: float, seconds: float, now: float) -> None:
        """Noted of the series, unless it has gone meanwhile."""
        if key in self._worth:
            ask, worth = self._worth[key]
            self._worth[key] = ask, worth.found(gain, seconds, now)

    async def step_of(self, series: str) -> float:
        """The one that it is mostly measured on; NotFound names what was probably meant."""
        return await self._own_step(Ask(series, horizon=1))

    async def _own_step(self, ask: Ask) -> float:
        """The stored step to start from: the coarsest that divides the asked one; without one, the main one."""
        steps = await asyncio.to_thread(self._store.steps, ask.series)
        if not steps:
            names = await asyncio.to_thread(self._store.names)
            near = difflib.get_close_matches(ask.series, names, n=5, cutoff=0.5)
            hint = f"; did you mean {', '.join(near)}?" if near else f"; {len(names)} others are known"
            raise NotFound(f"series {ask.series!r} is unknown{hint}", metadata={"near": ",".join(near)})
        if not ask.step_s:
            if len(steps) == 1:
                return steps[0]
            until = ask.now or self._clock.now() + MAX_AHEAD_S
            covered = await asyncio.to_thread(self._store.covered, ask.series, until=until)
            return main_step(covered) or steps[0]
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

    async def history(
        self, series: str, *, since: float = 0.0, until: float = 0.0, step_s: float = 0.0, limit: int = 0
    ) -> tuple[float, list[Stored]]:
        """A series' step, and the newest `limit` of its values in [since, until).

        As they are kept: newer ones on the series' own step, older ones as means of coarser steps; with `step_s`, a
        multiple of the own one, all on that.
        """
        own_step_s = await self._own_step(Ask(series, horizon=1, step_s=step_s))
        most = min(limit or HISTORY_LIMIT, HISTORY_LIMIT)
        if not step_s:
            rows = await asyncio.to_thread(
                self._store.stored, series, own_step_s, since=since, until=until, limit=most
            )
            return own_step_s, rows
        points = await asyncio.to_thread(
            self._store.points, series, own_step_s, since=since, until=until, limit=most, on=step_s
        )
        return step_s, [Stored(point.at, point.value, step_s) for point in points]

    def wanted(self, series: str) -> None:
        """Somebody scales by this series: it is watched for a while, as if the settings said so."""
        self._wanted[series] = self._clock.monotonic()
        self._wanted.move_to_end(series)
        while len(self._wanted) > MAX_WATCHED:
            self._wanted.popitem(last=False)

    async def watched(self, patterns: Sequence[str]) -> list[str]:
        """Names of the settings, with `*` and `?` for any characters, and those that somebody scales by."""
        since = self._clock.monotonic() - WANTED_S
        found = dict.fromkeys(name for name in patterns if not _is_pattern(name))
        found.update(dict.fromkeys(name for name, at in self._wanted.items() if at >= since))
        if any(map(_is_pattern, patterns)):
            known = await asyncio.to_thread(self._store.names)
            found.update(dict.fromkeys(name for name in known if any(fnmatchcase(name, each) for each in patterns)))
        if len(found) > MAX_WATCHED:
            _log.warning("%d series are to be watched; the first %d are", len(found), MAX_WATCHED)
        return list(found)[:MAX_WATCHED]

    async def watch(self, patterns: Sequence[str], *, horizon: int) -> None:
        """Forecast the series that someone waits for, tell, and score what was said before; one that cannot be
        forecast now is passed over."""
        waiting = iter(await self.watched(patterns))

        async def some() -> None:
            for name in waiting:
                await self._watch(name, horizon)

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(some())
        self.gauges.expire(before=self._clock.monotonic() - WANTED_S)

    async def _watch(self, name: str, horizon: int) -> None:
        try:
            made = await self.forecast(Ask(name, horizon=await self._watched_horizon(name, horizon)))
            await self._updated(made)
            self._show(made, await self._score(made))
        except NotFound:
            return
        except MeshError as error:
            _log.info("%s is watched, and cannot be forecast now: %s", name, error.message)
        except Exception:       # whatever it is, the other series wait for their forecasts
            _log.exception("%s is watched, and its forecast broke", name)

    async def _watched_horizon(self, name: str, least: int) -> int:
        """So many steps that gauges reach as far as they should, also some steps after the last rate."""
        needed = math.ceil(max(self._shown_s, default=0.0) / await self.step_of(name)) + LATE_STEPS
        return min(max(least, needed), MAX_HORIZON)

    def _show(self, made: Forecast, past: Sequence[PastError]) -> None:
        at = self._clock.monotonic()
        end = made.points[0].at if made.points else made.made
        self.gauges.expected(made, self._shown_s, now=max(end, self._clock.now()), at=at)
        self.gauges.errors(made.series, past, at=at)

    async def _score(self, made: Forecast) -> list[PastError]:
        own_step_s = await self.step_of(made.series)
        if made.points:
            await asyncio.to_thread(self._promises.settle, made.series, own_step_s, end=made.points[0].at)
        await asyncio.to_thread(self._promises.keep, made.series, own_step_s, promises(made))
        self._errors.pop(made.series, None)
        return await self.past_errors(made.series)

    async def scored(self, series: str, *, limit: int = SCORED_LIMIT) -> list[Scored]:
        """The newest promises of a watched series whose truth has come, oldest first; NotFound when it is unknown."""
        own_step_s = await self.step_of(series)
        return await asyncio.to_thread(self._promises.scored, series, own_step_s, limit=min(limit, SCORED_LIMIT))

    async def past_errors(self, series: str) -> list[PastError]:
        """How wrong forecasts of a watched series were, by step and lead; none before the first truth has come."""
        now, known = self._clock.monotonic(), self._errors.get(series)
        if known is not None and now - known[0] <= ERRORS_S:
            return known[1]
        found = await asyncio.to_thread(past_errors, await self.scored(series))
        self._errors[series] = now, found
        self._errors.move_to_end(series)
        while len(self._errors) > MAX_WATCHED:
            self._errors.popitem(last=False)
        return found

    async def forget(
        self, *, older_than_s: float, points_per_series: int, idle_s: float = math.inf, tiers: Sequence[Tier] = ()
    ) -> int:
        """Keep the store bounded: means of old values first, then what is too old goes; returns how many rows went."""
        now = self._clock.now()
        replaced = await asyncio.to_thread(coarsen, self._store, tiers, now=now) if tiers else 0
        return replaced + await asyncio.to_thread(
            self._store.forget, before=now - older_than_s, points_per_series=points_per_series, idle_before=now - idle_s
        )


def _is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def _history(grid: Grid, season: Season) -> History:
    return History(grid.values, round(grid.start / grid.step_s), grid.step_s, season.all, grid.unseen)


def _divides(step_s: float, into_s: float) -> bool:
    times = into_s / step_s
    return times > 1 - 1e-9 and abs(times - round(times)) < 1e-9 * times
