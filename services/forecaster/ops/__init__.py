"""The ops page of forecaster: series, what they will be, how wrong that was before, and who scales by it; figures."""

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import quote

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError, NotFound
from recmesh.runtime.ops import Cell, Log, OpsServer, Page, Table, Tile, Tiles, Tone, text
from recmesh.runtime.ops.panels import Choice, Plots, Value
from recmesh.runtime.ops.plots import Axis, Plot
from recmesh.runtime.readiness import Readiness
from services.forecaster.app import App
from services.forecaster.config import ForecasterSettings
from services.forecaster.domain.forecast import Ask, Forecast
from services.forecaster.ops import plots
from services.forecaster.scaling import Scaler

SHOWN = 100
MEASURED_STEPS = 300
AHEAD_STEPS = 60
FORECAST_EVERY_S = 30.0
"""While somebody looks at a series."""
CHOSEN_LEAD = 4
"""What was said so many steps before is drawn beside what came; else the next lead below."""
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
        self._shown: tuple[str, float, Forecast | None, str] = ("", -math.inf, None, "")
        """The series that is looked at, when it was forecast for that, its forecast, or why there is none."""

    def page(self) -> Page:
        """What a person sees."""
        return Page(
            "forecaster", subtitle="traffic rates and what they will be", refresh_s=5.0, choices=("series",),
            panels=[
                Tiles("Now", self._tiles),
                Plots("A series: choose it below", self._plots, empty="no rate was heard yet"),
                Table(
                    "Series", ["series", "step", "values", "since", "last at", "last value", "age"], self._series,
                    empty="no rate was heard yet",
                ),
                Table(
                    "Scaled by forecasts", ["series", "ahead", "quantile", "expected", "from", "why"], self._scaled,
                    empty="no external scaler has asked yet",
                ),
                Table(
                    "Newest forecasts",
                    ["made", "series", "model", "season", "history", "steps", "level", "backtest", "note"],
                    self._forecasts, empty="nobody has asked yet",
                ),
                Log("Log"),
            ],
        )  # fmt: skip

    def figures(self) -> Mapping[str, Any]:
        """For $SRV.STATS."""
        return {**self._app.counts(), "scaler_streams": self._scaler.streams}

    def _tiles(self) -> list[Tile]:
        counts = self._app.counts()
        failed = counts["forecasts_failed"]
        by_last = sum(answer.source == "last" for _, answer in self._scaler.answers.values())
        return [
            Tile("values stored", text.count(counts["values"]), note="since the start"),
            Tile("forecasts", counts["forecasts"], note="since the start"),
            Tile("refused or failed", failed, tone=Tone.WARN if failed else Tone.PLAIN),
            Tile(
                "scaled by", len(self._scaler.answers), note=f"{by_last} without a forecast",
                tone=Tone.WARN if by_last else Tone.PLAIN,
            ),
        ]  # fmt: skip

    async def _plots(self, choice: Choice) -> Iterable[Plot]:
        """Of the series that the viewer chose, else of the newest forecast, else of what was heard last."""
        series = choice.get("series", "") or (self._app.made[-1].series if self._app.made else "")
        if not series:
            found = await self._app.series(limit=SHOWN)
            if not found:
                return []
            series = max(found, key=lambda each: each.last).series
        try:
            step_s, measured = await self._app.history(series, limit=MEASURED_STEPS)
            made, why_not = await self._forecast(series)
            scored = await self._app.scored(series)
            past = await self._app.past_errors(series)
        except NotFound as unknown:
            return [Plot(unknown.message, Axis(""), Axis(""), [], empty="choose another among the series below")]
        leads = sorted({each.promise.lead for each in scored})
        lead = next((each for each in reversed(leads) if each <= CHOSEN_LEAD), CHOSEN_LEAD)
        return [
            plots.ahead(series, measured, made, now=self._clock.now(), why_not=why_not),
            plots.before(series, scored, lead=lead),
            plots.errors(series, [each for each in past if each.step_s == step_s]),
        ]

    async def _forecast(self, series: str) -> tuple[Forecast | None, str]:
        name, at, made, why_not = self._shown
        now = self._clock.monotonic()
        if name != series or now - at >= FORECAST_EVERY_S:
            made, why_not = None, ""
            try:
                made = await self._app.forecast(Ask(series, horizon=AHEAD_STEPS))
            except NotFound:
                raise
            except MeshError as error:
                why_not = f"no forecast: {error.message}"
            self._shown = series, now, made, why_not
        return made, why_not

    async def _series(self) -> Iterable[Sequence[Value]]:
        now = self._clock.now()
        return [
            [
                _link(each.series), text.duration(each.step_s), text.count(each.points), plots.moment(each.first),
                plots.moment(each.last), f"{each.last_value:.4g}/s", text.duration(max(0.0, now - each.last)),
            ]
            for each in await self._app.series(limit=SHOWN)
        ]  # fmt: skip

    def _scaled(self) -> Iterable[Sequence[Value]]:
        for ask, answer in list(reversed(self._scaler.answers.values()))[:SHOWN]:
            tone = Tone.OK if answer.source == "forecast" else Tone.WARN
            yield [
                _link(ask.series), text.duration(ask.ahead_s), f"{ask.quantile:g}", f"{answer.rate:.4g}/s",
                Cell("forecast" if answer.source == "forecast" else "measured last", tone), answer.reason,
            ]  # fmt: skip

    def _forecasts(self) -> Iterable[Sequence[Value]]:
        newest: dict[tuple[str, int, float], Forecast] = {}
        for each in reversed(self._app.made):       # one asker asks again and again: the last answer is of interest
            newest.setdefault((each.series, len(each.points), each.level), each)
        for each in newest.values():
            tone = Tone.OK if each.error_wape <= GOOD_WAPE else Tone.WARN if each.error_wape <= BAD_WAPE else Tone.BAD
            yield [
                plots.moment(each.made), _link(each.series), each.model,
                text.duration(each.season_s) if each.season_s else "none", each.history, len(each.points),
                f"{each.level:.0%}", Cell(f"{each.error_wape:.1%}", tone), each.note,
            ]  # fmt: skip


def _link(series: str) -> Cell:
    """Shows that series' plots."""
    return Cell(series, href=f"/?series={quote(series, safe='')}")


def server(settings: ForecasterSettings, view: View, ready: Readiness) -> OpsServer:
    """The component that serves the page, probes and metrics."""
    return OpsServer(
        "forecaster", settings.http_address, view.page(),
        readiness=ready.reason,
        token=settings.token, version=release(), grafana=settings.grafana_url,
        tls=settings.http_tls, metrics_token=settings.metrics_token,
    )  # fmt: skip
