"""What readers exchange: slices of files, task records, and batches of columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recmesh.spec.dataset import SampleKind

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Rows [first_row, first_row + rows) of one file, as the file was when it was indexed."""

    uri: str
    size_bytes: int
    etag: str
    first_row: int
    rows: int
    byte_lo: int = 0
    """Text formats: where the first row starts (uncompressed)."""
    byte_hi: int = 0
    """Text formats: one past the end of the last row; 0 where the format has an index of its own."""
    view: int = 0
    """Which of the dataset's views (`DatasetSpec.views`) reads it."""


def is_partition(uri: str) -> bool:
    """Whether it names a partition of a topic, whose rows are messages and whose numbers are offsets."""
    return uri.startswith(("jetstream:", "kafka:"))


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """Which rows stand at positions [base, base + rows) of a line; immutable once written."""

    sequence: int
    line: int
    base: int
    rows: int
    epoch: int
    order_seed: int
    """Of the permutation of rows in this task; 0 keeps file order."""
    file: FileSlice | None
    close: bool = False
    """Ends the line at `base`; carries no rows and no file."""


@dataclass(frozen=True, slots=True)
class IdColumn:
    """Ids of one feature for B rows."""

    values: Int64
    """[N]"""
    offsets: Int64 | None = None
    """[B + 1]: row i holds values[offsets[i]:offsets[i + 1]]. None: one id per row, N == B."""
    weights: Float32 | None = None
    """[N], bags only."""

    def rows(self, lo: int, hi: int) -> "IdColumn":
        """Rows [lo, hi); values are views, offsets start at 0."""
        if self.offsets is None:
            return IdColumn(self.values[lo:hi])
        first, last = int(self.offsets[lo]), int(self.offsets[hi])
        weights = None if self.weights is None else self.weights[first:last]
        return IdColumn(self.values[first:last], self.offsets[lo : hi + 1] - first, weights)

    def take(self, order: Int64) -> "IdColumn":
        """Row i of the answer is row order[i] of this."""
        if self.offsets is None:
            return IdColumn(self.values[order])
        starts, lengths = self.offsets[order], np.diff(self.offsets)[order]
        offsets = np.zeros(len(order) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        source = np.arange(offsets[-1], dtype=np.int64) + np.repeat(starts - offsets[:-1], lengths)
        weights = None if self.weights is None else self.weights[source]
        return IdColumn(self.values[source], offsets, weights)

    def padded(self, width: int = 0) -> "Padded":
        """A ragged column as rectangles: as wide as the longest row, at least 1, or `width`; the rest is left out."""
        assert self.offsets is not None
        lengths = np.diff(self.offsets)
        width = width or max(int(lengths.max(initial=0)), 1)
        kept = np.minimum(lengths, width)
        inside = np.arange(width) < kept[:, None]
        source = (self.offsets[:-1, None] + np.arange(width))[inside]
        ids, weights = np.zeros(inside.shape, np.int64), np.zeros(inside.shape, np.float32)
        ids[inside] = self.values[source]
        weights[inside] = 1.0 if self.weights is None else self.weights[source]
        return Padded(ids, kept, weights)

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        parts = (self.values, self.offsets, self.weights)
        return sum(part.nbytes for part in parts if part is not None)


class Padded(NamedTuple):
    """A ragged column as rectangles; zero behind each row's end."""

    ids: Int64
    """[B, L]"""
    lengths: Int64
    """[B]"""
    weights: Float32
    """[B, L]: 1 where the column has none."""


@dataclass(frozen=True, slots=True)
class Batch:
    """B rows, by columns. Arrays may be views of a cache: read them, never write to them."""

    size: int
    ids: dict[str, IdColumn]
    """By feature: kinds single, bag, sequence."""
    dense: Float32
    """[B, n_dense], in the order of the dense features in the specification."""
    labels: Float32
    """[B, n_labels]"""
    weight: Float32 | None = None
    """[B]: sample weights."""
    kind: SampleKind = "batch"
    """Of all its rows."""

    def rows(self, lo: int, hi: int) -> "Batch":
        """Rows [lo, hi), as views."""
        weight = None if self.weight is None else self.weight[lo:hi]
        ids = {name: column.rows(lo, hi) for name, column in self.ids.items()}
        return Batch(hi - lo, ids, self.dense[lo:hi], self.labels[lo:hi], weight, self.kind)

    def take(self, order: Int64) -> "Batch":
        """Row i of the answer is row order[i] of this."""
        weight = None if self.weight is None else self.weight[order]
        ids = {name: column.take(order) for name, column in self.ids.items()}
        return Batch(len(order), ids, self.dense[order], self.labels[order], weight, self.kind)

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        weight_bytes = 0 if self.weight is None else self.weight.nbytes
        columns = sum(column.size_bytes for column in self.ids.values())
        return columns + self.dense.nbytes + self.labels.nbytes + weight_bytes


def concat(batches: "list[Batch]") -> Batch:
    """One batch of all rows, in order; the batches have the same columns, and rows of one kind. At least one."""
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    weights = [batch.weight for batch in batches if batch.weight is not None]
    return Batch(
        sum(batch.size for batch in batches),
        {name: _concat_ids([batch.ids[name] for batch in batches]) for name in first.ids},
        np.concatenate([batch.dense for batch in batches]),
        np.concatenate([batch.labels for batch in batches]),
        np.concatenate(weights) if weights else None,
        first.kind,
    )


def kind_borders(tasks: Iterable[TaskRecord], kinds: Sequence[SampleKind]) -> list[int]:
    """The positions at which samples of another kind begin, ascending: no batch may go on over one.

    `kinds` are those of the dataset's views; the tasks are of one line.
    """
    filled = sorted((task for task in tasks if task.file is not None and task.rows), key=attrgetter("base"))
    return [
        later.base for task, later in pairwise(filled)
        if task.file and later.file and kinds[task.file.view] != kinds[later.file.view]
    ]


def _concat_ids(columns: list[IdColumn]) -> IdColumn:
    values = np.concatenate([column.values for column in columns])
    offsets = [column.offsets for column in columns if column.offsets is not None]
    if not offsets:
        return IdColumn(values)
    lengths = np.concatenate([np.diff(part) for part in offsets])
    joined = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=joined[1:])
    weights = [column.weights for column in columns if column.weights is not None]
    return IdColumn(values, joined, np.concatenate(weights) if weights else None)
