"""Plots as SVG: points with intervals, lines over them, moments, a diagonal.

Colours are classes of ops.css, so that a plot follows the page's theme; every text is escaped. Values that cannot be
drawn (not finite, beyond 1e100, not above 0 on a logarithmic axis) are left out.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from xml.sax.saxutils import escape, quoteattr

from recmesh.runtime.ops.panels import Tone
from recmesh.runtime.ops.text import count

WIDTH, HEIGHT = 440.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 62.0, 16.0, 34.0, 46.0
_LARGEST = 1e100
_CHARACTER = 6.0
"""Mean width of a character of a label, in the units of the picture."""
_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)


class Scale(StrEnum):
    """How values become places."""

    LINEAR = "linear"
    LOG = "log"
    TIME = "time"
    """Unix seconds, shown in UTC."""


@dataclass(frozen=True, slots=True)
class Axis:
    """What is told along one side."""

    label: str
    scale: Scale = Scale.LINEAR
    from_zero: bool = False
    """0 is in sight whatever the values are."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One point; `low` and `high` are the ends of its interval, `note` is told where a pointer rests on it."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    label: str = ""
    """Written beside it."""
    is_chosen: bool = False


@dataclass(frozen=True, slots=True)
class Dots:
    """Points of one kind; an empty name has no place in the legend."""

    name: str
    dots: Sequence[Dot]
    tone: Tone = Tone.PLAIN
    is_joined: bool = False
    """A line goes from each to the next."""
    is_band: bool = False
    """Intervals are one band, not a whisker each."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A line across the plot at one x, and what happened there."""

    x: float
    note: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Plot:
    """What is drawn; an empty one says why it is empty."""

    title: str
    x: Axis
    y: Axis
    dots: Sequence[Dots]
    moments: Sequence[Moment] = ()
    has_diagonal: bool = False
    """Both axes have one range, and a line shows where they are equal."""
    note: str = ""
    """A sentence below it."""
    empty: str = "nothing yet"


def svg(plot: Plot) -> str:
    """The picture, without a size of its own; '' when there is nothing to draw."""
    shown = [(kind, [dot for dot in kind.dots if _is_shown(dot, plot)]) for kind in plot.dots]
    if not any(dots for _, dots in shown):
        return ""
    x, y = _places(plot, [dot for _, dots in shown for dot in dots])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img"'
        f" aria-label={quoteattr(_clean(plot.title))}>",
        *_frame(plot, x, y),
    ]
    if plot.has_diagonal:
        parts.append(_line("diagonal", x.at(x.low), y.at(x.low), x.at(x.high), y.at(x.high)))
    parts += [
        f"<g>{_line(f'moment {each.tone}', x.at(each.x), TOP, x.at(each.x), HEIGHT - BOTTOM)}{_title(each.note)}</g>"
        for each in plot.moments if _is_drawable(each.x, plot.x.scale) and x.low <= each.x <= x.high
    ]  # fmt: skip
    for kind, dots in shown:
        parts += _drawn(kind, dots, x, y)
    parts += [*_legend([kind for kind, dots in shown if dots and kind.name], plot.has_diagonal), "</svg>"]
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Places:
    """Of values along one axis."""

    low: float
    high: float
    near: float
    """Where `low` is drawn; `far`: where `high` is."""
    far: float
    as_number: Callable[[float], float] = field(default=float)

    def at(self, value: float) -> float:
        """Within the axis' ends, whatever the value is."""
        low, high = self.as_number(self.low), self.as_number(self.high)
        if high <= low:     # the ends of one large number do not differ from it
            return (self.near + self.far) / 2
        share = (self.as_number(min(max(value, self.low), self.high)) - low) / (high - low)
        return self.near + share * (self.far - self.near)


def _is_drawable(value: float, scale: Scale) -> bool:
    return math.isfinite(value) and abs(value) <= _LARGEST and (scale is not Scale.LOG or value >= 1 / _LARGEST)


def _is_shown(dot: Dot, plot: Plot) -> bool:
    return _is_drawable(dot.x, plot.x.scale) and _is_drawable(dot.y, plot.y.scale)


def _places(plot: Plot, dots: Sequence[Dot]) -> tuple[_Places, _Places]:
    xs = [dot.x for dot in dots]
    ends = (end for dot in dots for end in (dot.low, dot.high) if end is not None)
    ys = [*(dot.y for dot in dots), *(end for end in ends if _is_drawable(end, plot.y.scale))]
    if plot.has_diagonal:
        xs = ys = [*xs, *ys]
    return (
        _Places(*_range(xs, plot.x), LEFT, WIDTH - RIGHT, _numbering(plot.x.scale)),
        _Places(*_range(ys, plot.y), HEIGHT - BOTTOM, TOP, _numbering(plot.y.scale)),
    )


def _numbering(scale: Scale) -> Callable[[float], float]:
    return math.log if scale is Scale.LOG else float


def _range(values: Sequence[float], axis: Axis) -> tuple[float, float]:
    """All values and a margin, so that no point lies on the frame; never empty."""
    low, high = min(values), max(values)
    if axis.scale is Scale.LOG:
        margin = max((high / low) ** 0.06, 1.15)
        return low / margin, high * margin
    if axis.from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    largest = max(abs(low), abs(high))
    margin = 0.06 * (high - low)
    if high - low <= 1e-9 * largest or largest < 1 / _LARGEST:  # all alike
        is_moment = axis.scale is Scale.TIME        # seconds since 1970, of which a tenth is years
        margin = 30.0 if is_moment else 0.1 * largest if largest >= 1 / _LARGEST else 1.0
    if axis.scale is Scale.TIME:
        margin = max(margin, 1.0)
    return (0.0 if axis.from_zero and low == 0.0 else low - margin), high + margin


def _ticks(places: _Places, scale: Scale) -> list[float]:
    if scale is Scale.LOG:
        return _log_ticks(places.low, places.high)
    step = (places.high - places.low) / 6
    if scale is Scale.TIME:
        wide = next((each for each in _TIME_STEPS_S if each >= step), None)
        step = float(wide or math.ceil(step / 86_400) * 86_400)
    else:
        ten = 10.0 ** math.floor(math.log10(step))
        step = next(ten * many for many in (1, 2, 5, 10) if ten * many >= step * 0.999)
    first = math.ceil(places.low / step)
    found = [(first + n) * step for n in range(12)]
    return [each for each in found if each <= places.high]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade; of many decades some, without halves; between two of them a few round numbers."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / 6))
    digits = (1, 2, 5) if math.log10(high / low) <= 3 else (1,)
    found = [digit * 10.0**power for power in range(first - first % every, last + 1, every) for digit in digits]
    inside = [each for each in found if low <= each <= high]
    if len(inside) >= 3:
        return inside
    return _ticks(_Places(low, high, 0.0, 1.0), Scale.LINEAR)


def _shown(value: float, scale: Scale, step: float) -> str:
    if scale is not Scale.TIME:
        return f"{value:.0e}" if abs(value) >= 1e15 or 0 < abs(value) < 1e-4 else count(value)
    try:
        moment = datetime.fromtimestamp(value, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{value:.3g}"
    return moment.strftime("%m-%d" if step >= 86_400 else "%H:%M:%S" if step < 60 else "%H:%M")


def _frame(plot: Plot, x: _Places, y: _Places) -> Iterator[str]:
    floor = HEIGHT - BOTTOM
    for axis, places in ((plot.x, x), (plot.y, y)):
        ticks = _ticks(places, axis.scale)
        step = ticks[1] - ticks[0] if len(ticks) > 1 else 0.0
        for tick in ticks:
            place, words = places.at(tick), _shown(tick, axis.scale, step)
            if places is x:
                yield _line("grid", place, TOP, place, floor) + _text(place, floor + 16, words, "middle")
            else:
                yield _line("grid", LEFT, place, WIDTH - RIGHT, place) + _text(LEFT - 7, place + 4, words, "end")
    yield _line("edge", LEFT, floor, WIDTH - RIGHT, floor) + _line("edge", LEFT, TOP, LEFT, floor)
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 9, plot.x.label, "middle", "label")
    yield (
        f'<text class="label" text-anchor="middle" transform="translate(14 {(TOP + floor) / 2:.1f}) rotate(-90)">'
        f"{_escaped(plot.y.label)}</text>"
    )


def _drawn(kind: Dots, dots: Sequence[Dot], x: _Places, y: _Places) -> Iterator[str]:
    if kind.is_band:
        ends = [(dot.x, dot.low, dot.high) for dot in dots if dot.low is not None and dot.high is not None]
        drawable = [end for end in ends if not math.isnan(end[1] + end[2])]
        above = [f"{x.at(across):.1f},{y.at(high):.1f}" for across, _, high in drawable]
        below = [f"{x.at(across):.1f},{y.at(low):.1f}" for across, low, _ in reversed(drawable)]
        yield f'<polygon class="band {kind.tone}" points="{" ".join(above + below)}"/>'
    if kind.is_joined and len(dots) > 1:
        points = " ".join(f"{x.at(dot.x):.1f},{y.at(dot.y):.1f}" for dot in dots)
        yield f'<polyline class="joined {kind.tone}" points="{points}"/>'
    small = kind.is_joined and len(dots) > 40
    for dot in dots:
        across, down = x.at(dot.x), y.at(dot.y)
        yield "<g>"
        if not kind.is_band and dot.low is not None and dot.high is not None and not math.isnan(dot.low + dot.high):
            low, high = y.at(dot.low), y.at(dot.high)
            yield _line(f"whisker {kind.tone}", across, low, across, high)
            for end in (low, high):
                yield _line(f"whisker {kind.tone}", across - 3, end, across + 3, end)
        if dot.is_chosen:
            yield f'<circle class="ring" cx="{across:.1f}" cy="{down:.1f}" r="9"/>'
        yield f'<circle class="dot {kind.tone}" cx="{across:.1f}" cy="{down:.1f}" r="{1.8 if small else 4.2}"/>'
        if dot.label:
            leftwards = across > WIDTH - RIGHT - 14 - _CHARACTER * len(dot.label)
            beside, anchor = (across - 13, "end") if leftwards else (across + 13, "start")
            yield _text(beside, down + 4, dot.label, anchor, "name")
        yield f"{_title(dot.note)}</g>"


def _legend(kinds: Sequence[Dots], has_diagonal: bool) -> Iterator[str]:
    at = LEFT
    for kind in kinds:
        yield f'<circle class="dot {kind.tone}" cx="{at + 4:.1f}" cy="14" r="4.2"/>' + _text(at + 13, 18, kind.name)
        at += 30 + _CHARACTER * len(kind.name)
    if has_diagonal:
        yield _line("diagonal", at, 14, at + 16, 14) + _text(at + 21, 18, "as measured")


def _line(name: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{name}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, anchor: str = "start", name: str = "tick") -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_escaped(words)}</text>'


def _title(note: str) -> str:
    return f"<title>{_escaped(note)}</title>" if note else ""


def _escaped(words: str) -> str:
    return escape(_clean(words))


def _clean(words: str) -> str:
    """Without what XML cannot hold: control characters, and halves of surrogate pairs."""
    return "".join(_allowed(words))


def _allowed(words: str) -> Iterable[str]:
    for letter in words:
        code = ord(letter)
        plain = code >= 0x20 and not 0xD800 <= code <= 0xDFFF and code not in (0xFFFE, 0xFFFF)
        yield letter if plain or letter in "\t\n" else "\N{REPLACEMENT CHARACTER}"
