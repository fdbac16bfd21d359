"""Parquet files: their index from the footer, and rows of row groups."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from recmesh.data.files import FileInfo, opened, unreadable
from recmesh.data.records import FileSlice
from recmesh.data.schema import Kind, kind_of


@contextmanager
def _parquet(file: FileInfo | FileSlice) -> Iterator[Any]:
    with opened(file) as stream:
        try:
            yield pq.ParquetFile(stream)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise                       # the file system failed, not the format
            raise unreadable(file.uri, f"no Parquet: {error}") from None


def describe_parquet(file: FileInfo) -> tuple[dict[str, Kind], list[int]]:
    """Kinds by column, and the rows of each row group."""
    with _parquet(file) as parquet:
        kinds = {field.name: kind_of(field.type) for field in parquet.schema_arrow}
        metadata = parquet.metadata
        return kinds, [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def cut_groups(file: FileInfo, groups: list[int], *, rows_each: int) -> list[FileSlice]:
    """Slices of at most `rows_each` rows. They end where row groups end as far as possible.

    A large row group is cut evenly; small ones are joined: a slice then decodes no more than it holds,
    or shares one row group with its neighbours.
    """
    slices: list[FileSlice] = []
    first = rows = 0

    def emit(count: int) -> None:
        nonlocal first
        slices.append(FileSlice(file.uri, file.size_bytes, file.etag, first, count))
        first += count

    for group in groups:
        if rows and rows + group > rows_each:
            emit(rows)
            rows = 0
        rows += group
        if rows > rows_each:
            parts = -(-rows // rows_each)
            for i in range(parts):
                emit((i + 1) * rows // parts - i * rows // parts)
            rows = 0
    if rows:
        emit(rows)
    return slices


class GroupRows(NamedTuple):
    """Rows [lo, hi) of a row group."""

    group: int
    lo: int
    hi: int
    whole: bool
    """These are all its rows."""


def groups_of(piece: FileSlice) -> list[GroupRows]:
    """What the slice touches, in order."""
    found: list[GroupRows] = []
    start = 0
    with _parquet(piece) as parquet:
        for index in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(index).num_rows
            lo = max(piece.first_row - start, 0)
            hi = min(piece.first_row + piece.rows - start, rows)
            if lo < hi:
                found.append(GroupRows(index, lo, hi, hi - lo == rows))
            start += rows
    return found


def read_group(piece: FileSlice, group: int, columns: list[str]) -> Any:
    """The columns of one row group."""
    with _parquet(piece) as parquet:
        return parquet.read_row_group(group, columns=columns, use_threads=False)
