"""The rows of the counting job: seeded, with few heavy and many thin ids, bags, and ids of one parameter server."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from recmesh.formats import SLOTS, slots_of

EVICTED = "fleeting"
TABLES = ("item", "user", "pinned", EVICTED)
"""`item` has bags of 0 to 4 ids, some twice in one; `user` has mostly ids of a single row; the ids of `pinned` all lie
in the first eighth of the slots, so that of up to eight parameter servers with equal shares one has all its rows.
`fleeting` has each of its ids once in a task, so in no batch twice: however batches are cut, a row's updates are its
occurrences."""

TASK_ROWS = 1024
"""Files have a multiple of it, so that tasks do, too."""
_HEAVY, _LIGHT = 12, 3_000
_PINNED = 64


def write(folder: Path, *, rows: int, seed: int, files: int = 2) -> list[Path]:
    """Parquet files with `rows` rows in all; equal arguments give equal rows."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, rows)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    heavy = rng.random(offsets[-1]) < 0.5
    few = rng.integers(-_HEAVY // 2, _HEAVY // 2, offsets[-1])
    item = np.where(heavy, few, rng.integers(100, 100 + _LIGHT, offsets[-1]))
    user = rng.integers(0, 2**62, rows)
    user[: rows // 2] = rng.zipf(1.5, rows // 2) % 1_000
    rng.shuffle(user)
    pinned = _ids_of_slots("pinned", 0, SLOTS // 8)[rng.integers(0, _PINNED, rows)]
    fleeting = np.arange(rows, dtype=np.int64) % TASK_ROWS
    table = pa.table({
        "item": pa.ListArray.from_arrays(pa.array(offsets), pa.array(item.astype(np.int64))),
        "user": user, "pinned": pinned, EVICTED: fleeting,
        "label": np.zeros(rows, np.float32),
    })
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for k in range(files):
        lo, hi = k * rows // files, (k + 1) * rows // files
        paths.append(folder / f"rows-{k}.parquet")
        pq.write_table(table.slice(lo, hi - lo), paths[-1], row_group_size=1024)
    return paths


def specification(paths: list[Path]) -> dict[str, Any]:
    """`data` of a job on these files."""
    return {
        "source": {"format": "parquet", "files": [str(path) for path in paths]},
        "features": [{"name": "item", "kind": "bag"}, {"name": "user"}, {"name": "pinned"}, {"name": EVICTED}],
        "task_rows": TASK_ROWS,
    }


def _ids_of_slots(table: str, lo: int, hi: int) -> NDArray[np.int64]:
    """The first `_PINNED` non-negative ids of the table whose slots lie in [lo, hi)."""
    ids = np.arange(_PINNED * 4 * SLOTS // (hi - lo), dtype=np.int64)
    slots = slots_of(ids, table)
    return ids[(slots >= lo) & (slots < hi)][:_PINNED]
