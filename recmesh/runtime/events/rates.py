"""Rates of many series as few events, each within what the bus carries."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recmesh.runtime.events import catalog
from recmesh.runtime.events.types import Event

MAX_SERIES = 500
MAX_POINTS = 5_000
"""Of one event: with the longest names (200 characters) it stays under half of NATS' megabyte."""
Rates = Mapping[str, Sequence[tuple[float, float]]]


def rates_events(measurer: str, step_s: float, rates: Rates) -> Iterator[Event[Any]]:
    """`rates.observed` of all series that have points; `measurer` keeps the order of its own events."""
    batch: list[catalog.SeriesRates] = []
    room = MAX_POINTS
    for series, points in rates.items():
        for first in range(0, len(points), MAX_POINTS):
            part = list(points[first : first + MAX_POINTS])
            if len(batch) == MAX_SERIES or len(part) > room:
                yield _event(measurer, step_s, batch)
                batch, room = [], MAX_POINTS
            batch.append(catalog.SeriesRates(series=series, points=part))
            room -= len(part)
    if batch:
        yield _event(measurer, step_s, batch)


def _event(measurer: str, step_s: float, batch: list[catalog.SeriesRates]) -> Event[Any]:
    return Event(catalog.RATES_OBSERVED, measurer, catalog.RatesObserved(step_s=step_s, series=batch))
