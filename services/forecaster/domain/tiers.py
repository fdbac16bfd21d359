"""A long past on coarser steps: the newest rates as they were measured, older ones as means."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recmesh.runtime.errors import InvalidArgument, Violation
from services.forecaster.domain.series import MAX_STEP_S, Bools, Floats, Grid, Point, snapped, without_gaps

MAX_TIER_STEP_S = MAX_STEP_S / 2
"""So that the next multiple of a series' own step is no more than `MAX_STEP_S`."""
LEAST_FINE = 240
"""Steps that must have been measured as they are, before those within longer means are told apart from them."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of `Stored`, oldest first."""

    at: Floats
    value: Floats
    width: Floats
    count: Floats

    @staticmethod
    def of(table: Floats) -> "Rows":
        """(n, 4), in the order of the fields."""
        return Rows(*np.ascontiguousarray(table.reshape(-1, 4).T))

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, which: "Bools | slice") -> "Rows":
        return Rows(self.at[which], self.value[which], self.width[which], self.count[which])

    def then(self, newer: "Rows") -> "Rows":
        """Both."""
        pairs = ((getattr(self, name), getattr(newer, name)) for name in Rows.__dataclass_fields__)
        return Rows(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True, slots=True)
class Stored:
    """Mean rate over [at, at + step_s), of `steps` values as they were measured."""

    at: float
    value: float
    step_s: float
    steps: int = 1


@dataclass(frozen=True, slots=True)
class Tier:
    """Rates older than `age_s` are kept as means over `step_s`."""

    age_s: float
    step_s: float


def tiers_of(days_and_steps: Iterable[tuple[float, float]], *, setting: str) -> tuple[Tier, ...]:
    """Checked: both grow; InvalidArgument names the setting."""
    tiers = tuple(Tier(days * 86_400, step_s) for days, step_s in days_and_steps)
    for before, after in zip((Tier(0.0, 0.0), *tiers), tiers, strict=False):
        if not (before.age_s < after.age_s < math.inf and before.step_s < after.step_s <= MAX_TIER_STEP_S):
            reason = (
                "must be [days, step in seconds], each pair larger than the one before in both, no step above "
                f"{MAX_TIER_STEP_S:g}"
            )
            wrong = [Violation(setting, reason)]
            raise InvalidArgument("wrong tiers of history", reason="BAD_CONFIG", violations=wrong)
    return tiers


def for_step(own_step_s: float, tiers: Sequence[Tier]) -> list[Tier]:
    """The tiers of a series: each step the next multiple of the one before, so that means nest; none below its own."""
    found: list[Tier] = []
    finer_s = own_step_s
    for tier in tiers:
        times = math.ceil(tier.step_s / finer_s - 1e-9)
        if times > 1:
            finer_s *= times
            found.append(Tier(tier.age_s, finer_s))
    return found


def coarser(rows: Iterable[Stored], step_s: float) -> list[Stored]:
    """Means over `step_s` of what was measured in it: the sum of value · steps stays what it was."""
    sums: dict[float, tuple[float, int]] = {}
    for row in rows:
        at = snapped(row.at, step_s)
        total, steps = sums.get(at, (0.0, 0))
        sums[at] = total + row.value * row.steps, steps + row.steps
    return [Stored(at, total / steps, step_s, steps) for at, (total, steps) in sorted(sums.items())]


def on_step(rows: Sequence[Stored], step_s: float) -> list[Point]:
    """One point for each step that something is known of, oldest first.

    A row narrower than the step is part of its mean, by the number of its values; a wider one holds for every step
    that it covers. So recent and old rates are on one grid, and all is as if it had been measured on it.
    """
    if not rows:
        return []
    columns = Rows.of(np.array([(row.at, row.value, row.step_s, row.steps) for row in rows], dtype=np.float64))
    bucket, weight, row_of = _spread(columns, step_s)
    kept, index = np.unique(bucket, return_inverse=True)
    means = np.bincount(index, weights=weight * columns.value[row_of]) / np.bincount(index, weights=weight)
    return [Point(float(place * step_s), float(mean)) for place, mean in zip(kept, means, strict=True)]


def grid_of(rows: Rows, step_s: float, *, now: float = 0.0, limit: int) -> Grid:
    """The newest `limit` whole steps that are over at `now` (0: when the last row ends), up to the last with a value.

    As `on_step`, with gaps filled as in `regular`. Rows that reach beyond `now` are left out. A step whose end nothing
    is known of yet is no whole one: the mean of its first part is not its rate. Rates of its last half may be late.
    """
    if now:
        rows = rows[rows.at + rows.width <= now + 1e-6]
    if not len(rows):
        return Grid(0.0, step_s, np.zeros(0))
    end = float((rows.at + rows.width).max())
    if now:
        end = min(now, end + step_s / 2)
    bucket, weight, row_of = _spread(rows, step_s)
    whole = bucket < math.floor(end / step_s + 1e-9)
    whole &= bucket >= bucket[whole].max(initial=0) - limit + 1
    bucket, weight, row_of = bucket[whole], weight[whole], row_of[whole]
    if not len(bucket):
        return Grid(0.0, step_s, np.zeros(0))
    first = int(bucket.min())
    total = np.bincount(bucket - first, weights=weight)
    sums = np.bincount(bucket - first, weights=weight * rows.value[row_of])
    missing = total == 0
    values = np.full(len(total), np.nan)
    np.divide(sums, total, out=values, where=~missing)
    coarse = np.bincount(bucket - first, weights=rows.width[row_of] > step_s * (1 + 1e-9)) > 0
    told = coarse.any() and int((~missing & ~coarse).sum()) >= LEAST_FINE
    return Grid(first * step_s, step_s, without_gaps(values, step_s), missing, coarse if told else None)


def _spread(rows: Rows, step_s: float) -> tuple[npt.NDArray[np.int64], Floats, npt.NDArray[np.int64]]:
    """By pair of a row and a step that it reaches into: the step, the number of the row's values in it, and the row."""
    at, width = rows.at, rows.width
    first = np.floor(at / step_s + 1e-9).astype(np.int64)
    beyond = np.ceil((at + width) / step_s - 1e-9).astype(np.int64)
    covered = np.maximum(beyond - first, 1)
    row_of = np.repeat(np.arange(len(at)), covered)
    starts = np.cumsum(covered) - covered
    bucket = first[row_of] + np.arange(len(row_of)) - starts[row_of]
    overlap = np.minimum((at + width)[row_of], (bucket + 1) * step_s) - np.maximum(at[row_of], bucket * step_s)
    weight = rows.count[row_of] * np.maximum(overlap, 1e-12 * width[row_of]) / width[row_of]
    return bucket, weight, row_of
