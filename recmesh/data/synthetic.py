"""Criteo-like data of any size: 13 numbers and 26 ids per row, a hidden truth to learn, and, where asked for, drift.

Every row is a function of the seed and its number alone, so any part can be made by itself, by anybody, again.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import ndtri

from recmesh.data.faults import wrong
from recmesh.formats import mix, splitmix64

TABLES, DENSE = 26, 13
DAY_S = 86_400.0
_BLOCK = 1 << 16
"""Rows that are drawn together."""
_BIAS = -1.2
_ID_WEIGHT, _DENSE_WEIGHT = 1.0, 0.2

F64 = NDArray[np.float64]
U64 = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Synthetic:
    """What the rows are drawn from."""

    seed: int = 0
    ids: int = 1_000_000
    """Different ids of a column at any one time."""
    zipf: float = 1.05
    """P(k) is proportional to (k + 1) to the power of minus this."""
    rows_per_day: float = 1e6
    start: float = 0.0
    """Unix seconds of the first row."""
    drift: float = 0.0
    """Radians per day by which the truth turns: after t days it correlates by cos(drift·t) with the beginning."""
    churn: float = 0.0
    """Share of a column's ids that are replaced per day, each by an id that never was there."""

    def __post_init__(self) -> None:
        for name, least in (("ids", 1), ("rows_per_day", 1e-9), ("zipf", 0.0), ("drift", 0.0), ("churn", 0.0)):
            if not getattr(self, name) >= least:
                raise wrong(name, f"must be at least {least:g}, not {getattr(self, name)}")

    def table(self, lo: int, hi: int) -> Any:
        """Rows [lo, hi) as an Arrow table: time (seconds), label, I1..I13 and C1..C26, in order of time."""
        return self.drawn(lo, hi).table

    def drawn(self, lo: int, hi: int) -> "Drawn":
        """Rows [lo, hi), and the truth about them."""
        blocks = [self._block(number) for number in range(lo // _BLOCK, max(-(-hi // _BLOCK), lo // _BLOCK + 1))]
        part = slice(lo - lo // _BLOCK * _BLOCK, hi - lo // _BLOCK * _BLOCK)
        table = pa.concat_tables([block.table for block in blocks]).slice(part.start, hi - lo).combine_chunks()
        logit, first = (np.concatenate([getattr(block, name) for block in blocks])[part] for name in ("logit", "first"))
        return Drawn(table, logit, first)

    def time_of(self, row: int) -> float:
        """Unix seconds."""
        return self.start + row / self.rows_per_day * DAY_S

    def row_at(self, time: float) -> int:
        """The first row that is not before this time."""
        row = max(0, int((time - self.start) / DAY_S * self.rows_per_day) - 2)
        while self.time_of(row) < time:
            row += 1
        return row

    def _block(self, number: int) -> "Drawn":
        rng = np.random.default_rng([self.seed, number])
        row = np.arange(number * _BLOCK, (number + 1) * _BLOCK)
        days = row / self.rows_per_day
        ids = self._ids_at(self._ranks(rng), days)
        dense = rng.normal(size=(_BLOCK, DENSE))
        logit = self._logit(ids, dense, days)
        first = self._logit(ids, dense, np.zeros(_BLOCK)) if self.drift else logit
        label = rng.random(_BLOCK) < 1.0 / (1.0 + np.exp(-logit))
        columns: dict[str, Any] = {"time": self.start + days * DAY_S, "label": label.astype(np.int8)}
        columns |= {f"I{k + 1}": dense[:, k].astype(np.float32) for k in range(DENSE)}
        columns |= {f"C{k + 1}": np.ascontiguousarray(ids[:, k]).view(np.int64) for k in range(TABLES)}
        return Drawn(pa.table(columns), logit, first)

    def _ranks(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """[rows, TABLES]: by the inverse of the continuous law, which needs no table of all ids."""
        drawn, most = rng.random((_BLOCK, TABLES)), float(self.ids + 1)
        if abs(self.zipf - 1.0) < 1e-9:
            ranks = most**drawn
        else:
            power = 1.0 - self.zipf
            ranks = (1.0 + drawn * (most**power - 1.0)) ** (1.0 / power)
        return np.minimum(ranks.astype(np.int64) - 1, self.ids - 1)

    def _ids_at(self, ranks: NDArray[np.int64], days: F64) -> U64:
        """[rows, TABLES]: who has the rank then; each rank changes hands at times of its own."""
        column = np.arange(TABLES, dtype=np.uint64) << np.uint64(40)
        place = splitmix64(ranks.astype(np.uint64) + column + np.uint64(mix(self.seed)))
        if not self.churn:
            return place >> np.uint64(1)
        age = np.floor(days[:, None] * self.churn + uniform(place)).astype(np.uint64)
        return splitmix64(place + age * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1)

    def _logit(self, ids: U64, dense: F64, days: F64) -> F64:
        turn = self.drift * days
        then, later = self._weights(ids, 1), self._weights(ids, 2) if self.drift else np.float64(0.0)
        of_ids = np.cos(turn) * then + np.sin(turn) * later
        number = np.arange(DENSE, dtype=np.uint64)
        of_dense = ndtri(uniform(splitmix64(number + np.uint64(mix(self.seed ^ 3))))) * _DENSE_WEIGHT
        result: F64 = of_ids + dense @ of_dense + _BIAS
        return result

    def _weights(self, ids: U64, which: int) -> F64:
        """[rows]: the sum over columns of each id's own, normally distributed weight."""
        drawn = ndtri(uniform(splitmix64(ids ^ np.uint64(mix(self.seed ^ which << 32)))))
        result: F64 = drawn.sum(axis=1) * (_ID_WEIGHT / np.sqrt(TABLES))
        return result


@dataclass(frozen=True, slots=True)
class Drawn:
    """Rows, and what nobody knows who learns from them."""

    table: Any
    logit: F64
    """[rows]: of the chance of a label of 1."""
    first: F64
    """[rows]: what it would be if the truth were as it was at the beginning."""


class BestAuc:
    """The AUC, in expectation over labels, of a score of rows whose chances are known: with the logit of the chance
    itself, the best that any model can reach. Exact but for scores that differ by less than 0.002. Of any number of
    rows."""

    _BINS, _SPAN = 1 << 14, 16.0

    def __init__(self) -> None:
        self._ones, self._zeros = np.zeros(self._BINS), np.zeros(self._BINS)

    def add(self, score: F64, logit: F64) -> None:
        """[rows] each: the score is a logit too."""
        place = np.clip((score + self._SPAN) * (self._BINS / (2 * self._SPAN)), 0, self._BINS - 1).astype(np.int64)
        chance = 1.0 / (1.0 + np.exp(-logit))
        self._ones += np.bincount(place, chance, self._BINS)
        self._zeros += np.bincount(place, 1.0 - chance, self._BINS)

    @property
    def value(self) -> float:
        """0.5 where there is nothing to tell apart."""
        below = np.cumsum(self._zeros) - self._zeros / 2
        pairs = float(self._ones.sum() * self._zeros.sum())
        return float((self._ones * below).sum()) / pairs if pairs else 0.5


def uniform(words: U64) -> F64:
    """(0, 1), of the upper 53 bits."""
    result: F64 = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return result


def features() -> list[dict[str, Any]]:
    """Of a dataset specification."""
    dense = [{"name": f"I{k + 1}", "kind": "dense"} for k in range(DENSE)]
    return [*dense, *({"name": f"C{k + 1}"} for k in range(TABLES))]
