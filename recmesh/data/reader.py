"""Rows of positions: the only way from task records to batches."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from recmesh.data.cache import ByteCache
from recmesh.data.columns import labels_of, weights_of
from recmesh.data.faults import wrong
from recmesh.data.fileformats import format_named
from recmesh.data.index import index_dataset
from recmesh.data.records import Batch, FileSlice, TaskRecord, concat
from recmesh.data.schema import check_columns, kind_of
from recmesh.data.transform import Transform
from recmesh.formats import permutation
from recmesh.spec.dataset import DatasetSpec


class TaskReader:
    """Batches of a dataset by position. Safe to share between threads; one decodes at a time.

    Decoded tasks and row groups are kept within `cache_bytes`, and always the newest of each, so that consecutive
    batches of a task are views. Few are enough: positions are read in order.
    """

    def __init__(self, spec: DatasetSpec, *, cache_bytes: int = 96 << 20) -> None:
        self._spec = spec
        self._transform = Transform.of(spec)
        self._tasks: ByteCache[tuple[FileSlice, int], Batch] = ByteCache(cache_bytes // 2)
        self._slices = format_named(spec.source.format).reader(spec, cache_bytes=cache_bytes - cache_bytes // 2)
        self._lock = threading.Lock()

    def batch(self, tasks: Sequence[TaskRecord], lo: int, hi: int) -> Batch:
        """The rows at positions [lo, hi), in order of position; the tasks must cover them.

        DataLoss: a file changed since it was indexed. InvalidArgument: its content is not as specified.
        """
        parts: list[Batch] = []
        at = lo
        for task in sorted(tasks, key=lambda task: task.base):
            first, last = max(at, task.base), min(hi, task.base + task.rows)
            if task.close or first >= last or first > at:
                continue
            parts.append(self.task(task).rows(first - task.base, last - task.base))
            at = last
        if at < hi or not parts:
            raise wrong("tasks", f"no task record covers position {at} of [{lo}, {hi})")
        return concat(parts)

    def task(self, task: TaskRecord) -> Batch:
        """All rows of a task, in order of position."""
        if task.file is None:
            raise wrong("tasks", f"the task record at {task.base} names no file")
        file = task.file
        seed = task.order_seed
        with self._lock:
            return self._tasks.get((file, seed), lambda: self._decode(file, seed), size_of=_size_bytes)

    def _decode(self, piece: FileSlice, order_seed: int) -> Batch:
        where = f"{piece.uri} rows {piece.first_row} to {piece.first_row + piece.rows}"
        table = self._slices.read(piece)
        check_columns(self._spec, {field.name: kind_of(field.type) for field in table.schema}, where=piece.uri)
        batch = batch_of(table, self._spec, self._transform, where=where)
        if not order_seed:
            return batch
        return batch.take(np.asarray(permutation(order_seed, batch.size), np.int64))


def batch_of(table: Any, spec: DatasetSpec, transform: Transform, *, where: str) -> Batch:
    """The rows of an Arrow table, in its order. Errors name the field and `where` the rows came from."""
    ids, dense = transform.inputs(table, where=where)
    return Batch(
        table.num_rows, ids, dense, labels_of(table, spec, where=where), weights_of(table, spec)
    )


def _size_bytes(batch: Batch) -> int:
    return batch.size_bytes


def whole_dataset(
    spec: DatasetSpec,
    *,
    batch_size: int = 8192,
    rows: tuple[float, float] | None = None,
    max_rows: int | None = None,
    cache_bytes: int = 96 << 20,
) -> Iterator[Batch]:
    """All rows in file order, for evaluation and for training without a mesh.

    `rows` takes the place of the source's own share. The last batch of a file's slice is carried over, so
    that all batches but the last have `batch_size` rows.
    """
    if rows is not None:
        spec = spec.model_copy(update={"source": spec.source.model_copy(update={"rows": rows})})
    tasks: list[TaskRecord] = []
    base = 0
    for piece in index_dataset(spec).slices:
        tasks.append(TaskRecord(0, 0, base, piece.rows, 0, 0, piece))
        base += piece.rows
    total = base if max_rows is None else min(base, max_rows)
    reader = TaskReader(spec, cache_bytes=cache_bytes)
    first = 0
    for lo in range(0, total, batch_size):
        hi = min(total, lo + batch_size)
        while tasks[first].base + tasks[first].rows <= lo:
            first += 1
        last = first
        while last < len(tasks) and tasks[last].base < hi:
            last += 1
        yield reader.batch(tasks[first:last], lo, hi)
