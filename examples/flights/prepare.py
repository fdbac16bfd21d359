"""Makes flights.parquet from the public-domain table of US flights (Bureau of Transportation Statistics).

    python -m examples.flights.prepare flights-3m.parquet

Every n-th flight is kept, in order of departure, with the columns that the example's model reads.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

HERE = Path(__file__).parent
LATE_MINUTES, VERY_LATE_MINUTES = 15, 60


def prepare(table: pa.Table, *, every: int) -> pa.Table:
    """One row in `every`; labels are arrivals more than 15, and more than 60 minutes late."""
    table = table.take(pa.array(range(0, table.num_rows, every)))
    date = table["date"]
    origin, destination = (table[name].cast(pa.string()) for name in ("origin", "destination"))
    return pa.table(
        {
            "date": date.cast(pa.timestamp("s")),
            "origin": origin,
            "destination": destination,
            "route": pc.binary_join_element_wise(origin, destination, "-"),
            "hour": pc.hour(date).cast(pa.int8()),
            "weekday": pc.day_of_week(date).cast(pa.int8()),
            "day": pc.day(date).cast(pa.int8()),
            "distance": table["distance"].cast(pa.int16()),
            "late": pc.greater(table["delay"], LATE_MINUTES).cast(pa.int8()),
            "very_late": pc.greater(table["delay"], VERY_LATE_MINUTES).cast(pa.int8()),
        }
    )


def main(source: str, every: int = 5) -> None:
    """Write flights.parquet beside this file."""
    table = prepare(pq.read_table(source), every=every)
    target = HERE / "flights.parquet"
    pq.write_table(table, target, compression="zstd", compression_level=19, row_group_size=32768)
    late = pc.mean(table["late"]).as_py()
    print(f"{target}: {table.num_rows} rows, {target.stat().st_size / 1e6:.1f} MB, {late:.1%} late")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
