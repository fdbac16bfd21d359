"""Hourly files of batches and of a stream, and datasets of them: the ways of mixed training."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BEGIN = 1_704_067_200
"""2024-01-01, in UTC."""
HOUR = 3600
FEATURES: list[dict[str, Any]] = [{"name": "user"}, {"name": "item"}, {"name": "x", "kind": "dense"}]


def write_hours(root: Path, *, hours: int, rows: int = 70) -> None:
    """`batch/` and `stream/`: x is the row's number, counted over all hours, and above 100,000 in the stream."""
    for kind, base in (("batch", 0), ("stream", 100_000)):
        for hour in range(hours):
            random = np.random.default_rng([hour, base])
            user, item = random.integers(0, 9, rows), random.integers(0, 5, rows)
            target = root / kind / "20240101" / f"{hour:02}.parquet"
            target.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({
                "user": user, "item": item, "x": (base + hour * rows + np.arange(rows)).astype("float64"),
                "label": (user + item + random.normal(size=rows) > 6).astype("int64"),
            }), target)


def hourly(root: Path, kind: str, *, hours: int, behind: int = 0, **fields: Any) -> dict[str, Any]:
    """A source of one kind, `behind` by so many hours."""
    return {
        "files": [f"{root}/{kind}/{{YYYY}}{{MM}}{{DD}}/{{HH}}.parquet"], "kind": kind, "start": BEGIN,
        "end": BEGIN + hours * HOUR, "offset": behind * HOUR, **fields,
    }


def modes(root: Path, *, hours: int) -> dict[str, dict[str, Any]]:
    """Datasets over `write_hours`: pure batch, pure stream, batch then stream, and mixed (batches an hour behind)."""
    batch, stream = (hourly(root, kind, hours=hours) for kind in ("batch", "stream"))
    late = hourly(root, "batch", hours=hours - 1, behind=1)
    served = {
        "batch": [[batch]], "stream": [[stream]], "batch_then_stream": [[batch], [stream]], "mixed": [[late, stream]],
    }
    return {
        name: {
            "streams": [{"window": "1h", "sources": sources} for sources in streams], "features": FEATURES,
            "task_rows": 40,
        }
        for name, streams in served.items()
    }
