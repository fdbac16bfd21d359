"""What forecaster hears and tells."""

from typing import Any

from recmesh.runtime.bus import Bus, Consumer
from recmesh.runtime.events import Event, catalog
from services.forecaster.app import App
from services.forecaster.domain.forecast import Forecast
from services.forecaster.domain.series import Point

DURABLE = "forecaster-rates"


def rates(bus: Bus, app: App) -> Consumer:
    """rate.observed, from anybody. Storing twice is storing once."""

    async def heard(event: Event[Any]) -> None:
        data: catalog.RateObserved = event.data
        await app.observe(
            data.series, data.step_s, [Point(at, value) for at, value in data.points], counter=data.counter
        )

    return bus.consume(DURABLE, [catalog.RATE_OBSERVED], heard)


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
