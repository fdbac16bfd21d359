"""Answers to those who scale by forecasts: each ask is forecast once in a while, however many ask and however often."""

import asyncio
import functools
import math
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, MeshError, NotFound, ResourceExhausted
from recmesh.runtime.telemetry import Metrics, get_logger
from services.forecaster.app import App
from services.forecaster.domain.forecast import Ask
from services.forecaster.domain.scaling import FALLBACK_STEPS, Scaling, highest

PATIENCE_S = 2.0
"""For a forecast, before the rate that was measured last is the answer: one that is slow must not hold up KEDA's
others, and its next question finds the forecast made."""
OLDEST_S = 900.0
"""A rate that was measured longer ago (and longer than ten of its steps) says nothing about now."""
OLD_FORECAST_S = 300.0
"""So long a forecast answers while none newer can be made: replicas are not to follow how busy the forecaster is."""
MAX_ASKS = 10_000
MAX_UNDER_WAY = 16
"""Forecasts at once; the pool of models has one worker and a bounded queue that others use as well."""

_metrics = Metrics("forecaster")
_answers = _metrics.counter("scaling_answers", "External scalers' answers by source", labels=("source",))
_log = get_logger(__name__)
Key = tuple[str, float, float, float, bool]


@dataclass(frozen=True, slots=True)
class Answer:
    """The rate that replicas must bear."""

    rate: float
    source: str
    """forecast | last"""
    reason: str = ""
    """Why it is no forecast."""


@dataclass(slots=True)
class _Entry:
    task: asyncio.Task[Answer]
    ready: float = math.inf
    """When it was."""
    before: Answer | None = None
    """The forecast that it will take the place of, and when that was ready."""
    before_ready: float = -math.inf


class Scaler:
    """Also a component: when it stops, streams end."""

    name = "scaling"

    def __init__(
        self, app: App, *, clock: Clock, cache_s: float = 30.0, max_streams: int = 1_000, patience_s: float = PATIENCE_S
    ) -> None:
        self._app, self._clock, self._cache_s = app, clock, cache_s
        self._max_streams, self._patience_s = max_streams, patience_s
        self._asks: OrderedDict[Key, _Entry] = OrderedDict()
        self._turns = asyncio.Semaphore(MAX_UNDER_WAY)
        self._closing = asyncio.Event()
        self.streams = 0
        self.answers: OrderedDict[Key, tuple[Scaling, Answer]] = OrderedDict()
        """The newest of each ask, for the ops page."""

    async def start(self) -> None:
        """Nothing to do before somebody asks."""

    async def stop(self) -> None:
        """End all streams, and what is under way."""
        self._closing.set()
        under_way = [entry.task for entry in self._asks.values()]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def expected(self, ask: Scaling) -> Answer:
        """The largest rate from now until a replica that is asked for now has worked for the window.

        Without a forecast (too little history, models that do not answer in time) it is the largest of the rates that
        were measured last, with the reason; NotFound for an unknown series, FailedPrecondition where those are too
        old, or where the trigger wants no fallback. A new answer is made `cache_s` seconds after the last one was
        ready, and while it is not there the forecast before answers, for a few minutes.
        """
        self._app.wanted(ask.series)
        key = (ask.series, ask.lead_s, ask.window_s, ask.quantile, ask.falls_back)
        try:
            answer = await self._in_time(ask, self._entry(key, ask))
        except MeshError:
            _answers.labels("error").inc()
            raise
        _answers.labels(answer.source).inc()
        self._app.gauges.asked(ask.series, ask.ahead_s, ask.quantile, answer.rate, at=self._clock.monotonic())
        self.answers[key] = ask, answer
        self.answers.move_to_end(key)
        while len(self.answers) > MAX_ASKS:
            self.answers.popitem(last=False)
        return answer

    async def is_active(self, ask: Scaling) -> bool:
        """The expected rate is above the activation."""
        return (await self.expected(ask)).rate > ask.activation

    async def activity(self, ask: Scaling) -> AsyncGenerator[bool, None]:
        """Whether it is active: at once, then at each change, until the service stops.

        An error before the first answer is raised; later ones leave the last answer in force. ResourceExhausted when
        there are too many streams.
        """
        if self.streams >= self._max_streams:
            raise ResourceExhausted(f"{self.streams} streams are open", reason="TOO_MANY_STREAMS")
        self.streams += 1
        try:
            told: bool | None = None
            while not self._closing.is_set():
                try:
                    found = await self.is_active(ask)
                except InvalidArgument:
                    raise
                except MeshError as error:
                    if told is None:
                        raise
                    _log.info("%s: activity stays %s: %s", ask.series, told, error.message)
                    found = told
                if found != told:
                    told = found
                    yield found
                await self._pause()
        finally:
            self.streams -= 1

    async def held(self) -> AsyncGenerator[None, None]:
        """Once, and then nothing more until the service stops; a stream like those of `activity`."""
        if self.streams >= self._max_streams:
            raise ResourceExhausted(f"{self.streams} streams are open", reason="TOO_MANY_STREAMS")
        self.streams += 1
        try:
            yield
            await self._closing.wait()
        finally:
            self.streams -= 1

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._cache_s):
                await self._closing.wait()
        except TimeoutError:
            return

    def _entry(self, key: Key, ask: Scaling) -> _Entry:
        now, entry = self._clock.monotonic(), self._asks.get(key)
        if entry is None or (entry.task.done() and now - entry.ready >= self._cache_s):
            former = _forecast_of(entry)
            entry = self._asks[key] = _Entry(asyncio.create_task(self._forecast(ask), name="scaling-forecast"))
            if former is not None:
                entry.before, entry.before_ready = former
            entry.task.add_done_callback(functools.partial(self._is_ready, entry))
            while len(self._asks) > MAX_ASKS:
                _, oldest = self._asks.popitem(last=False)
                oldest.task.cancel()
        self._asks.move_to_end(key)
        return entry

    def _is_ready(self, entry: _Entry, task: asyncio.Task[Answer]) -> None:
        """Its age counts from now. Nobody may wait for it any more; asyncio would call its error forgotten."""
        entry.ready = self._clock.monotonic()
        if not task.cancelled():
            task.exception()

    async def _in_time(self, ask: Scaling, entry: _Entry) -> Answer:
        done, _ = await asyncio.wait([entry.task], timeout=self._patience_s)
        if entry.before is not None and self._clock.monotonic() - entry.before_ready <= OLD_FORECAST_S:
            if _forecast_of(entry) == (entry.before, entry.before_ready):      # there is no newer one
                return entry.before
        if not done:
            return await self._last(ask, f"no forecast within {self._patience_s:g} s")
        if entry.task.cancelled():
            raise ResourceExhausted("too many ask for forecasts", reason="BUSY")
        return entry.task.result()

    async def _forecast(self, ask: Scaling) -> Answer:
        try:
            async with self._turns:
                own_step_s = await self._app.step_of(ask.series)
                now, step_s = self._clock.now(), ask.step_s(own_step_s)
                horizon = int(ask.ahead_s // step_s) + 2
                made = await self._app.forecast(
                    Ask(ask.series, horizon=horizon, step_s=step_s, level=ask.level, now=now)
                )
        except (InvalidArgument, NotFound):
            raise
        except MeshError as error:
            return await self._last(ask, error.message)
        rate = highest(made, since=now, until=now + ask.ahead_s, quantile=ask.quantile)
        return Answer(rate, "forecast") if rate is not None else await self._last(ask, "the forecast ends before now")

    async def _last(self, ask: Scaling, reason: str) -> Answer:
        if not ask.falls_back:
            raise FailedPrecondition(f"{ask.series} has no forecast: {reason}", reason="NO_FORECAST")
        step_s, rows = await self._app.history(ask.series, limit=FALLBACK_STEPS)
        age_s = self._clock.now() - (rows[-1].at + rows[-1].step_s) if rows else float("inf")
        if age_s > max(OLDEST_S, 10 * step_s):
            raise FailedPrecondition(
                f"{ask.series} has no forecast ({reason}), and no rate was measured lately", reason="STALE_HISTORY"
            )
        _log.info("%s is scaled by what was measured last: %s", ask.series, reason)
        return Answer(max(row.value for row in rows), "last", reason)


def _forecast_of(entry: _Entry | None) -> tuple[Answer, float] | None:
    """The newest forecast that it knows of, and when it was ready."""
    if entry is None:
        return None
    task = entry.task
    if task.done() and not task.cancelled() and task.exception() is None and task.result().source == "forecast":
        return task.result(), entry.ready
    return (entry.before, entry.before_ready) if entry.before is not None else None
