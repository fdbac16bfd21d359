"""The first 80,000 rows of Criteo's display advertising challenge as a Parquet file, prepared as is usual.

Integers become ln(1+x) and, as ids, floor(ln(1+x)²); a category seen fewer than MIN_COUNT times in the training rows
is one id per column. All models, the logistic regression too, see these same columns.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

FILE = "ctr/criteo_dac_first80k_hashed.csv.gz"
TRAIN = 0.8
MIN_COUNT = 4
INTEGERS = [f"I{k}" for k in range(1, 14)]
CATEGORIES = [f"C{k}" for k in range(1, 27)]
BUCKETS = [f"B{k}" for k in range(1, 14)]

MISSING, RARE = 0, 1


class DataMissing(FileNotFoundError):
    """The data set is not on this machine."""


def source() -> Path:
    """Its path, in $RECMESH_DATA or ../shared/data; DataMissing says where it was looked for."""
    root = Path(os.environ.get("RECMESH_DATA") or Path(__file__).resolve().parent.parent.parent / "shared" / "data")
    if not (root / FILE).is_file():
        raise DataMissing(f"there is no {root / FILE}; set RECMESH_DATA to the folder that holds {FILE}")
    return root / FILE


def prepare(path: Path) -> int:
    """Writes columns label, I*, B* and C*; returns the number of rows."""
    types: dict[str, pa.DataType] = {"label": pa.int8()}
    types |= dict.fromkeys(INTEGERS, pa.float64()) | dict.fromkeys(CATEGORIES, pa.string())
    options = pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    table = pyarrow.csv.read_csv(source(), convert_options=options)
    seen = round(table.num_rows * TRAIN)
    columns: dict[str, Any] = {"label": table["label"]}
    for integer, bucket in zip(INTEGERS, BUCKETS, strict=True):
        x = np.nan_to_num(table[integer].to_numpy(), nan=-3.0)
        log = np.sign(x) * np.log1p(np.abs(x))
        columns[integer] = np.where(x < -2, 0.0, log).astype(np.float32)
        small = np.where(x <= 2, x, np.floor(log**2) + 2).astype(np.int64)
        columns[bucket] = _without_rare(np.where(x < -2, -10, small), small[:0], seen)
    for name in CATEGORIES:
        column = pc.fill_null(table[name], "").combine_chunks().dictionary_encode()
        missing = np.flatnonzero(np.asarray(column.dictionary.to_pylist()) == "")
        columns[name] = _without_rare(column.indices.to_numpy().astype(np.int64), missing, seen)
    pq.write_table(pa.table(columns), path, row_group_size=4096)
    return int(table.num_rows)


def _without_rare(values: npt.NDArray[np.int64], missing: npt.NDArray[np.int64], seen: int) -> npt.NDArray[np.int64]:
    """Numbers from 2 for values often enough among the first `seen`; 1 for all others, 0 for missing."""
    known, counts = np.unique(values[:seen], return_counts=True)
    frequent = known[counts >= MIN_COUNT]
    at = np.searchsorted(frequent, values).clip(max=max(len(frequent) - 1, 0))
    numbers = np.where(frequent[at] == values, at + 2, RARE) if len(frequent) else np.full(len(values), RARE)
    numbers[np.isin(values, missing)] = MISSING
    return numbers.astype(np.int64)


def specification(path: Path, rows: tuple[float, float]) -> dict[str, Any]:
    """A part of the rows as a dataset."""
    features: list[dict[str, Any]] = [{"name": name, "kind": "dense"} for name in INTEGERS]
    features += [{"name": name} for name in [*BUCKETS, *CATEGORIES]]
    return {
        "source": {"format": "parquet", "files": [str(path)], "rows": list(rows)}, "label": "label",
        "features": features, "task_rows": 65_536,
    }
