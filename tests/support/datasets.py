"""Small files of known content, in every format that the readers know."""

import gzip
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from recmesh.data import TaskRecord
from recmesh.data.index import index_dataset
from recmesh.spec.dataset import DatasetSpec


def clicks(rows: int, *, seed: int = 1) -> pa.Table:
    """Columns row (0, 1, ...), label, user (int, some missing), city (text, some missing), price (some missing)."""
    rng = random.Random(seed)
    return pa.table({
        "row": pa.array(range(rows), pa.int64()),
        "label": pa.array([rng.randint(0, 1) for _ in range(rows)], pa.int64()),
        "user": pa.array([None if rng.random() < 0.1 else rng.randint(0, 1000) for _ in range(rows)], pa.int64()),
        "city": pa.array(["" if rng.random() < 0.1 else f"city-{rng.randint(0, 50)}" for _ in range(rows)]),
        "price": pa.array([None if rng.random() < 0.1 else round(rng.uniform(-5, 50), 3) for _ in range(rows)]),
    })


FEATURES: list[dict[str, Any]] = [
    {"name": "user"}, {"name": "city"}, {"name": "price", "kind": "dense"}, {"name": "row", "kind": "dense"},
]


def spec(*files: Path | str, **more: Any) -> DatasetSpec:
    """A dataset of `clicks` files; keywords of the source come first, then the dataset's own."""
    known = ("format", "compression", "header", "columns", "delimiter", "rows", "types", "quoted")
    source = {key: more.pop(key) for key in known if key in more}
    return DatasetSpec.parse(
        {"source": {"files": [str(file) for file in files], **source}, "features": FEATURES} | more
    )


def write(table: pa.Table, path: Path, *, row_group: int = 1000) -> Path:
    """As the ending says: .parquet, .csv, .tsv, each text also .gz."""
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=row_group)
        return path
    delimiter = "\t" if ".tsv" in path.name else ","
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(include_header=False, delimiter=delimiter, quoting_style="none"))
    text = (delimiter.join(table.column_names) + "\n").encode() + sink.getvalue().to_pybytes()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def tasks_of(dataset: DatasetSpec, *, order_seed: int = 0) -> list[TaskRecord]:
    """The dataset's slices on one line."""
    tasks, base = [], 0
    for piece in index_dataset(dataset).slices:
        tasks.append(TaskRecord(1, 0, base, piece.rows, 0, order_seed, piece))
        base += piece.rows
    return tasks
