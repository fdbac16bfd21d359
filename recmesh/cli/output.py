"""What people and programs read: tables on a terminal, aligned text in a pipe, JSON or YAML when asked for."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from recmesh.runtime.errors import MeshError

COLOURS = {
    "ready": "green", "running": "green", "Running": "green", "Succeeded": "green", "ok": "green",
    "starting": "cyan", "waiting": "cyan", "Pending": "cyan", "Starting": "cyan", "loading": "cyan",
    "unready": "yellow", "Scaling": "yellow", "Recovering": "yellow", "draining": "yellow",
    "warning": "yellow", "backoff": "red", "Failed": "red", "failed": "red", "missing": "red",
    "exited": "red", "unsupervised": "red",
    "stopped": "bright_black", "Stopped": "bright_black", "unloaded": "bright_black",
}  # fmt: skip
"""The same states have the same colours as on the dashboards: ok, on its way, attention, bad, idle."""


class Shape(StrEnum):
    """What a verb prints."""

    TABLE = "table"
    """For people: tables and sentences."""
    JSON = "json"
    YAML = "yaml"

    @property
    def is_document(self) -> bool:
        """Whether programs read it."""
        return self is not Shape.TABLE


def print_document(value: Any, shape: Shape) -> None:
    """The value as one document."""
    if shape is Shape.YAML:
        print(_yaml(value), end="")
    else:
        print(json.dumps(value, indent=2, default=str))


def print_done(value: Any, shape: Shape, sentence: str) -> None:
    """What came of an action: one document, or a sentence."""
    if shape.is_document:
        print_document(value, shape)
    else:
        print(sentence)


def line(value: Any, shape: Shape) -> str:
    """One of a stream of documents: JSON in a line, YAML after `---`."""
    return f"---\n{_yaml(value)}".rstrip("\n") if shape is Shape.YAML else json.dumps(value, default=str)


def _yaml(value: Any) -> str:
    import yaml

    plain = json.loads(json.dumps(value, default=str))          # enums, paths and tuples are none of YAML's
    text: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return text


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = "") -> None:
    """A table; `empty` when there are no rows."""
    if not rows:
        if empty:
            print(empty)
        return
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(rich_table(columns, rows))
        return
    widths = [max(len(row[n]) for row in [columns, *rows]) for n in range(len(columns))]
    for row in [[column.upper() for column in columns], *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str = "") -> Any:
    """The table as rich draws it, for live views."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column.upper(), overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
    return table


def print_fields(fields: Mapping[str, str]) -> None:
    """Name and value, one a line; empty values are left out."""
    shown = {name: value for name, value in fields.items() if value}
    width = max((len(name) for name in shown), default=0)
    for name, value in shown.items():
        print(f"{name.ljust(width)}  {value}")


def print_error(error: MeshError | str) -> None:
    """One block on stderr: what is wrong, then each violation, then what to do next (the error's notes)."""
    if isinstance(error, str):
        lines = [error]
    else:
        lines = [error.message, *(f"  {violation}" for violation in error.violations)]
        lines += getattr(error, "__notes__", [])
    print(f"error: {chr(10).join(lines)}", file=sys.stderr)


def ago(at: float, *, now: float | None = None) -> str:
    """`12s`, `5m`, `3h`, `2d`; empty for 0."""
    return duration((time.time() if now is None else now) - at) if at else ""


def duration(seconds: float) -> str:
    """Two digits' worth of a time span."""
    seconds = max(0.0, seconds)
    for limit, unit in ((120, 1), (7200, 60), (172800, 3600)):
        if seconds < limit:
            return f"{seconds / unit:.0f}{ {1: 's', 60: 'm', 3600: 'h'}[unit] }"
    return f"{seconds / 86400:.0f}d"


def size(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def number(value: float) -> str:
    """With thousands separators; three digits after the point for small ones."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def moment(at: float) -> str:
    """In UTC, as data are named by it."""
    return time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(at))


def clock(at: float) -> str:
    """Local time of day, with the date when it is not today's."""
    if not at:
        return ""
    moment, today = time.localtime(at), time.localtime()
    same_day = moment[:3] == today[:3]
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M:%S", moment)
