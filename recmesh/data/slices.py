"""The slices of a dataset by columns: what is per file lies in memory, what is per slice in a temporary file once it is
much, so that the memory held goes by files, not by slices."""

import tempfile
import threading
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from recmesh.data.records import FileSlice
from recmesh.runtime.errors import ResourceExhausted

KEPT_BYTES = 1 << 20
"""Of a dataset's table that are kept in memory: some 29,000 slices."""
BLOCK = 16_384
"""Slices that are read at once."""
ROW = np.dtype([("file", "<i4"), ("first_row", "<i8"), ("rows", "<i8"), ("byte_lo", "<i8"), ("byte_hi", "<i8")])
"""A slice; `file` counts files in order."""
Table = npt.NDArray[Any]
"""[n] of ROW"""


class FileName(NamedTuple):
    """A file as it was indexed."""

    uri: str
    size_bytes: int
    etag: str


class _Texts:
    """Strings end to end: their bytes, and eight for each."""

    def __init__(self) -> None:
        self._data, self._ends = bytearray(), array("Q")

    def append(self, text: str) -> None:
        self._data += text.encode()
        self._ends.append(len(self._data))

    def __getitem__(self, at: int) -> str:
        return self._data[self._ends[at - 1] if at else 0 : self._ends[at]].decode()


class Slices(Sequence[FileSlice]):
    """Slices of one view, in file order; each is made anew when it is asked for. It grows at its end only.

    One thread may let it grow; any number may read what was there before.
    """

    def __init__(self, pieces: Iterable[FileSlice] = ()) -> None:
        self._uris, self._tags, self._sizes = _Texts(), _Texts(), array("q")
        self._lock = threading.Lock()
        self._table = tempfile.SpooledTemporaryFile(max_size=KEPT_BYTES, prefix="recmesh-slices-")
        weakref.finalize(self, self._table.close)
        self._count = 0
        self.rows = 0
        """Of all of them."""
        self.extend(pieces)

    @property
    def files(self) -> int:
        """How many files they are of."""
        return len(self._sizes)

    def file(self, number: int) -> FileName:
        """Files count from 0."""
        return FileName(self._uris[number], self._sizes[number], self._tags[number])

    def extend(self, pieces: Iterable[FileSlice]) -> None:
        """What follows, of view 0. ResourceExhausted: there is no room for temporary files."""
        for name, of_file in groupby(pieces, attrgetter("uri", "size_bytes", "etag")):
            found = list(of_file)
            table = np.zeros(len(found), ROW)
            for column in ("first_row", "rows", "byte_lo", "byte_hi"):
                table[column] = list(map(attrgetter(column), found))
            self.add(FileName(*name), table)

    def add(self, name: FileName, table: Table) -> None:
        """Slices of one file, which may be the last one's; their column `file` is set here."""
        if not self.files or self.file(self.files - 1) != name:
            self._uris.append(name.uri)
            self._tags.append(name.etag)
            self._sizes.append(name.size_bytes)
        table = table.copy()
        table["file"] = self.files - 1
        with self._lock:
            try:
                self._table.seek(self._count * ROW.itemsize)
                self._table.write(table.tobytes())
            except OSError as error:
                reason = f"a table of slices cannot be written to {tempfile.gettempdir()}: {error}"
                raise ResourceExhausted(reason, reason="NO_SPACE") from error
            self._count += len(table)
            self.rows += int(table["rows"].sum())

    def table(self, lo: int, hi: int) -> Table:
        """Slices [lo, hi)."""
        with self._lock:
            self._table.seek(lo * ROW.itemsize)
            return np.frombuffer(self._table.read((hi - lo) * ROW.itemsize), ROW)

    def blocks(self, lo: int = 0, hi: int | None = None) -> Iterator[tuple[int, Table]]:
        """Slices [lo, hi or all), some at a time, each with the number of its first one."""
        hi = self._count if hi is None else hi
        for first in range(lo, hi, BLOCK):
            yield first, self.table(first, min(hi, first + BLOCK))

    def made(self, table: Table) -> list[FileSlice]:
        """Slices of rows of the table."""
        names: dict[int, FileName] = {}
        found = []
        for number, first_row, rows, byte_lo, byte_hi in table.tolist():
            name = names.get(number)
            if name is None:
                name = names[number] = self.file(number)
            found.append(FileSlice(*name, first_row, rows, byte_lo, byte_hi))
        return found

    def begins(self, other: "Slices") -> bool:
        """Whether these are the first of the other."""
        if len(self) > len(other) or self.files > other.files:
            return False
        if any(self.file(number) != other.file(number) for number in range(self.files)):
            return False
        return all(np.array_equal(table, other.table(lo, lo + len(table))) for lo, table in self.blocks())

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[FileSlice]:
        for _, table in self.blocks():
            yield from self.made(table)

    @overload
    def __getitem__(self, at: int) -> FileSlice: ...

    @overload
    def __getitem__(self, at: slice) -> list[FileSlice]: ...

    def __getitem__(self, at: int | slice) -> FileSlice | list[FileSlice]:
        if isinstance(at, slice):
            lo, hi, step = at.indices(self._count)
            return self.made(self.table(lo, max(lo, hi)))[::step] if step > 0 else [*self][at]
        at = range(self._count)[at]
        return self.made(self.table(at, at + 1))[0]
