"""What a counting job must end with, computed from its data files alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from recmesh.chaos.dataset import TABLES
from recmesh.formats import slots_of

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Column:
    """Ids by row: row i has ids[offsets[i]:offsets[i + 1]]."""

    ids: Ints
    rows: Ints
    """The row of each id."""
    slots: NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Counts:
    """Ids, ascending, and how often each occurs."""

    ids: Ints
    counts: Ints


class Truth:
    """The ids of every row, and which row stands at which position."""

    def __init__(self, columns: dict[str, Column], positions: Ints) -> None:
        self._columns, self._positions = columns, positions
        self._n_rows = int(positions.max()) + 1 if positions.size else 0

    @classmethod
    def of(cls, files: Sequence[Path], positions: Ints) -> "Truth":
        """Reads the files; `positions` as of `tasklog.rows_by_position`."""
        table = pq.ParquetDataset([str(file) for file in files]).read()
        columns = {}
        for name in TABLES:
            column = table.column(name).combine_chunks()
            if hasattr(column, "offsets"):
                lengths, ids = np.diff(column.offsets.to_numpy()), column.flatten().to_numpy()
            else:
                lengths, ids = np.ones(len(column), np.int64), column.to_numpy()
            ids = ids.astype(np.int64)
            columns[name] = Column(ids, np.repeat(np.arange(len(lengths)), lengths), slots_of(ids, name))
        return cls(columns, positions)

    @property
    def total(self) -> int:
        """Positions on the line."""
        return int(self._positions.size)

    def counts(self, table: str, *, applied: NDArray[np.bool_], slots: NDArray[np.bool_]) -> Counts:
        """Occurrences at the positions `applied` (bool [N]) of the ids that lie in `slots` (bool [4096])."""
        times = np.bincount(self._positions[applied], minlength=self._n_rows)
        column = self._columns[table]
        weights = times[column.rows] * slots[column.slots]
        ids, place = np.unique(column.ids, return_inverse=True)
        counts = np.bincount(place, weights=weights, minlength=len(ids)).astype(np.int64)
        return Counts(ids[counts > 0], counts[counts > 0])


def first_rows(files: Sequence[Path]) -> dict[str, int]:
    """By path: the row of the whole data with which each file starts."""
    starts, at = {}, 0
    for file in files:
        starts[str(file)] = at
        at += pq.ParquetFile(file).metadata.num_rows
    return starts
