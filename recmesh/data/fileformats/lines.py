"""Where records of a text stand: offsets of non-empty lines, with quoted line breaks left inside."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recmesh.data.contents import ReadRange
from recmesh.data.files import FileInfo
from recmesh.data.records import FileSlice
from recmesh.runtime.errors import DataLoss

_BLOCK = 4 << 20
_LF, _CR = 10, 13
FIELD_START, PLAIN, QUOTED = range(3)


@dataclass(frozen=True, slots=True)
class TextRange:
    """Consecutive records: `rows` of them in bytes [lo, hi)."""

    first_row: int
    rows: int
    lo: int
    hi: int


Spans = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Starts, and ends (one past the line break), of records."""


def scan(read: ReadRange, lo: int, hi: int | None, *, delimiter: str, quoted: bool) -> Iterator[Spans]:
    """The records in [lo, hi or end), block by block; lo is the start of a record.

    Empty lines are no records. `quoted`: a field that begins with a double quote may hold line breaks.
    """
    state, at, start = FIELD_START, lo, lo
    blank, before = True, 0            # since `start` only line breaks; the byte before this block
    while hi is None or at < hi:
        text = read(at, at + _BLOCK if hi is None else min(hi, at + _BLOCK))
        if not text:
            break
        data = np.frombuffer(text, np.uint8)
        if quoted:
            breaks, state = _breaks(text, data, delimiter, state)
        else:
            breaks = np.flatnonzero(data == _LF)
        if len(breaks):
            ends = at + breaks + 1
            starts = np.concatenate(([start], ends[:-1]))
            length = ends - starts
            previous = data[breaks - 1]
            if breaks[0] == 0:
                previous[0] = before
            empty = (length == 1) | ((length == 2) & (previous == _CR))
            yield starts[~empty], ends[~empty]
            start, blank = int(ends[-1]), True
        blank = blank and not text[max(0, start - at) :].strip(b"\r\n")
        before = text[-1]
        at += len(text)
    if not blank:
        yield np.array([start], np.int64), np.array([at], np.int64)


def _breaks(
    text: bytes, data: npt.NDArray[np.uint8], delimiter: str, state: int
) -> tuple[npt.NDArray[np.int64], int]:
    if state == QUOTED or b'"' in text:
        from recmesh.data.fileformats import quotes

        found: tuple[npt.NDArray[np.int64], int] = quotes.breaks_outside_quotes(data, ord(delimiter), state)
        return found
    return np.flatnonzero(data == _LF), FIELD_START if text[-1] in (_LF, ord(delimiter)) else PLAIN


def cut(read: ReadRange, lo: int, *, rows_each: int, delimiter: str, quoted: bool) -> list[TextRange]:
    """The whole text from `lo` on, in ranges of `rows_each` records (the last one may be shorter)."""
    ranges: list[TextRange] = []
    first, rows, begin, end = 0, 0, lo, lo
    for starts, ends in scan(read, lo, None, delimiter=delimiter, quoted=quoted):
        taken = 0
        while taken < len(starts):
            if rows == 0:
                begin = int(starts[taken])
            step = min(rows_each - rows, len(starts) - taken)
            rows, taken = rows + step, taken + step
            end = int(ends[taken - 1])
            if rows == rows_each:
                ranges.append(TextRange(first, rows, begin, end))
                first, rows = first + rows, 0
    if rows:
        ranges.append(TextRange(first, rows, begin, end))
    return ranges


def part(read: ReadRange, whole: TextRange, lo: int, hi: int, *, delimiter: str, quoted: bool) -> TextRange:
    """Records [lo, hi) of a range, counted from its own first one; lo < hi."""
    starts: list[npt.NDArray[np.int64]] = []
    ends: list[npt.NDArray[np.int64]] = []
    for some_starts, some_ends in scan(read, whole.lo, whole.hi, delimiter=delimiter, quoted=quoted):
        starts.append(some_starts)
        ends.append(some_ends)
    begin, end = np.concatenate(starts)[lo], np.concatenate(ends)[hi - 1]
    return TextRange(whole.first_row + lo, hi - lo, int(begin), int(end))


def range_of(piece: FileSlice) -> TextRange:
    """Where the slice's records stand."""
    return TextRange(piece.first_row, piece.rows, piece.byte_lo, piece.byte_hi)


def slice_of(file: FileInfo | FileSlice, found: TextRange) -> FileSlice:
    """Such a part of a file."""
    return FileSlice(file.uri, file.size_bytes, file.etag, found.first_row, found.rows, found.lo, found.hi)


def whole(table: Any, piece: FileSlice) -> Any:
    """The rows of a slice; DataLoss when they are not as many as were indexed."""
    if table.num_rows != piece.rows:
        raise DataLoss(
            f"{piece.uri} has {table.num_rows} records in bytes {piece.byte_lo} to {piece.byte_hi}, "
            f"{piece.rows} were indexed",
            reason="FILE_CHANGED",
        )
    return table
