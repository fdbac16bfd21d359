"""Line charts as SVG text, without a plotting library: a report is one file that any browser opens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from recmesh.plugins.planning import Floats

COLOURS = ("#4269d0", "#d1700e", "#3b8f5a", "#c4415f", "#7a5cc7", "#8a6a4f", "#5b6470")
"""Told apart by most colour-blind readers too; each line also bears its name at its end."""

WIDTH, HEIGHT = 860, 320
LEFT, RIGHT, TOP, BOTTOM = 58, 150, 34, 44


@dataclass(frozen=True, slots=True)
class Line:
    """One curve."""

    name: str
    x: Floats
    y: Floats
    colour: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """Where values lie: `ticks` are (value, label)."""

    low: float
    high: float
    label: str
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def share(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.log:
            span = math.log(self.high / self.low)
            return (math.log(max(value, self.low) / self.low)) / span if span else 0.0
        return (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0


def chart(title: str, lines: Sequence[Line], *, x: Axis, y: Axis) -> str:
    """An `<svg>` that takes its text colour from the page."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" font-size="12" fill="currentColor">',
        f'<text x="{LEFT}" y="18" font-size="14" font-weight="600">{escape(title)}</text>',
    ]
    for value, label in y.ticks:
        at = _y(y, value)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="currentColor" stroke-opacity=".15"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" opacity=".75">{escape(label)}</text>')
    for value, label in x.ticks:
        at = _x(x, value)
        foot = HEIGHT - BOTTOM
        parts.append(f'<path d="M{at:.1f} {foot}v4" stroke="currentColor" stroke-opacity=".5"/>')
        parts.append(f'<text x="{at:.1f}" y="{foot + 17}" text-anchor="middle" opacity=".75">{escape(label)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.label)}</text>')
    parts.append(
        f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.label)}</text>"
    )
    for line in lines:
        points = " ".join(f"{_x(x, a):.1f},{_y(y, b):.1f}" for a, b in zip(line.x, line.y, strict=True))
        dash = ' stroke-dasharray="4 3" stroke-opacity=".8"' if line.dashed else ""
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="1.8" '
            f'stroke-linejoin="round"{dash}><title>{escape(line.name)}</title></polyline>'
        )
    for place, line in enumerate(lines):
        at = TOP + 10 + 18 * place
        dash = ' stroke-dasharray="4 3"' if line.dashed else ""
        begin = WIDTH - RIGHT + 12
        parts.append(f'<path d="M{begin} {at}h18" stroke="{line.colour}" stroke-width="2.2"{dash}/>')
        parts.append(f'<text x="{begin + 24}" y="{at + 4}">{escape(line.name)}</text>')
    return "".join([*parts, "</svg>"])


def shares(label: str) -> Axis:
    """From 0 to 100 %."""
    return Axis(0.0, 1.0, label, [(tick / 4, f"{25 * tick} %") for tick in range(5)])


def seconds(low: float, high: float, label: str) -> Axis:
    """Logarithmic, with ticks a person can name."""
    named = [(1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (21_600, "6 h"),
             (86_400, "1 d"), (604_800, "1 w"), (2_592_000, "30 d")]  # fmt: skip
    low, high = max(low, 1.0), max(high, max(low, 1.0) * 1.01)
    return Axis(low, high, label, [(float(value), text) for value, text in named if low <= value <= high], log=True)


def days(high: float, label: str) -> Axis:
    """Linear, in hours for short spans and days for long ones; values are in seconds."""
    unit, name = (86_400.0, "d") if high > 3 * 86_400 else (3600.0, "h")
    step = _round_step(high / unit / 6)
    count = int(high / unit / step)
    return Axis(0.0, high, label, [(tick * step * unit, f"{tick * step:g} {name}") for tick in range(count + 1)])


def _round_step(raw: float) -> float:
    size = 10.0 ** math.floor(math.log10(max(raw, 1e-9)))
    return next(size * step for step in (1, 2, 5, 10) if size * step >= raw)


def _x(axis: Axis, value: float) -> float:
    return LEFT + min(1.0, max(0.0, axis.share(value))) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - min(1.0, max(0.0, axis.share(value))) * (HEIGHT - TOP - BOTTOM)
