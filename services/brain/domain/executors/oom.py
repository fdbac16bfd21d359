"""How much memory each parameter server will want, and when: brain's side of the forecast.

Bytes of one server = static + rows · (dimension · width + optimizer state + index). Rows grow with the samples
consumed, ever more slowly, because ids repeat. Slots are skewed, so each server has its own rows and its own curve
(MATH section 1, OOM).

Two curves: the saturating rows(n) = a·n/(b + n), fitted on the shares n/rows (a line in n), and the line through the
newest growth, Ψ·Δt rows-per-sample on, which no saturating curve exceeds. The plan follows the saturating one to the
job's end or the horizon; where it cannot be fitted, and over the lead time that a change needs, the linear bound holds.

Jobmaster forecasts too, and the two divide the work: *jobmaster* sees each heartbeat and acts within seconds when a
process nears its limit (it has the measured bytes of a row, and no price to weigh). *Brain* sees profiles, minutes
apart, knows the tables, and plans sizes and counts ahead of time, so that jobmaster has nothing to do. Nothing here
raises a limit; it says what is needed from when on.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

ENTRY_BYTES = 16.0
"""Of the hash index: an id and its place."""
EMPTIEST = 9 / 32
"""Of the index: a partition doubles when it is 9/16 full at the earliest (`recmesh.store.probing`)."""
HEADER_WORDS, ROW_WORDS = 6, 8
"""A row ends with its id, last step, updates and frequency, and is padded to a multiple of 8 words of 4 bytes
(`recmesh.store.row_kernels`)."""
LEAST_PROFILES = 4


@dataclass(frozen=True, slots=True)
class Table:
    """What a row of a table costs."""

    dim: int
    width_bytes: int = 4
    """Of one value: 4 for float32, 2 for bfloat16."""
    state_values: int = 0
    """Values that the optimizer keeps per row: dim for Adagrad, 2·dim for Adam and FTRL, 1 for row-wise Adagrad."""

    @property
    def row_bytes(self) -> float:
        """Values, optimizer state (float32), header and index of one row; the index as empty as it gets."""
        words = -(-self.dim * self.width_bytes // 4) + self.state_values + HEADER_WORDS
        return 4.0 * (-(-words // ROW_WORDS) * ROW_WORDS) + ENTRY_BYTES / EMPTIEST


@dataclass(frozen=True, slots=True)
class Rows:
    """One table on one server, at a profile."""

    samples: int
    """Consumed by the whole job so far."""
    rows: int


@dataclass(frozen=True, slots=True)
class Growth:
    """One table on one server over time, oldest first, in samples of the whole job."""

    table: Table
    profiles: tuple[Rows, ...]

    def rows_at(self, samples: float) -> float:
        """By the saturating curve, from the newest count on; by the line where it does not saturate (yet)."""
        fit = self._saturating()
        if fit is None:
            return self.bound_at(samples)
        offset, slope = fit
        newest = self.profiles[-1]
        more = samples / (offset + slope * samples) - newest.samples / (offset + slope * newest.samples)
        return min(newest.rows + max(0.0, more), self.bound_at(samples))

    def bound_at(self, samples: float) -> float:
        """By the line through the newest growth: never less than a saturating curve."""
        if len(self.profiles) < 2:
            return float(self.profiles[-1].rows) if self.profiles else 0.0
        before, newest = self.profiles[-2], self.profiles[-1]
        per_sample = max(0.0, (newest.rows - before.rows) / max(1, newest.samples - before.samples))
        return newest.rows + per_sample * max(0.0, samples - newest.samples)

    def _saturating(self) -> tuple[float, float] | None:
        """(b/a, 1/a) of rows = a·n/(b + n), by least squares on n/rows; None without a ceiling in sight."""
        seen = [each for each in self.profiles if each.rows > 0 and each.samples > 0]
        if len(seen) < LEAST_PROFILES:
            return None
        n = np.array([each.samples for each in seen], dtype=np.float64)
        slope, offset = np.polyfit(n, n / np.array([each.rows for each in seen], dtype=np.float64), 1)
        return (float(offset), float(slope)) if slope > 0 and offset > 0 else None


@dataclass(frozen=True, slots=True)
class Server:
    """One parameter server: what it takes without rows, and its tables."""

    name: str
    static_bytes: float
    limit_bytes: float
    tables: tuple[Growth, ...]

    def bytes_at(self, samples: float, *, bound: bool = False) -> float:
        """Static part plus rows, by the saturating curves or by the bound."""
        rows = (
            (each.bound_at(samples) if bound else each.rows_at(samples)) * each.table.row_bytes for each in self.tables
        )
        return self.static_bytes + sum(rows)


@dataclass(frozen=True, slots=True)
class Progress:
    """Of the job."""

    consumed: float
    """Samples."""
    total: float
    """Samples at its end; infinite for an endless stream."""
    rate: float
    """Ψ, samples per second."""


@dataclass(frozen=True, slots=True)
class Foresight:
    """How far, and with what reserve."""

    horizon_s: float = 86_400.0
    lead_s: float = 1800.0
    """From a decision until the new memory is there, and some: within it the bound counts."""
    reserve: float = 0.1
    """Share of a limit that is to stay free."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one server needs."""

    server: str
    need_bytes: float
    """Limit that holds to the end of what was looked at, the reserve within it."""
    over_in_s: float
    """Until it is over its limit less the reserve; infinite: not as far as was looked."""
    act: bool
    """Now: waiting would leave less than the lead."""
    why: str


def needs(servers: Sequence[Server], progress: Progress, sight: Foresight | None = None) -> tuple[Need, ...]:
    """What each server needs, the one that is over its limit first before the others.

    Raises:
        ValueError: the reserve is not within [0, 1).
    """
    sight = sight or Foresight()
    if not 0 <= sight.reserve < 1:
        raise ValueError(f"a reserve of {sight.reserve:g} of the memory leaves nothing")
    found = [_need(server, progress, sight) for server in servers]
    return tuple(sorted(found, key=lambda need: (need.over_in_s, need.server)))


def size_for_all(found: Sequence[Need]) -> float:
    """The limit that one size for all servers must have: that of the one with the most rows."""
    return max((need.need_bytes for need in found), default=0.0)


def servers_for(found: Sequence[Need], *, static_bytes: float, most_bytes: float) -> int:
    """How many servers are needed when none may be larger than `most_bytes`, rows being spread evenly; 0: no number is.

    Each has the static part; the slots of what is too much for one go to new ones.
    """
    rows = sum(max(0.0, need.need_bytes - static_bytes) for need in found)
    room = most_bytes - static_bytes
    if room <= 0:
        return 0
    return max(len(found), math.ceil(rows / room)) if size_for_all(found) > most_bytes else len(found)


def _need(server: Server, progress: Progress, sight: Foresight) -> Need:
    left_s = (progress.total - progress.consumed) / progress.rate if progress.rate > 0 else math.inf
    end_s = min(max(0.0, left_s), sight.horizon_s)
    near_s = min(end_s, sight.lead_s)

    def at(after_s: float, *, bound: bool) -> float:
        return server.bytes_at(progress.consumed + progress.rate * after_s, bound=bound)

    wanted, soon = at(end_s, bound=False), at(near_s, bound=True)
    most = max(wanted, soon)
    room = server.limit_bytes * (1 - sight.reserve)
    over_in_s = math.inf
    if soon > room:
        over_in_s = _crossing(lambda after_s: at(after_s, bound=True), room, near_s)
    elif wanted > room:
        over_in_s = _crossing(lambda after_s: at(after_s, bound=False), room, end_s)
    gib = 1 << 30
    why = (
        f"{at(0.0, bound=False) / gib:.2f} GiB now, {wanted / gib:.2f} GiB in {end_s / 3600:.1f} h (saturating), "
        f"{soon / gib:.2f} GiB in {near_s / 60:.0f} min (bound); the limit is {server.limit_bytes / gib:.2f} GiB"
    )
    return Need(server.name, most / (1 - sight.reserve), over_in_s, over_in_s <= 2 * sight.lead_s, why)


def _crossing(size: Callable[[float], float], room: float, end_s: float) -> float:
    """When a growing size passes the room, by bisection."""
    low, high = 0.0, end_s
    if size(low) > room:
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if size(middle) > room else (middle, high)
    return high
