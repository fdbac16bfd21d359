"""Task records in columns: some 75 bytes for each, where as objects they take ten times as much."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import overload

from recmesh.data.order import LINE
from recmesh.data.records import FileSlice, TaskRecord

_File = tuple[str, int, str, int]
"""uri, size_bytes, etag, view"""
_NONE = -1


class Tasks(Sequence[TaskRecord]):
    """Records of one line, in order of position; each is made anew when it is asked for. Files are kept once each."""

    def __init__(self) -> None:
        self.bases = array("q")
        """By which positions are found."""
        self._sequences, self._rows, self._seeds, self._epochs = array("q"), array("q"), array("Q"), array("q")
        self._first_rows, self._slice_rows, self._byte_los, self._byte_his = (array("q") for _ in range(4))
        self._file_numbers = array("q")
        self._files: list[_File] = []
        self._numbers: dict[_File, int] = {}

    @property
    def _columns(self) -> Iterable["array[int]"]:
        return (
            self.bases, self._sequences, self._rows, self._seeds, self._epochs, self._first_rows, self._slice_rows,
            self._byte_los, self._byte_his, self._file_numbers,
        )

    def append(self, record: TaskRecord) -> None:
        """The one that follows."""
        self.bases.append(record.base)
        self._sequences.append(record.sequence)
        self._rows.append(record.rows)
        self._seeds.append(record.order_seed)
        self._epochs.append(record.epoch)
        piece = record.file or FileSlice("", 0, "", 0, 0)
        self._first_rows.append(piece.first_row)
        self._slice_rows.append(piece.rows)
        self._byte_los.append(piece.byte_lo)
        self._byte_his.append(piece.byte_hi)
        self._file_numbers.append(_NONE if record.file is None else self._number(piece))

    def _number(self, piece: FileSlice) -> int:
        file = piece.uri, piece.size_bytes, piece.etag, piece.view
        number = self._numbers.get(file)
        if number is None:
            number = self._numbers[file] = len(self._files)
            self._files.append(file)
        return number

    @property
    def epochs(self) -> int:
        """That have begun."""
        return self._epochs[-1] + 1 if self._epochs else 0

    def place(self, position: int) -> int:
        """How many begin at the position or before it."""
        return bisect_right(self.bases, position)

    def is_at_hand(self, pieces: Iterable[tuple[int, int]]) -> bool:
        """They all are."""
        return True

    def forget(self, count: int) -> None:
        """The first `count` are not asked for any more, nor are files that only they name."""
        for column in self._columns:
            del column[:count]
        files = self._files
        self._files, self._numbers = [], {}
        renumbered: dict[int, int] = {_NONE: _NONE}
        for number in self._file_numbers:
            if number not in renumbered:
                renumbered[number] = self._numbers[files[number]] = len(self._files)
                self._files.append(files[number])
        self._file_numbers = array("q", map(renumbered.__getitem__, self._file_numbers))

    def __len__(self) -> int:
        return len(self.bases)

    @overload
    def __getitem__(self, at: int) -> TaskRecord: ...

    @overload
    def __getitem__(self, at: slice) -> list[TaskRecord]: ...

    def __getitem__(self, at: int | slice) -> TaskRecord | list[TaskRecord]:
        if isinstance(at, slice):
            return [self._record(index) for index in range(*at.indices(len(self)))]
        return self._record(at)

    def _record(self, at: int) -> TaskRecord:
        file = None
        if self._file_numbers[at] != _NONE:
            uri, size_bytes, etag, view = self._files[self._file_numbers[at]]
            file = FileSlice(
                uri, size_bytes, etag, self._first_rows[at], self._slice_rows[at], self._byte_los[at],
                self._byte_his[at], view,
            )
        return TaskRecord(
            self._sequences[at], LINE, self.bases[at], self._rows[at], self._epochs[at], self._seeds[at], file
        )
