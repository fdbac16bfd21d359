"""The ops page of forecaster: series, what they will be, and how wrong that was before; figures."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import NotFound
from recmesh.runtime.ops import Cell, Chart, Log, OpsServer, Page, Table, Tile, Tiles, Tone, text
from recmesh.runtime.ops.panels import Points, Value
from recmesh.runtime.readiness import Readiness
from services.forecaster.app import App
from services.forecaster.config import ForecasterSettings
from services.forecaster.domain.forecast import Forecast
from services.forecaster.scaling import Scaler

SHOWN = 100
CHART_STEPS = 300
GOOD_WAPE, BAD_WAPE = 0.1, 0.3
"""Where colours change: MATH §5 names no bound; a tenth is what good seasonal series reach."""


def release() -> str:
    """recmesh's version."""
    try:
        return version("recmesh")
    except PackageNotFoundError:
        return "0"


class View:
    """What the page shows; it asks the database only while someone looks."""

    def __init__(self, app: App, scaler: Scaler, *, clock: Clock) -> None:
        self._app, self._scaler, self._clock = app, scaler, clock

    def page(self) -> Page:
        """What a person sees."""
        return Page(
            "forecaster", subtitle="traffic rates and what they will be", refresh_s=2.0,
            panels=[
                Tiles("Now", self._tiles),
                Chart("History, forecast and interval of the newest", self._chart, unit="/s", wide=True),
                Table(
                    "Series", ["series", "step", "values", "last at", "last value", "age"], self._series,
                    empty="no rate was heard yet",
                ),
                Table(
                    "Forecasts",
                    ["made", "series", "model", "season", "history", "steps", "level", "error before", "note"],
                    self._forecasts, empty="nobody has asked yet",
                ),
                Log("Log"),
            ],
        )  # fmt: skip

    def figures(self) -> Mapping[str, Any]:
        """For $SRV.STATS."""
        return self._app.counts()

    def _tiles(self) -> list[Tile]:
        counts = self._app.counts()
        failed = counts["forecasts_failed"]
        return [
            Tile("values stored", text.count(counts["values"]), note="since the start"),
            Tile("forecasts", counts["forecasts"], note="since the start"),
            Tile("refused or failed", failed, tone=Tone.WARN if failed else Tone.PLAIN),
        ]

    async def _chart(self) -> Mapping[str, Points]:
        """The newest forecast with its history; without one, the series that was heard last."""
        if self._app.made:
            newest = self._app.made[-1]
            since = newest.made - CHART_STEPS * newest.step_s
            return {newest.series: await self._history(newest.series, since), **_lines(newest)}
        found = await self._app.series(limit=SHOWN)
        if not found:
            return {}
        heard = max(found, key=lambda each: each.last)
        return {heard.series: await self._history(heard.series, heard.last - CHART_STEPS * heard.step_s)}

    async def _history(self, series: str, since: float) -> Points:
        try:
            _, points = await self._app.history(series, since=since)
        except NotFound:  # it was forgotten meanwhile
            return []
        return [(point.at, point.value) for point in points[-10 * CHART_STEPS :]]

    async def _series(self) -> Iterable[Sequence[Value]]:
        now = self._clock.now()
        return [
            [
                each.series, text.duration(each.step_s), text.count(each.points), _moment(each.last),
                f"{each.last_value:.4g}/s", text.duration(max(0.0, now - each.last)),
            ]
            for each in await self._app.series(limit=SHOWN)
        ]  # fmt: skip

    def _forecasts(self) -> Iterable[Sequence[Value]]:
        for each in reversed(self._app.made):
            tone = Tone.OK if each.error_wape <= GOOD_WAPE else Tone.WARN if each.error_wape <= BAD_WAPE else Tone.BAD
            yield [
                _moment(each.made), each.series, each.model,
                text.duration(each.season_s) if each.season_s else "none", each.history, len(each.points),
                f"{each.level:.0%}", Cell(f"{each.error_wape:.1%}", tone), each.note,
            ]  # fmt: skip


def _lines(made: Forecast) -> Mapping[str, Points]:
    sides: Mapping[str, str] = {"forecast": "mean", "low": "low", "high": "high"}
    return {name: [(point.at, getattr(point, side)) for point in made.points] for name, side in sides.items()}


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M:%S")


def server(settings: ForecasterSettings, view: View, ready: Readiness) -> OpsServer:
    """The component that serves the page, probes and metrics."""
    return OpsServer(
        "forecaster", settings.http_address, view.page(),
        readiness=ready.reason,
        token=settings.token, version=release(),
    )  # fmt: skip
