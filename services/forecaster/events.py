"""What forecaster hears and tells."""

from collections.abc import Iterable
from typing import Any

from recmesh.runtime.bus import Bus, Consumer
from recmesh.runtime.events import Event, catalog
from services.forecaster.app import App
from services.forecaster.domain.forecast import Forecast
from services.forecaster.domain.series import Point

DURABLE = "forecaster-rates"


def rates(bus: Bus, app: App) -> Consumer:
    """rate.observed and rates.observed, from anybody. Storing twice is storing once."""

    async def heard(event: Event[Any]) -> None:
        if event.type is catalog.RATE_OBSERVED:
            one: catalog.RateObserved = event.data
            await app.observe(one.series, one.step_s, _points(one.points), counter=one.counter)
        else:
            many: catalog.RatesObserved = event.data
            await app.observe_many(many.step_s, {each.series: _points(each.points) for each in many.series})

    return bus.consume(DURABLE, [catalog.RATE_OBSERVED, catalog.RATES_OBSERVED], heard)


def _points(pairs: Iterable[tuple[float, float]]) -> list[Point]:
    return [Point(at, value) for at, value in pairs]


class Updates:
    """forecast.updated"""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def __call__(self, made: Forecast) -> None:
        """Offer it to the bus; a newer one follows if this one is lost."""
        data = catalog.ForecastUpdated(
            series=made.series,
            model=made.model,
            step_s=made.step_s,
            start=made.points[0].at if made.points else made.made,
            horizon=len(made.points),
        )
        self._bus.offer(Event(catalog.FORECAST_UPDATED, made.series, data))
