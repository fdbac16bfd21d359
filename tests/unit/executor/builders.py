"""Tasks whose rows say which they are, without a file."""

import numpy as np

from recmesh.data.decoded import Decoded
from recmesh.data.records import Batch, FileSlice, IdColumn, TaskRecord

ROW_BYTES = 8 + 4 + 4


def task(number: int, *, rows: int = 10, view: int = 0, seed: int = 0) -> TaskRecord:
    """The number-th of equal tasks."""
    file = FileSlice("nowhere", 1, "tag", number * rows, rows, view=view)
    return TaskRecord(1, 0, number * rows, rows, 0, seed, file)


def rows_of(task: TaskRecord) -> Decoded:
    """Each row has its position as id."""
    positions = np.arange(task.base, task.base + task.rows, dtype=np.int64)
    column = positions.astype(np.float32)[:, None]
    return Decoded(Batch(task.rows, {"row": IdColumn(positions)}, column, column))
