"""Writes flights.parquet as a stream and as batches, in a file per hour, for mixed.yaml.

    python -m examples.flights.by_hour

The stream takes three of ten late flights for punctual; the batches tell the truth, and are read a day behind.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
DAYS = 14
UNSEEN = 0.3


def write(table: pa.Table, target: Path, *, days: int = DAYS, seed: int = 0) -> int:
    """`stream/` and `batch/` with the first days; returns how many files."""
    hours = (table["date"].to_numpy() - np.datetime64("2001-01-01T00")) // np.timedelta64(1, "h")
    missed = np.random.default_rng(seed).random(table.num_rows) < UNSEEN
    seen = pa.array(np.where(missed, 0, table["late"].to_numpy()), pa.int8())
    place = table.column_names.index("late")
    for kind, rows in (("batch", table), ("stream", table.set_column(place, "late", seen))):
        for hour in range(days * 24):
            lo, hi = np.searchsorted(hours, [hour, hour + 1])
            path = target / kind / f"200101{hour // 24 + 1:02}" / f"{hour % 24:02}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows.slice(lo, hi - lo), path)
    return days * 48


if __name__ == "__main__":
    print(f"{write(pq.read_table(HERE / 'flights.parquet'), HERE / 'by_hour')} files in {HERE / 'by_hour'}")
