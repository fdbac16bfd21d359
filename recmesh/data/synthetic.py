"""Criteo-like data of any size: 13 numbers and 26 ids per row, a hidden truth to learn, and, where asked for, drift.

Every row is a function of the seed and its number alone, so any part can be made by itself, by anybody, again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
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
        parts = [self._block(number) for number in range(lo // _BLOCK, max(-(-hi // _BLOCK), lo // _BLOCK + 1))]
        first = lo // _BLOCK * _BLOCK
        return pa.concat_tables(parts).slice(lo - first, hi - lo).combine_chunks()

    def _block(self, number: int) -> Any:
        rng = np.random.default_rng([self.seed, number])
        row = np.arange(number * _BLOCK, (number + 1) * _BLOCK)
        days = row / self.rows_per_day
        ids = self._ids_at(self._ranks(rng), days)
        dense = rng.normal(size=(_BLOCK, DENSE))
        label = rng.random(_BLOCK) < 1.0 / (1.0 + np.exp(-self._logit(ids, dense, days)))
        columns: dict[str, Any] = {"time": self.start + days * DAY_S, "label": label.astype(np.int8)}
        columns |= {f"I{k + 1}": dense[:, k].astype(np.float32) for k in range(DENSE)}
        columns |= {f"C{k + 1}": np.ascontiguousarray(ids[:, k]).view(np.int64) for k in range(TABLES)}
        return pa.table(columns)

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
        age = np.floor(days[:, None] * self.churn + _uniform(place)).astype(np.uint64)
        return splitmix64(place + age * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1)

    def _logit(self, ids: U64, dense: F64, days: F64) -> F64:
        turn = self.drift * days
        then, later = self._weights(ids, 1), self._weights(ids, 2) if self.drift else np.float64(0.0)
        of_ids = np.cos(turn) * then + np.sin(turn) * later
        number = np.arange(DENSE, dtype=np.uint64)
        of_dense = ndtri(_uniform(splitmix64(number + np.uint64(mix(self.seed ^ 3))))) * _DENSE_WEIGHT
        result: F64 = of_ids + dense @ of_dense + _BIAS
        return result

    def _weights(self, ids: U64, which: int) -> F64:
        """[rows]: the sum over columns of each id's own, normally distributed weight."""
        drawn = ndtri(_uniform(splitmix64(ids ^ np.uint64(mix(self.seed ^ which << 32)))))
        result: F64 = drawn.sum(axis=1) * (_ID_WEIGHT / np.sqrt(TABLES))
        return result


def _uniform(words: U64) -> F64:
    """(0, 1), of the upper 53 bits."""
    result: F64 = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return result


def features() -> list[dict[str, Any]]:
    """Of a dataset specification."""
    dense = [{"name": f"I{k + 1}", "kind": "dense"} for k in range(DENSE)]
    return [*dense, *({"name": f"C{k + 1}"} for k in range(TABLES))]


def write(data: Synthetic, folder: Path, *, rows: int, file_rows: int) -> Iterator[tuple[Path, int]]:
    """Parquet files of the first `rows` rows and a `dataset.yaml`; gives each file when it is there, and rows so far.

    A file appears whole or not at all; files that are there already are written again.
    """
    if rows < 1 or file_rows < 1:
        raise wrong("rows" if rows < 1 else "file_rows", "must be at least 1")
    folder.mkdir(parents=True, exist_ok=True)
    for number, lo in enumerate(range(0, rows, file_rows)):
        path, hi = folder / f"part-{number:05d}.parquet", min(rows, lo + file_rows)
        made = path.with_suffix(".new")
        with pq.ParquetWriter(made, data.table(0, 1).schema) as writer:
            for first in range(lo, hi, _BLOCK):
                writer.write_table(data.table(first, min(hi, first + _BLOCK)))
        made.replace(path)
        yield path, hi
    spec = {"source": {"files": [str(folder.resolve() / "part-*.parquet")]}, "features": features()}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
