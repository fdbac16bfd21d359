"""Generated rows as files: one, several, or windows of time with markers; and labels apart, in the order they come."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import yaml

from recmesh.data.faults import wrong
from recmesh.data.synthetic import BestAuc, Drawn, Synthetic, features, uniform
from recmesh.data.windows import filled
from recmesh.formats import mix, splitmix64
from recmesh.spec.dataset import TIME_FIELDS

BLOCK = 1 << 16
"""Rows that are made, and held, at once."""
FORMATS = ("parquet", "csv")
_DONE = "_SUCCESS"


@dataclass(frozen=True, slots=True)
class Target:
    """Where rows go."""

    out: Path
    """A file (`.parquet`, `.csv`), a folder, or a path with `{YYYY}`, `{MM}`, `{DD}`, `{HH}` or `{mm}` in it."""
    file_rows: int = 1_000_000
    window_s: float = 3600.0
    """Of a path with parts of a time in it."""
    done: bool = False
    """A marker file in each complete window."""
    labels: Path | None = None
    """Labels go to this file and not into the rows, which get an `id`: one line for each label of 1."""
    delay_s: float = 600.0
    """Mean of the times after which labels come; they are distributed exponentially."""

    def __post_init__(self) -> None:
        for name, file in (("out", self.out), ("labels", self.labels)):
            if file is not None and file.suffix and file.suffix[1:] not in FORMATS:
                raise wrong(name, f"{file} ends in neither .parquet nor .csv")
        if self.labels is not None and not self.labels.suffix:
            raise wrong("labels", f"{self.labels} is no file: its name ends in .parquet or .csv")
        if self.file_rows < 1:
            raise wrong("file_rows", "must be at least 1")
        if not 60 <= self.window_s or self.window_s % 60:
            raise wrong("window", "must be whole minutes")
        needed = TIME_FIELDS[: 5 if self.window_s % 3600 else 4 if self.window_s % 86400 else 3]
        if self.by_time and (missing := [field for field in needed if field not in str(self.out)]):
            raise wrong("out", f"windows of {self.window_s:g} s need {', '.join(missing)}, else several would be one")

    @property
    def by_time(self) -> bool:
        """Whether rows go to windows."""
        return any(field in str(self.out) for field in TIME_FIELDS)


@dataclass(slots=True)
class Made:
    """How far it is."""

    file: Path
    rows: int
    best: BestAuc
    """Of the truth as it is."""
    frozen: BestAuc
    """Of the truth as it was at the beginning, on all rows: what a model reaches that stops learning then."""
    labels: int = 0


def write(data: Synthetic, target: Target, *, rows: int) -> Iterator[Made]:
    """The first `rows` rows, told after each file, which appears whole or not at all. What is there is replaced.

    A folder, or windows, also get a `dataset.yaml`. Memory does not grow with the number of rows.
    """
    if rows < 1:
        raise wrong("rows", "must be at least 1")
    made = Made(target.out, 0, BestAuc(), BestAuc())
    later = _Labels(data, target) if target.labels is not None else None
    for part in _parts(data, target, rows):
        _write(part.file, (_shown(each, later, first) for first, each in _drawn(data, part, made)))
        if part.marker is not None:
            part.marker.touch()
        made.file, made.labels = part.file, later.count if later else 0
        yield made
    if later is not None:
        later.close()
        made.labels = later.count
    if not target.out.suffix:
        _describe(data, target, rows)


@dataclass(frozen=True, slots=True)
class _Part:
    file: Path
    lo: int
    hi: int
    marker: Path | None = None


def _parts(data: Synthetic, target: Target, rows: int) -> Iterator[_Part]:
    if target.out.suffix:
        yield _Part(target.out, 0, rows)
        return
    if not target.by_time:
        for number, lo in enumerate(range(0, rows, target.file_rows)):
            yield _Part(target.out / f"part-{number:05d}.parquet", lo, min(rows, lo + target.file_rows))
        return
    begin = data.start // target.window_s * target.window_s
    lo = 0
    while lo < rows:
        hi = min(rows, data.row_at(begin + target.window_s))
        folder = Path(filled(str(target.out), begin))
        firsts = range(lo, hi, target.file_rows)
        if not firsts and target.done:            # rows are further apart than windows
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _DONE).touch()
        for number, first in enumerate(firsts):
            last = min(hi, first + target.file_rows)
            marker = folder / _DONE if target.done and last == hi else None
            yield _Part(folder / f"part-{number:05d}.parquet", first, last, marker)
        lo, begin = hi, begin + target.window_s


def _drawn(data: Synthetic, part: _Part, made: Made) -> Iterator[tuple[int, Drawn]]:
    """Blocks of a file, counted in."""
    first = part.lo
    while first < part.hi:
        last = min(part.hi, (first // BLOCK + 1) * BLOCK)
        drawn = data.drawn(first, last)
        made.best.add(drawn.logit, drawn.logit)
        made.frozen.add(drawn.first, drawn.logit)
        made.rows += last - first
        yield first, drawn
        first = last


def _shown(drawn: Drawn, later: "_Labels | None", first: int) -> Any:
    return drawn.table if later is None else later.part(drawn.table, first)


class _Labels:
    """Labels of 1, in order of the time at which they come."""

    def __init__(self, data: Synthetic, target: Target) -> None:
        assert target.labels is not None
        self.count = 0
        self._data, self._delay_s, self._path = data, target.delay_s, target.labels
        self._waiting = _label_table(np.empty(0, np.int64), np.empty(0))
        self._file = _open(target.labels, self._waiting.schema)

    def part(self, table: Any, first: int) -> Any:
        """The rows without labels; what has come by their end is written."""
        ids = np.arange(first, first + table.num_rows)
        times, label = table["time"].to_numpy(), table["label"].to_numpy() > 0
        chance = uniform(splitmix64(ids.astype(np.uint64) + np.uint64(mix(self._data.seed ^ 4))))
        delays = -np.log(chance) * self._delay_s
        self._waiting = pa.concat_tables([self._waiting, _label_table(ids[label], (times + delays)[label])])
        self._emit(float(times[-1]))
        return table.drop_columns(["label"]).add_column(0, "id", pa.array(ids))

    def _emit(self, until: float) -> None:
        table = self._waiting.sort_by("time")
        come = int(np.searchsorted(table["time"].to_numpy(), until, side="right"))
        self._file.write_table(table.slice(0, come))
        self.count += come
        self._waiting = table.slice(come)

    def close(self) -> None:
        """All others."""
        self._emit(math.inf)
        self._file.close()
        self._path.with_name(f"{self._path.name}.new").replace(self._path)


def _label_table(ids: Any, times: Any) -> Any:
    return pa.table({"id": pa.array(ids, pa.int64()), "time": times, "label": pa.array(np.ones(len(ids), np.int8))})


def _open(file: Path, schema: Any) -> Any:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.new")
    return pv.CSVWriter(new, schema) if file.suffix == ".csv" else pq.ParquetWriter(new, schema)


def _write(file: Path, tables: Iterator[Any]) -> None:
    first = next(tables)
    with _open(file, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
    file.with_name(f"{file.name}.new").replace(file)


def _describe(data: Synthetic, target: Target, rows: int) -> None:
    """A job's `data`, beside the files; without labels they are no data yet."""
    if target.labels is not None:
        return
    folder = target.out.resolve()
    if not target.by_time:
        spec: dict[str, Any] = {"source": {"files": [str(folder / "part-*.parquet")]}}
    else:
        source = {
            "files": [str(folder / "part-*.parquet")], "start": data.start,
            "end": data.time_of(rows - 1) + 1e-3, "may_be_empty": True,
        }
        source |= {"done": str(folder / _DONE)} if target.done else {}
        spec = {"streams": [{"window": target.window_s, "sources": [source]}]}
        while any(field in str(folder) for field in TIME_FIELDS):
            folder = folder.parent
    text = yaml.safe_dump({**spec, "features": features()}, sort_keys=False)
    (folder / "dataset.yaml").write_text(text)
