"""Which task records a bounded dataset gives, in which order, with which seeds: the same in a mesh and outside."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.data.records import FileSlice, TaskRecord
from recmesh.formats import mix, permutation, splitmix64

LINE = 0
"""The line that numbers all bounded tasks of a job."""

_ORDER, _ROWS = 0x7461736B, 0x726F7773
"""Two uses of one seed draw from different streams."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All that decides a job's positions. Equal plans give equal records, whoever generates them."""

    slices: Sequence[FileSlice]
    epochs: int
    seed: int
    shuffle: bool
    in_time: bool = False
    """Slices are of streams: their order stands, and only the rows of each are shuffled."""

    @property
    def records(self) -> int:
        """Records including the last one, which closes the line."""
        return len(self.slices) * self.epochs + 1

    @property
    def total(self) -> int:
        """Positions on the line."""
        return sum(piece.rows for piece in self.slices) * self.epochs


def generate(plan: Plan) -> Iterator[TaskRecord]:
    """Every epoch's tasks with growing bases, then the close record. `sequence` is the log's to give."""
    base = 0
    for epoch in range(plan.epochs):
        seeds = _row_seeds(plan, epoch)
        for index in _order(plan, epoch):
            piece = plan.slices[index]
            yield TaskRecord(0, LINE, base, piece.rows, epoch, int(seeds[index]), piece)
            base += piece.rows
    yield TaskRecord(0, LINE, base, 0, plan.epochs, 0, None, close=True)


def _order(plan: Plan, epoch: int) -> list[int]:
    if not plan.shuffle or plan.in_time:
        return list(range(len(plan.slices)))
    return [int(index) for index in permutation(order_seed(plan.seed, epoch), len(plan.slices))]


def order_seed(seed: int, epoch: int) -> int:
    """Of the permutation of an epoch's slices."""
    return _seed(seed, epoch, 0, _ORDER)


def row_seed(seed: int, epoch: int, index: int) -> int:
    """Of the permutation of the rows of an epoch's slice; `index` counts slices in file order, of streams as served."""
    return _seed(seed, epoch, index, _ROWS)


def row_seeds(seed: int, epoch: int, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
    """`row_seed` of many slices of an epoch, at once."""
    of_epoch = np.uint64(mix(mix(seed ^ _ROWS) ^ epoch))
    return np.maximum(splitmix64(indices.astype(np.uint64) ^ of_epoch), np.uint64(1))


def _row_seeds(plan: Plan, epoch: int) -> NDArray[np.uint64]:
    """0 where nothing is shuffled."""
    count = len(plan.slices)
    return row_seeds(plan.seed, epoch, np.arange(count)) if plan.shuffle else np.zeros(count, np.uint64)


def _seed(seed: int, epoch: int, index: int, use: int) -> int:
    """Never 0, which means file order."""
    return mix(mix(mix(seed ^ use) ^ epoch) ^ index) or 1
