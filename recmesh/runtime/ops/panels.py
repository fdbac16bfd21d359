"""What an ops page is made of. A panel asks its callable at each refresh; values are never trusted as HTML.

Colours mean the same on every page: ok (works, done well), warn (needs an eye), bad (failed, lost),
idle (waiting, ended on purpose), plain (says nothing about health).
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from recmesh.runtime.telemetry import LogLine, recent_logs

if TYPE_CHECKING:
    from recmesh.runtime.ops.bars import Bars, Picture
    from recmesh.runtime.ops.plots import Plot

Drawing: TypeAlias = "Plot | Bars | Picture"


class Tone(StrEnum):
    """The meaning of a colour."""

    PLAIN = "plain"
    OK = "ok"
    WARN = "warn"
    BAD = "bad"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's value with a tone; `share` (0 to 1) draws a bar; `href` is a path or an http address."""

    text: str
    tone: Tone = Tone.PLAIN
    share: float | None = None
    href: str = ""


Value = Cell | str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Tile:
    """One number that matters, with an optional note below and a sparkline of its recent values."""

    label: str
    value: Value
    note: str = ""
    tone: Tone = Tone.PLAIN
    spark: Sequence[float] = ()


Rows = Iterable[Sequence[Value]]
Points = Sequence[tuple[float, float | None]]
Asked = Callable[[], "Rows | Awaitable[Rows]"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values. At most `limit` are shown, and said so."""

    title: str
    columns: Sequence[str]
    rows: Callable[[], Rows | Awaitable[Rows]] = tuple
    empty: str = "nothing yet"
    wide: bool = True
    limit: int = 200
    of_choice: "Callable[[Choice], Rows | Awaitable[Rows]] | None" = None
    """In place of `rows`, where they are of what the viewer chose."""
    chosen_by: str = ""
    """A column that is one of the page's `choices`, too: its values are links, and of what was chosen only its rows are
    shown."""
    kind: str = field(default="table", init=False)


@dataclass(frozen=True, slots=True)
class Tiles:
    """A row of tiles; a mapping of label to value will do."""

    title: str
    values: Callable[[], "TileValues | Awaitable[TileValues]"]
    wide: bool = True
    kind: str = field(default="tiles", init=False)


TileValues = Mapping[str, Value] | Iterable[Tile]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time: series name to [(unix seconds, value or None for a gap)]."""

    title: str
    series: Callable[[], "Mapping[str, Points] | Awaitable[Mapping[str, Points]]"]
    unit: str = ""
    wide: bool = False
    from_zero: bool = True
    """False where changes matter and zero is far away, as it is of an AUC."""
    chosen_by: str = ""
    """One of the page's `choices`: of what was chosen only the series of its name, or that begin with it and a space,
    are shown."""
    of_choice: "Callable[[Choice], Mapping[str, Points]] | None" = None
    """In place of `series`, where they are of what the viewer chose."""
    kind: str = field(default="chart", init=False)


@dataclass(frozen=True, slots=True)
class Log:
    """Lines of text, newest last; by default the process's own log."""

    title: str
    lines: Callable[[], "Iterable[LogLine | str] | Awaitable[Iterable[LogLine | str]]"] = field(
        default=lambda: recent_logs.lines(100)
    )
    wide: bool = True
    kind: str = field(default="log", init=False)


Choice = Mapping[str, str]
"""What a viewer asked to see: the page's `choices` by name, from the query of its address."""


@dataclass(frozen=True, slots=True)
class Plots:
    """Pictures side by side, drawn by the server; they may be of what the viewer chose."""

    title: str
    plots: Callable[[Choice], "Iterable[Drawing] | Awaitable[Iterable[Drawing]]"]
    empty: str = "nothing yet"
    wide: bool = True
    kind: str = field(default="plots", init=False)


Panel = Table | Tiles | Chart | Log | Plots


@dataclass(frozen=True, slots=True)
class Page:
    """One service's page."""

    title: str
    panels: Sequence[Panel]
    subtitle: str = ""
    links: Mapping[str, str] = field(default_factory=dict)
    refresh_s: float = 1.0
    choices: Sequence[str] = ()
    """Names that the query of the page's address may give; all others are left out."""


_WORDS: Mapping[Tone, frozenset[str]] = {
    Tone.OK: frozenset({
        "running", "succeeded", "ready", "ok", "open", "healthy", "stored", "committed", "serving", "live",
        "done",
    }),
    Tone.WARN: frozenset({
        "starting", "scaling", "recovering", "restoring", "degraded", "loading", "draining", "suspended",
        "retrying", "stale", "warming",
    }),
    Tone.BAD: frozenset({
        "failed", "damaged", "dead", "lost", "unhealthy", "error", "crashed", "unavailable", "quarantined",
    }),
    Tone.IDLE: frozenset({
        "pending", "stopped", "idle", "closed", "unloaded", "queued", "waiting", "exited", "none",
        "finishing",
    }),
}


def state(word: str) -> Cell:
    """A cell for a state's name, coloured by what the word means everywhere."""
    first = re.split(r"[^a-z]", word.lower(), maxsplit=1)[0]
    tone = next((tone for tone, words in _WORDS.items() if first in words), Tone.PLAIN)
    return Cell(word, tone)
