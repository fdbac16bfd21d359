"""A forecaster whose models are a function: rates in SQLite, all else as in the service."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from recmesh.runtime.errors import FailedPrecondition
from services.forecaster.app import App
from services.forecaster.domain.forecast import Ask, Forecast, ForecastPoint
from services.forecaster.domain.series import Point
from services.forecaster.store import SqlStore


class SetClock:
    """Stands still until it is set."""

    def __init__(self, at: float) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, delay_s: float) -> None:
        self.at += delay_s


class KnownFuture(App):
    """Forecasts are `mean(moment)`, with an interval of a tenth on each side."""

    def __init__(
        self, folder: Path, clock: SetClock, mean: Callable[[float], float], *, own_step_s: float = 60.0
    ) -> None:
        self.store = SqlStore(f"sqlite:///{folder}/forecaster.sqlite")
        self.store.open()
        self.told: list[Forecast] = []
        self.asks: list[Ask] = []
        self.mean, self.own_step_s, self.fails = mean, own_step_s, False
        models: Any = None      # never asked

        async def updated(made: Forecast) -> None:
            self.told.append(made)

        super().__init__(self.store, models, clock=clock, updated=updated)
        self.clock = clock

    def measured(self, series: str, *, steps: int = 10, until: float | None = None) -> None:
        """The last steps up to now, as the mean has them."""
        end = self.clock.at if until is None else until
        first = end // self.own_step_s - steps
        points = [Point((first + n) * self.own_step_s, self.mean((first + n) * self.own_step_s)) for n in range(steps)]
        self.store.put(series, self.own_step_s, points)

    async def _forecast(self, ask: Ask) -> Forecast:
        self.asks.append(ask)
        own_step_s = await self._own_step(ask)
        step_s = ask.step_s or own_step_s
        known = self.store.points(ask.series, own_step_s, until=ask.now)
        if self.fails or not known:
            raise FailedPrecondition("no model answers", reason="NO_HISTORY")
        start = ask.now // step_s * step_s if ask.now else known[-1].at + own_step_s
        points = []
        for n in range(ask.horizon):
            mean = self.mean(start + n * step_s)
            points.append(ForecastPoint(start + n * step_s, mean, 0.9 * mean, 1.1 * mean))
        return Forecast(
            series=ask.series, step_s=step_s, points=tuple(points), model="Known", season_s=0.0, level=ask.level,
            history=len(known), error_wape=0.0, note="", made=self.clock.now(),
        )  # fmt: skip
