"""What a kind of files must be able to do, built in or of a package (entry point `recmesh.file_formats`)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from recmesh.data.files import FileInfo
from recmesh.data.records import FileSlice
from recmesh.data.schema import Kind
from recmesh.spec.dataset import SourceSpec


@dataclass(frozen=True, slots=True)
class Indexed:
    """A file, described and cut."""

    kinds: Mapping[str, Kind]
    """By column."""
    slices: list[FileSlice]
    """In file order, complete, of at most `task_rows` rows each as far as the format can; none of them empty."""


class SliceReader(Protocol):
    """Rows of slices. One thread at a time; it may keep what the next slice needs again."""

    def read(self, piece: FileSlice) -> Any:
        """A `pyarrow.Table` with at least the columns that the specification needs, exactly `piece.rows` rows.

        What a slice holds never depends on what was read before, nor on how the file was cut.
        """


class FileFormat(Protocol):
    """One kind of files. It keeps nothing: it may be asked by several threads at once.

    Errors name the file: InvalidArgument where it is not of this kind, DataLoss where it changed since it was indexed
    (`recmesh.data.files.opened` and `recmesh.data.contents.contents` see to that).
    """

    def index(self, file: FileInfo, spec: SourceSpec) -> Indexed:
        """Columns, and slices that can be read each by itself."""

    def trim(self, piece: FileSlice, lo: int, hi: int, spec: SourceSpec) -> FileSlice:
        """Rows [lo, hi) of a slice, counted from its own first row."""

    def reader(self, spec: SourceSpec, *, cache_bytes: int) -> SliceReader:
        """Reads slices of files of this specification."""
