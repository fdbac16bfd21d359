"""US flights of 2001 as a live stream and as delayed batches: two folders of Parquet files by hour.

A flight's arrival is late above 15 minutes. The stream says so at once, but takes some of the late ones for punctual;
the batches are right, and read a day behind. Noise is drawn per seed, and each seed has a column.
"""

import itertools
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FILE = "ctr/flights/flights-3m.parquet"
BEGIN = datetime(2001, 1, 1, tzinfo=UTC)
LATE_MINUTES, VERY_LATE_MINUTES = 15, 60
UNSEEN = 0.3
"""Share of the late flights that the stream takes for punctual."""
AT = ["hour_number", "minute"]
FEATURES: list[dict[str, Any]] = [
    *({"name": name} for name in ("origin", "destination", "route", "hour", "weekday")),
    {"name": "origin_hour", "columns": ["origin", "hour"]},
    {"name": "distance", "kind": "dense", "transform": "log1p"},
]


class DataMissing(FileNotFoundError):
    """The data set is not on this machine."""


def source() -> Path:
    """Its path, in $RECMESH_DATA or ../shared/data; DataMissing says where it was looked for."""
    root = Path(os.environ.get("RECMESH_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
    if not (root / FILE).is_file():
        raise DataMissing(f"there is no {root / FILE}; set RECMESH_DATA to the folder that holds {FILE}")
    return root / FILE


def prepare(folder: Path, *, first: int, days: int, seeds: range, every: int = 1) -> int:
    """Writes `stream/` and `batch/` with the days [first, first + days) of 2001, one flight in `every`; returns how
    many flights."""
    table = read(first=first, days=days, every=every)
    late = table["late"].to_numpy()
    seen = table
    for seed in seeds:
        missed = np.random.default_rng(seed).random(late.size) < UNSEEN
        seen = seen.append_column(f"label_{seed}", pa.array(np.where(missed, 0, late), pa.int8()))
        table = table.append_column(f"label_{seed}", table["late"])
    hours = table["hour_number"].to_numpy()
    edges = np.searchsorted(hours, np.arange(days * 24 + 1))
    for name, rows in (("stream", seen.drop_columns(AT)), ("batch", table.drop_columns(AT))):
        for hour, (lo, hi) in enumerate(itertools.pairwise(edges)):
            begin = BEGIN + timedelta(days=first, hours=hour)
            target = folder / name / begin.strftime("%Y%m%d") / f"{begin:%H}.parquet"
            target.parent.mkdir(parents=True, exist_ok=True)
            if hi > lo:
                pq.write_table(rows.slice(lo, hi - lo), target, compression="none", use_dictionary=False)
    return int(table.num_rows)


def read(*, first: int, days: int, every: int = 1) -> pa.Table:
    """Flights of the days [first, first + days) of 2001, one in `every`, in the order of their departure; `late` is
    the truth, `minute` and `hour_number` count from the first day. DataMissing: see `source`."""
    table = pq.read_table(source())
    date = table["date"].to_numpy().astype("datetime64[m]")
    begin = np.datetime64(BEGIN.replace(tzinfo=None), "m") + np.timedelta64(first, "D")
    lo, hi = np.searchsorted(date, [begin, begin + np.timedelta64(days, "D")])
    table = table.slice(lo, hi - lo)
    table = table.take(pa.array(np.arange(0, table.num_rows, every)))
    date = table["date"]
    origin, destination = (table[name].cast(pa.string()) for name in ("origin", "destination"))
    minutes = date.to_numpy().astype("datetime64[m]") - begin
    return pa.table({
        "origin": origin,
        "destination": destination,
        "route": pc.binary_join_element_wise(origin, destination, "-"),
        "hour": pc.hour(date).cast(pa.int64()),
        "weekday": pc.day_of_week(date).cast(pa.int64()),
        "distance": table["distance"].cast(pa.int64()),
        "late": pc.greater(table["delay"], LATE_MINUTES).cast(pa.int8()),
        "very_late": pc.greater(table["delay"], VERY_LATE_MINUTES).cast(pa.int8()),
        "minute": minutes.astype(np.int64),
        "hour_number": (minutes // np.timedelta64(1, "h")).astype(np.int64),
    })


def dataset(folder: Path, *, seed: int, first: int, days: int) -> dict[str, Any]:
    """Both, hour by hour, the batches a day behind; `late` is the second label, for judging only."""
    begin, end = (BEGIN + timedelta(days=first + day) for day in (0, days))
    sources = {
        "stream": {"kind": "stream", "end": end.isoformat()},
        "batch": {"kind": "batch", "end": (end - timedelta(days=1)).isoformat(), "offset": "1d"},
    }
    return {
        "streams": [{"window": "1h", "sources": [
            {
                "files": [f"{folder}/{name}/{{YYYY}}{{MM}}{{DD}}/{{HH}}.parquet"], "start": begin.isoformat(),
                "may_be_empty": True, **sources[name],
            }
            for name in sources
        ]}],
        "labels": [f"label_{seed}", "late"],
        "features": FEATURES,
    }


def day_sizes(folder: Path, *, first: int, days: int) -> list[int]:
    """How many flights of each day there are."""
    names = [(BEGIN + timedelta(days=first + day)).strftime("%Y%m%d") for day in range(days)]
    return [sum(pq.read_metadata(file).num_rows for file in (folder / "stream" / name).glob("*")) for name in names]
