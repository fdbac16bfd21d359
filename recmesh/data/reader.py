"""Rows of positions: the only way from task records to batches."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from recmesh.data.cache import ByteCache
from recmesh.data.columns import labels_of, weights_of
from recmesh.data.conditions import holding
from recmesh.data.deadletters import DeadLetters, sift
from recmesh.data.decoded import Decoded
from recmesh.data.faults import wrong
from recmesh.data.fileformats import SliceReader, format_named
from recmesh.data.index import index_dataset
from recmesh.data.records import Batch, FileSlice, IdColumn, Int64, TaskRecord, concat, kind_borders
from recmesh.data.schema import check_columns, kind_of
from recmesh.data.stored import stored_tasks
from recmesh.data.topics.reader import Rows, TopicReader, trimmed
from recmesh.data.transform import Transform
from recmesh.formats import permutation
from recmesh.spec.dataset import DatasetSpec, SampleKind, SourceSpec, StreamSource


def _none() -> Int64:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What there is of a slice, in its order."""

    batch: Batch
    rows: Int64 | None = None
    """[batch.size], ascending: which of the slice's rows these are. None: all."""
    bad: Int64 = field(default_factory=_none)
    """Rows that could not be read."""


class TaskReader:
    """Batches of a dataset by position. Safe to share between threads; one decodes at a time.

    Decoded tasks and row groups are kept within `cache_bytes`, and always the newest of each, so that consecutive
    batches of a task are views. Few are enough: positions are read in order.
    """

    def __init__(self, spec: DatasetSpec, *, cache_bytes: int = 96 << 20, code: str = "") -> None:
        """`code`: the job's `model.code`, by which a materialised cache tells what its functions are."""
        self._spec = spec
        self._stored = stored_tasks(spec, code=code)
        self._transform = Transform.of(spec)
        self._tasks: ByteCache[tuple[FileSlice, int], Decoded] = ByteCache(cache_bytes // 2)
        self._views, self._readers = spec.views(), dict[int, SliceReader | TopicReader]()
        self._kinds = spec.kinds
        self._reader_bytes = cache_bytes // 2 // len(self._views)
        self._lock = threading.Lock()
        self._aside = DeadLetters(spec.bad_records) if spec.bad_records is not None else None
        self.bad_records = 0
        """Positions of batches that were asked for whose records could not be read. Several readers of a job share its
        positions, so together they count each record once; again where a batch is trained again."""

    def batch(self, tasks: Sequence[TaskRecord], lo: int, hi: int) -> Batch:
        """The rows at positions [lo, hi), in order of position; the tasks must cover them.

        Records that cannot be read are left out where the dataset allows it: the batch is smaller then, or empty.
        DataLoss: a file changed since it was indexed. InvalidArgument: its content is not as specified, or the
        positions hold samples of several kinds (`kind_borders` tells where to cut).
        """
        batch, bad = self.read(tasks, lo, hi)
        if bad:
            with self._lock:
                self.bad_records += bad
        return batch

    def read(self, tasks: Sequence[TaskRecord], lo: int, hi: int) -> tuple[Batch, int]:
        """As `batch`, and how many of these positions hold what could not be read: the caller counts them."""
        parts: list[Batch] = []
        at, bad = lo, 0
        for task in sorted(tasks, key=lambda task: task.base):
            first, last = max(at, task.base), min(hi, task.base + task.rows)
            if task.close or first >= last or first > at:
                continue
            decoded = self._decoded(task)
            parts.append(decoded.within(first - task.base, last - task.base))
            bad += decoded.bad_within(first - task.base, last - task.base)
            at = last
        if at < hi or not parts:
            raise wrong("tasks", f"no task record covers position {at} of [{lo}, {hi})")
        if len({part.kind for part in parts}) > 1:
            raise wrong("tasks", f"[{lo}, {hi}) holds samples of several kinds, which no batch may have")
        return concat(parts), bad

    def task(self, task: TaskRecord) -> Batch:
        """All rows of a task, in order of position."""
        return self._decoded(task).batch

    def decode(self, task: TaskRecord) -> Decoded:
        """A task's rows, for a caller who keeps them: nothing of them stays here."""
        file, seed = _file_of(task), task.order_seed
        with self._lock:
            return self._made(file, seed)

    def _decoded(self, task: TaskRecord) -> Decoded:
        file, seed = _file_of(task), task.order_seed
        with self._lock:
            return self._tasks.get((file, seed), lambda: self._made(file, seed), size_of=_size_bytes)

    def _made(self, file: FileSlice, seed: int) -> Decoded:
        if self._stored is None:
            return self._ordered(file, seed)
        return self._stored.get(file, seed, lambda: self._ordered(file, seed))

    def _ordered(self, piece: FileSlice, order_seed: int) -> Decoded:
        there = self._sifted(piece)
        if not order_seed:
            return Decoded(there.batch, there.rows, there.bad)
        order = np.asarray(permutation(order_seed, piece.rows), np.int64)
        if there.rows is None:
            return Decoded(there.batch.take(order))
        at = np.full(piece.rows, -1, np.int64)
        at[there.rows] = np.arange(there.rows.size)
        is_bad = np.zeros(piece.rows, bool)
        is_bad[there.bad] = True
        places = np.flatnonzero(at[order] >= 0)
        return Decoded(there.batch.take(at[order][places]), places, np.flatnonzero(is_bad[order]))

    def _sifted(self, piece: FileSlice) -> _Rows:
        """What can be read of a slice, and is asked for."""
        if self._aside is None or self._spec.bad_records is None:
            return self._decode(piece)
        found = sift(piece, self._decode, self._trim, most=self._spec.bad_records.limit)
        if not found.letters and len(found.parts) == 1:
            return found.parts[0][1]
        self._aside.put(piece, found.letters)
        rows = [
            first + (np.arange(part.batch.size) if part.rows is None else part.rows) for first, part in found.parts
        ]
        bad = np.asarray([letter.row for letter in found.letters], np.int64)
        if not rows:
            return _Rows(nothing(self._spec, self._kinds[piece.view]), _none(), bad)
        return _Rows(concat([part.batch for _, part in found.parts]), np.concatenate(rows), bad)

    def _trim(self, piece: FileSlice, lo: int, hi: int) -> FileSlice:
        view = self._views[piece.view]
        if _is_topic(view):
            return trimmed(piece, lo, hi)
        return replace(format_named(view.source.format).trim(piece, lo, hi, view), view=piece.view)

    def _decode(self, piece: FileSlice) -> _Rows:
        where = f"{piece.uri} rows {piece.first_row} to {piece.first_row + piece.rows}"
        reader = self._reader(piece.view)
        table, there = reader.read(piece) if isinstance(reader, TopicReader) else Rows(reader.read(piece), None)
        check_columns(self._spec, {field.name: kind_of(field.type) for field in table.schema}, where=piece.uri)
        rows = there
        if self._spec.where:
            kept = holding(table, self._spec.where, where=where)
            held = np.flatnonzero(kept.to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)
            rows, table = held if there is None else there[held], table.filter(kept)
        if rows is not None and not rows.size:
            return _Rows(nothing(self._spec, self._kinds[piece.view]), rows)
        made = batch_of(table, self._spec, self._transform, where=where)
        return _Rows(replace(made, kind=self._kinds[piece.view]), rows)

    def _reader(self, view: int) -> SliceReader | TopicReader:
        if view not in self._readers:
            spec = self._views[view]
            if _is_topic(spec):
                self._readers[view] = TopicReader(spec)
            else:
                kind = format_named(spec.source.format)
                self._readers[view] = kind.reader(spec, cache_bytes=self._reader_bytes)
        return self._readers[view]


def _is_topic(view: SourceSpec) -> bool:
    return isinstance(view.source, StreamSource) and view.source.is_topic


def batch_of(table: Any, spec: DatasetSpec, transform: Transform, *, where: str) -> Batch:
    """The rows of an Arrow table, in its order. Errors name the field and `where` the rows came from."""
    ids, dense = transform.inputs(table, where=where)
    return Batch(
        table.num_rows, ids, dense, labels_of(table, spec, where=where), weights_of(table, spec)
    )


def nothing(spec: DatasetSpec, kind: SampleKind = "batch") -> Batch:
    """No rows, of the dataset's columns."""
    empty = np.empty(0, np.int64)
    ids = {
        feature.name: IdColumn(
            empty, None if feature.kind == "single" else np.zeros(1, np.int64),
            np.empty(0, np.float32) if feature.weights else None,
        )
        for feature in spec.features if feature.kind != "dense"
    }
    numbers = sum(feature.kind == "dense" for feature in spec.features)
    weight = np.empty(0, np.float32) if spec.weight else None
    return Batch(
        0, ids, np.empty((0, numbers), np.float32), np.empty((0, len(spec.label_columns)), np.float32), weight, kind
    )


def _file_of(task: TaskRecord) -> FileSlice:
    if task.file is None:
        raise wrong("tasks", f"the task record at {task.base} names no file")
    return task.file


def _size_bytes(decoded: Decoded) -> int:
    return decoded.size_bytes


def whole_dataset(
    spec: DatasetSpec,
    *,
    batch_size: int = 8192,
    rows: tuple[float, float] | None = None,
    max_rows: int | None = None,
    cache_bytes: int = 96 << 20,
) -> Iterator[Batch]:
    """All rows in file order (of streams in that of seed 0), for evaluation.

    `rows` takes the place of the source's own share; of streams there is none to take. The last batch of a file's
    slice is carried over, so that all batches but the last have `batch_size` rows, and the last of samples of one kind.
    """
    if rows is not None:
        if spec.source is None:
            raise wrong("rows", "belongs to a dataset of one source; of streams, start and end say which part")
        spec = spec.model_copy(update={"source": spec.source.model_copy(update={"rows": rows})})
    tasks: list[TaskRecord] = []
    base = 0
    for piece in index_dataset(spec).slices:
        tasks.append(TaskRecord(0, 0, base, piece.rows, 0, 0, piece))
        base += piece.rows
    total = base if max_rows is None else min(base, max_rows)
    reader = TaskReader(spec, cache_bytes=cache_bytes)
    first = 0
    edges = [0, *(border for border in kind_borders(tasks, spec.kinds) if border < total), total]
    for lo, hi in (
        (lo, min(lo + batch_size, end)) for begin, end in pairwise(edges) for lo in range(begin, end, batch_size)
    ):
        while tasks[first].base + tasks[first].rows <= lo:
            first += 1
        last = first
        while last < len(tasks) and tasks[last].base < hi:
            last += 1
        yield reader.batch(tasks[first:last], lo, hi)
