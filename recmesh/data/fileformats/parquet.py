"""Parquet files: their index from the footer, and rows of row groups."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recmesh.data.fileformats.grouped import GroupReader, cut_groups
from recmesh.data.fileformats.interface import Indexed
from recmesh.data.files import FileInfo, opened, unreadable
from recmesh.data.records import FileSlice
from recmesh.data.schema import kind_of, needed_columns
from recmesh.spec.dataset import SourceSpec


class Parquet:
    """See FileFormat."""

    def index(self, file: FileInfo, spec: SourceSpec) -> Indexed:
        """Reads the footer alone."""
        with _parquet(file) as parquet:
            kinds = {field.name: kind_of(field.type) for field in parquet.schema_arrow}
            return Indexed(kinds, cut_groups(file, _rows(parquet), rows_each=spec.task_rows))

    def trim(self, piece: FileSlice, lo: int, hi: int, spec: SourceSpec) -> FileSlice:
        """Rows are addressed by number."""
        return replace(piece, first_row=piece.first_row + lo, rows=hi - lo)

    def reader(self, spec: SourceSpec, *, cache_bytes: int) -> GroupReader:
        """Decodes the needed columns of whole row groups."""
        columns = needed_columns(spec)
        return GroupReader(
            lambda piece: _rows_in(piece.uri, piece.size_bytes, piece.etag),
            lambda piece, group: read_group(piece, group, columns),
            cache_bytes=cache_bytes,
        )


@contextmanager
def _parquet(file: FileInfo | FileSlice) -> Iterator[Any]:
    with opened(file) as stream:
        try:
            yield pq.ParquetFile(stream)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise                       # the file system failed, not the format
            raise unreadable(file.uri, f"no Parquet: {error}") from None


def _rows(parquet: Any) -> list[int]:
    metadata = parquet.metadata
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


@lru_cache(maxsize=1024)
def _rows_in(uri: str, size_bytes: int, etag: str) -> list[int]:
    with _parquet(FileInfo(uri, size_bytes, etag)) as parquet:
        return _rows(parquet)


def read_group(piece: FileSlice, group: int, columns: list[str]) -> Any:
    """The columns of one row group; those that the file lacks are left out."""
    with _parquet(piece) as parquet:
        return parquet.read_row_group(group, columns=columns, use_threads=False)
