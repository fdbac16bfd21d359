"""Files that hold rows in groups, which are decoded whole: slices along groups, and the groups that slices share."""

from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from recmesh.data.cache import ByteCache
from recmesh.data.files import FileInfo, check_unchanged
from recmesh.data.records import FileSlice


class GroupRows(NamedTuple):
    """Rows [lo, hi) of a group."""

    group: int
    lo: int
    hi: int
    whole: bool
    """These are all its rows."""


def cut_groups(
    file: FileInfo, groups: Sequence[int], *, rows_each: int, without: Container[int] = ()
) -> list[FileSlice]:
    """Slices of at most `rows_each` rows. They end where groups end as far as possible; no rows of groups `without`.

    A large group is cut evenly; small ones are joined: a slice then decodes no more than it holds,
    or shares one group with its neighbours.
    """
    slices: list[FileSlice] = []
    first = rows = 0

    def emit(count: int) -> None:
        nonlocal first
        slices.append(FileSlice(file.uri, file.size_bytes, file.etag, first, count))
        first += count

    for number, group in enumerate(groups):
        if rows and (rows + group > rows_each or number in without):
            emit(rows)
            rows = 0
        if number in without:
            first += group
            continue
        rows += group
        if rows > rows_each:
            parts = -(-rows // rows_each)
            for i in range(parts):
                emit((i + 1) * rows // parts - i * rows // parts)
            rows = 0
    if rows:
        emit(rows)
    return slices


def groups_of(piece: FileSlice, groups: Sequence[int]) -> list[GroupRows]:
    """What the slice touches, in order."""
    found: list[GroupRows] = []
    start = 0
    for index, rows in enumerate(groups):
        lo = max(piece.first_row - start, 0)
        hi = min(piece.first_row + piece.rows - start, rows)
        if lo < hi:
            found.append(GroupRows(index, lo, hi, hi - lo == rows))
        start += rows
    return found


class GroupReader:
    """Rows of slices; groups that several slices share are kept within a budget."""

    def __init__(
        self, groups: Callable[[FileSlice], Sequence[int]], read_group: Callable[[FileSlice, int], Any],
        *, cache_bytes: int,
    ) -> None:
        """`groups` gives the rows of each group of a slice's file."""
        self._rows, self._read_group = groups, read_group
        self._groups: ByteCache[tuple[str, str, int], Any] = ByteCache(cache_bytes)

    def read(self, piece: FileSlice) -> Any:
        """The slice's rows as one table.

        What is kept is of the file as it was indexed. Whether it is still there is asked each time, so that a dataset
        that changed ends its job soon, and not when some worker's memory is full.
        """
        check_unchanged(piece)
        return pa.concat_tables([self._of(piece, rows) for rows in groups_of(piece, self._rows(piece))])

    def _of(self, piece: FileSlice, rows: GroupRows) -> Any:
        if rows.whole:                          # no other task has rows of it
            return self._read_group(piece, rows.group)
        table = self._groups.get(
            (piece.uri, piece.etag, rows.group),
            lambda: self._read_group(piece, rows.group),
            size_of=lambda table: int(table.nbytes),
        )
        return table.slice(rows.lo, rows.hi - rows.lo)
