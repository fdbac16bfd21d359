"""Panels to HTML fragments and chart data; every value is escaped by the template engine."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from inspect import isawaitable
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from recmesh.runtime.ops import bars
from recmesh.runtime.ops.bars import Bars, Picture
from recmesh.runtime.ops.panels import (
    Cell,
    Chart,
    Choice,
    Log,
    Page,
    Panel,
    Plots,
    Points,
    Rows,
    Table,
    Tile,
    Tiles,
    Tone,
    Value,
)
from recmesh.runtime.ops.plots import Plot, svg
from recmesh.runtime.ops.text import count
from recmesh.runtime.telemetry import LogLine, get_logger

HERE = Path(__file__).parent
_log = get_logger(__name__)
_TONES = {"error": "bad", "critical": "bad", "warning": "warn", "debug": "idle"}


def environment() -> Environment:
    """Templates with escaping on everywhere, and undefined names an error."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )
    made.filters["cell"] = cell
    return made


@dataclass(frozen=True, slots=True)
class Fragment:
    """One panel at one moment: HTML, or the columns of a chart."""

    html: str = ""
    chart: Mapping[str, Any] | None = None


class Renderer:
    """Renders a page's panels; a panel that fails says so in its place."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._templates = environment()
        self._problems: dict[str, str] = {}
        shape = [(panel.kind, panel.title, panel.wide) for panel in page.panels]
        self.shape_id = hashlib.sha256(repr((page.title, shape)).encode()).hexdigest()[:12]
        """Changes when the page has other panels: a browser then loads it anew."""

    async def fragments(self, choice: Choice) -> list[Fragment]:
        """All panels, in order."""
        return [await self._fragment(panel, choice) for panel in self.page.panels]

    async def data(self, choice: Choice) -> dict[str, Any]:
        """What the panels show, by title, for programs; of one that fails why."""
        found: dict[str, Any] = {}
        for panel in self.page.panels:
            try:
                found[panel.title] = await _data(panel, choice)
            except Exception as error:           # as below: one broken panel must not hide the others
                found[panel.title] = {"error": f"{type(error).__name__}: {error}"}
        return found

    async def document(self, choice: Choice, **context: Any) -> str:
        """The whole page with its present contents."""
        parts = zip(self.page.panels, await self.fragments(choice), strict=True)
        return self._templates.get_template("page.html").render(
            page=self.page, parts=list(parts), shape_id=self.shape_id, **context
        )

    async def file(self) -> str:
        """The page as one file that needs nothing else and stays as it is: no charts, for these need a script."""
        parts = zip(self.page.panels, await self.fragments({}), strict=True)
        return self._templates.get_template("file.html").render(
            page=self.page, parts=list(parts), style=(HERE / "static" / "ops.css").read_text()
        )

    async def _fragment(self, panel: Panel, choice: Choice) -> Fragment:
        try:
            if isinstance(panel, Chart):
                scale = {} if panel.from_zero else {"from_zero": False}
                return Fragment(chart=columns(await _series(panel, choice)) | scale)
            template = self._templates.get_template(f"{panel.kind}.html")
            return Fragment(html=template.render(**await _context(panel, choice)))
        except Exception as error:   # one broken panel must not hide the others
            problem = f"{type(error).__name__}: {error}"
            if self._problems.get(panel.title) != problem:   # said once, not at every refresh
                _log.warning("the panel %r cannot be read: %s", panel.title, problem)
            self._problems[panel.title] = problem
            return Fragment(html=self._templates.get_template("failed.html").render(problem=problem))


async def _context(panel: Table | Tiles | Log | Plots, choice: Choice) -> dict[str, Any]:
    if isinstance(panel, Plots):
        plots = await _ask(lambda: panel.plots(choice))
        return {"panel": panel, "plots": [(plot, _drawn(plot)) for plot in plots]}
    if isinstance(panel, Table):
        rows = list(islice(await _rows(panel, choice), panel.limit + 1))
        return {"panel": panel, "rows": rows[: panel.limit], "more": len(rows) > panel.limit}
    if isinstance(panel, Tiles):
        values = await _ask(panel.values)
        if isinstance(values, Mapping):
            values = [Tile(label, value) for label, value in values.items()]
        return {"tiles": [_tile(item) for item in values]}
    return {"lines": [_line(item) for item in await _ask(panel.lines)]}


def _drawn(item: Plot | Bars | Picture) -> str:
    match item:
        case Plot():
            return svg(item)
        case Bars():
            return bars.svg(item)
        case Picture():
            return bars.image(item)


async def _rows(panel: Table, choice: Choice) -> Rows:
    of_choice = panel.of_choice
    found: Rows = await _ask(panel.rows if of_choice is None else lambda: of_choice(choice))
    return _chosen(panel, found, choice) if panel.chosen_by else found


def _chosen(panel: Table, rows: Rows, choice: Choice) -> Rows:
    """Those of what was chosen, or all; each with the way to its own page."""
    place, wanted = list(panel.columns).index(panel.chosen_by), choice.get(panel.chosen_by)
    for row in rows:
        known = cell(row[place])
        if wanted is None or known.text == wanted:
            href = known.href or f"./?{panel.chosen_by}={quote(known.text, safe='')}"
            linked = replace(known, href=href) if known.text else known
            yield [*row[:place], linked, *row[place + 1 :]]


async def _series(panel: Chart, choice: Choice) -> Mapping[str, Points]:
    of_choice, wanted = panel.of_choice, choice.get(panel.chosen_by)
    found: Mapping[str, Points] = await _ask(panel.series if of_choice is None else lambda: of_choice(choice))
    if wanted is None:
        return found
    return {name: points for name, points in found.items() if name == wanted or name.startswith(f"{wanted} ")}


async def _data(panel: Panel, choice: Choice) -> Any:
    """What the panel shows, without a form."""
    if isinstance(panel, Table):
        rows = islice(await _rows(panel, choice), panel.limit)
        return [dict(zip(panel.columns, map(_plain, row), strict=True)) for row in rows]
    if isinstance(panel, Plots):
        return [asdict(plot) for plot in await _ask(lambda: panel.plots(choice))]
    if isinstance(panel, Tiles):
        values = await _ask(panel.values)
        if isinstance(values, Mapping):
            return {label: _plain(value) for label, value in values.items()}
        return {tile.label: {"value": _plain(tile.value), "note": tile.note} for tile in values}
    if isinstance(panel, Chart):
        return {name: list(points) for name, points in (await _series(panel, choice)).items()}
    return list(map(_line, await _ask(panel.lines)))


def _plain(value: Value) -> Any:
    return value.text if isinstance(value, Cell) else value


async def _ask(callable_: Any) -> Any:
    answer = callable_()
    return await answer if isawaitable(answer) else answer


def cell(value: Value) -> Cell:
    """Any value as a cell: numbers shortened, None a dash, truth coloured."""
    match value:
        case Cell():
            return value
        case None:
            return Cell("–")
        case bool():
            return Cell("yes" if value else "no", Tone.OK if value else Tone.IDLE)
        case int() | float():
            return Cell(count(value))
        case _:
            return Cell(str(value))


def _tile(item: Tile) -> dict[str, Any]:
    shown = cell(item.value)
    tone = item.tone if item.tone is not Tone.PLAIN else shown.tone
    return {
        "label": item.label, "text": shown.text, "note": item.note, "tone": tone, "spark": spark(item.spark),
    }


def spark(values: Any) -> str:
    """The points of an SVG polyline in a box of 100 × 24; '' for fewer than two values."""
    numbers = [float(value) for value in values if math.isfinite(value)]
    if len(numbers) < 2:
        return ""
    low, high = min(numbers), max(numbers)
    span = (high - low) or 1.0
    step = 100 / (len(numbers) - 1)
    return " ".join(
        f"{index * step:.1f},{22 - 20 * (value - low) / span:.1f}" for index, value in enumerate(numbers)
    )


def _line(item: LogLine | str) -> dict[str, str]:
    if isinstance(item, str):
        return {"at": "", "level": "", "logger": "", "message": item, "tone": "plain"}
    at = datetime.fromtimestamp(item.at).astimezone().strftime("%H:%M:%S")
    return {
        "at": at, "level": item.level, "logger": item.logger.removeprefix("recmesh."),
        "message": item.message, "tone": _TONES.get(item.level, "plain"),
    }


def columns(series: Mapping[str, Points]) -> dict[str, Any]:
    """Each series as its own x and y column; the browser aligns them. What is not finite is a gap."""
    return {
        "names": [str(name) for name in series],
        "series": [
            [[round(at, 3) for at, _ in points], [_finite(value) for _, value in points]]
            for points in series.values()
        ],
    }


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
