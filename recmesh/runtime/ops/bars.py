"""Bars of parts by colour, and pictures from elsewhere: what stands beside plots."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

WIDTH, LEFT, ROW, TOP = 860.0, 190.0, 24.0, 30.0
_RIGHT = 90.0
COLOURS = 6
"""Classes `part-0` on of ops.css; more parts begin again."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: what it is of, its parts in the order of the legend, and what is written behind it."""

    name: str
    parts: Sequence[float]
    total: str = ""
    note: str = ""
    """Told where a pointer rests on it."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Rows of stacked bars on one scale, from 0. Parts that are no numbers, or negative, are drawn as nothing."""

    title: str
    parts: Sequence[str]
    """Their names, for the legend."""
    rows: Sequence[Bar]
    note: str = ""
    empty: str = "nothing yet"


@dataclass(frozen=True, slots=True)
class Picture:
    """An image of this server, by its path."""

    title: str
    path: str
    note: str = ""
    empty: str = ""


def svg(bars: Bars) -> str:
    """The picture, without a size of its own; '' when there is nothing to draw."""
    rows = [(row, [value if math.isfinite(value) and value > 0 else 0.0 for value in row.parts]) for row in bars.rows]
    longest = max((sum(values) for _, values in rows), default=0.0)
    if longest <= 0:
        return ""
    height = TOP + ROW * len(rows) + 4
    scale = (WIDTH - LEFT - _RIGHT) / longest
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot bars" viewBox="0 0 {WIDTH:g} {height:g}" role="img"'
        f" aria-label={quoteattr(bars.title)}>",
        *_legend(bars.parts),
    ]
    for number, (row, values) in enumerate(rows):
        y, x = TOP + ROW * number, LEFT
        name = escape(row.name)
        drawn.append(f'<g><text class="name" x="{LEFT - 8:g}" y="{y + 14:g}" text-anchor="end">{name}</text>')
        for index, value in enumerate(values):
            width = value * scale
            drawn.append(
                f'<rect class="part-{index % COLOURS}" x="{x:.1f}" y="{y + 3:g}" width="{width:.1f}" height="16"/>'
            )
            x += width
        drawn.append(f'<text x="{x + 6:.1f}" y="{y + 14:g}">{escape(row.total)}</text>')
        drawn.append(f"<title>{escape(row.note)}</title></g>" if row.note else "</g>")
    return "".join([*drawn, "</svg>"])


def image(picture: Picture) -> str:
    """The element that shows it."""
    return f"<img class=\"picture\" src={quoteattr(picture.path)} alt={quoteattr(picture.title)}>"


def _legend(parts: Sequence[str]) -> list[str]:
    drawn, x = [], LEFT
    for index, name in enumerate(parts):
        drawn.append(
            f'<rect class="part-{index % COLOURS}" x="{x:g}" y="8" width="10" height="10"/>'
            f'<text x="{x + 15:g}" y="17">{escape(name)}</text>'
        )
        x += 34 + 7.0 * len(name)
    return drawn
