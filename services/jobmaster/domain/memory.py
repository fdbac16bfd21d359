"""Memory of parameter servers: how it will grow, when that is too much, and what is done about it.

Rows grow with the samples trained, ever more slowly, as ids repeat (MATH section 1, OOM). Two curves are looked at:

- the saturating one, rows(n) = a·n / (b + n), fitted by least squares on n/rows = b/a + n/a (Hanes and Woolf), to the
  job's end or the horizon, whichever is nearer;
- the line through the newest growth, which no saturating curve exceeds: the bound that is believed for the short time
  that an answer needs.

Memory is a line in rows: what the process has anyway, and so many bytes for each row (values, optimizer state, index).
What a process takes while it starts (imports, compiled kernels, first steps) belongs to no row: growth is looked at
only after a settling time, and spoken of once it was seen over half of the lead.
Everything here is pure; sizes are in bytes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low
from typing import Literal

import numpy as np

from services.jobmaster.domain.limits import Limits

MIB = 1 << 20
MAX_POINTS = 240
LEAST_POINTS = 6
LEAST_WINDOW = 0.5
"""Of the lead: growth that was seen for less is not carried on over all of it."""
LEAST_GROWTH = 0.1
"""Of the rows: fewer new ones do not tell what a row costs, and fit into the reserve."""
PARTS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Point:
    """A heartbeat of a parameter server."""

    at: float
    samples: int
    """Of the whole job."""
    rows: int
    memory_bytes: int


class Growth:
    """The points of one process since it has settled, thinned as they get many, and its forecast."""

    def __init__(self, incarnation: str, *, settle_s: float = 0.0) -> None:
        self.incarnation = incarnation
        self.points: deque[Point] = deque()
        self._settle_s = settle_s
        self._first_rows_at: float | None = None

    def hear(self, point: Point) -> None:
        """A heartbeat; only what trained more than the last one tells of growth."""
        if point.rows <= 0 or (self.points and point.samples <= self.points[-1].samples):
            return
        if self._first_rows_at is None:
            self._first_rows_at = point.at
        if point.at - self._first_rows_at < self._settle_s:
            return
        self.points.append(point)
        if len(self.points) > MAX_POINTS:
            self.points = deque(list(self.points)[::2])

    @property
    def seen_s(self) -> float:
        """Over how long growth has been seen."""
        return self.points[-1].at - self.points[0].at if self.points else 0.0

    def rows_at(self, samples: float) -> float | None:
        """By the saturating curve; None while nothing can be said."""
        if len(self.points) < LEAST_POINTS:
            return None
        n = np.array([point.samples for point in self.points], dtype=np.float64)
        rows = np.array([point.rows for point in self.points], dtype=np.float64)
        slope, offset = np.polyfit(n, n / rows, 1)
        if slope <= 0 or offset <= 0:                        # not saturating (yet): the line is all there is
            return self.line_rows_at(samples)
        newest = self.points[-1]
        fitted = newest.samples / (offset + slope * newest.samples)
        return float(newest.rows + samples / (offset + slope * samples) - fitted)

    def line_rows_at(self, samples: float) -> float | None:
        """By the growth over the newest quarter of the samples: never less than a saturating curve."""
        if len(self.points) < LEAST_POINTS:
            return None
        newest = self.points[-1]
        since = next(point for point in self.points if point.samples >= 0.75 * newest.samples)
        if since is newest:
            since = self.points[-2]
        per_sample = max(0.0, (newest.rows - since.rows) / (newest.samples - since.samples))
        return newest.rows + per_sample * (samples - newest.samples)

    def memory_at(self, rows: float) -> float:
        """From the newest memory on, by the bytes that a row has cost so far."""
        newest = self.points[-1]
        return newest.memory_bytes + self._row_bytes() * max(0.0, rows - newest.rows)

    def _row_bytes(self) -> float:
        """The median of four parts of the new rows: a jump that comes once (a snapshot's buffers) is no row's price."""
        rows = [point.rows for point in self.points]
        more = rows[-1] - rows[0]
        if more < LEAST_GROWTH * rows[-1]:
            return 0.0
        ends = [next(point for point in self.points if point.rows >= rows[0] + more * part) for part in PARTS]
        prices = [
            (after.memory_bytes - before.memory_bytes) / (after.rows - before.rows)
            for before, after in pairwise(ends) if after.rows > before.rows
        ]
        return max(0.0, median_low(prices))


@dataclass(frozen=True, slots=True)
class Forecast:
    """A process that will want more than its limit."""

    wanted_bytes: int
    """At the end of what was looked at."""
    in_s: float
    """Until it is over the limit, about."""
    seen: str


def forecast(
    growth: Growth, *, limit_bytes: int, total: int, samples_per_s: float, limits: Limits
) -> Forecast | None:
    """None while the process stays below its limit, less a reserve, as far as it is looked at."""
    if limit_bytes <= 0 or samples_per_s <= 0 or len(growth.points) < LEAST_POINTS:
        return None
    if growth.seen_s < LEAST_WINDOW * limits.memory_lead_s:
        return None
    newest = growth.points[-1]
    bound = limit_bytes * (1 - limits.memory_reserve)
    left_s = max(0.0, (total - newest.samples) / samples_per_s)
    curves = (
        ("saturating", growth.rows_at, limits.memory_horizon_s), ("linear", growth.line_rows_at, limits.memory_lead_s),
    )
    for name, rows_at, horizon_s in curves:
        ahead_s = min(left_s, horizon_s)
        rows = rows_at(newest.samples + ahead_s * samples_per_s)
        if rows is None:
            continue
        wanted = growth.memory_at(rows)
        if wanted > bound:
            grows = max(1.0, wanted - newest.memory_bytes)
            in_s = ahead_s * min(1.0, max(0.0, (bound - newest.memory_bytes) / grows))
            seen = (
                f"{newest.memory_bytes / MIB:,.0f} MiB with {newest.rows:,} rows now, "
                f"{wanted / MIB:,.0f} MiB in {ahead_s:.0f} s ({name} growth); the limit is {limit_bytes / MIB:,.0f} MiB"
            )
            return Forecast(int(wanted), in_s, seen)
    return None


@dataclass(frozen=True, slots=True)
class Answer:
    """What is done about too little memory."""

    kind: Literal["raise", "more servers", "nothing"]
    memory_bytes: int = 0
    """The new limit of each process of the role."""
    reason: str = ""


def ceiling_of(
    *, pin_bytes: int, most_bytes: int, free_bytes: int, limit_bytes: int, limits: Limits
) -> tuple[int, str]:
    """(how large a process may become, what bounds it): the least of the user's word, the settings and what is free."""
    bounds = [(limit_bytes + free_bytes, "what is free")]
    if limits.memory_ceiling_bytes:
        bounds.append((limits.memory_ceiling_bytes, "the ceiling of the settings"))
    if pin_bytes:
        word = "memory_max of the role" if most_bytes else "memory of the role, a pin"
        bounds.append((max(pin_bytes, most_bytes), word))
    return min(bounds)


def grown(
    limit_bytes: int, *, wanted_bytes: int, ceiling: tuple[int, str], may_add_servers: str, limits: Limits
) -> Answer:
    """More memory where it may be had; else another server to share the rows, unless `may_add_servers` says why not."""
    aim = max(int(limit_bytes * limits.memory_factor), int(wanted_bytes * (1 + limits.memory_reserve)))
    most, why = ceiling
    if min(aim, most) >= limit_bytes * 1.05:
        return Answer("raise", min(aim, most), f"bounded by {why}" if aim > most else "")
    if not may_add_servers:
        return Answer("more servers", 0, f"memory cannot grow: {why}")
    return Answer("nothing", 0, f"memory cannot grow: {why}; servers cannot be added: {may_add_servers}")


def after_oom(role: str, limit_bytes: int, *, ceiling: tuple[int, str], limits: Limits) -> Answer:
    """What the next process of a role gets whose last one was killed for memory."""
    return grown(
        limit_bytes, wanted_bytes=0, ceiling=ceiling, may_add_servers=f"a {role} was killed", limits=limits
    )


def why_no_server(*, pinned: bool, count: int, most: int) -> str:
    """Empty when another parameter server may be asked for."""
    if pinned:
        return "roles.ps.replicas is pinned"
    return f"roles.ps.max is {most}" if count >= most else ""


def hottest(found: Sequence[tuple[int, Forecast]]) -> tuple[int, Forecast]:
    """The process that is over its limit first."""
    return min(found, key=lambda item: (item[1].in_s, item[0]))
