"""Parquet files: their index from the footer, and rows of row groups."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from recmesh.data.conditions import may_hold
from recmesh.data.faults import wrong
from recmesh.data.fileformats.grouped import GroupReader, cut_groups
from recmesh.data.fileformats.interface import Indexed
from recmesh.data.files import FileInfo, opened, unreadable
from recmesh.data.records import FileSlice
from recmesh.data.schema import kind_of, needed_columns
from recmesh.spec.dataset import SourceSpec

_NULL = "__HIVE_DEFAULT_PARTITION__"
_TYPES = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}


class Parquet:
    """See FileFormat."""

    def index(self, file: FileInfo, spec: SourceSpec) -> Indexed:
        """Reads the footer alone."""
        with _parquet(file) as parquet:
            kinds = {field.name: kind_of(field.type) for field in parquet.schema_arrow}
            kinds = {**{name: kind_of(value.type) for name, value in in_path(file.uri, spec).items()}, **kinds}
            groups = _rows(parquet)
            return Indexed(kinds, cut_groups(file, groups, rows_each=spec.task_rows, without=_hopeless(parquet, spec)))

    def trim(self, piece: FileSlice, lo: int, hi: int, spec: SourceSpec) -> FileSlice:
        """Rows are addressed by number."""
        return replace(piece, first_row=piece.first_row + lo, rows=hi - lo)

    def reader(self, spec: SourceSpec, *, cache_bytes: int) -> GroupReader:
        """Decodes the needed columns of whole row groups."""
        columns = needed_columns(spec)
        return GroupReader(
            lambda piece: _rows_in(piece.uri, piece.size_bytes, piece.etag),
            lambda piece, group: read_group(piece, group, columns, spec),
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


def _hopeless(parquet: Any, spec: SourceSpec) -> set[int]:
    """Row groups in which, by their statistics, no row can hold the conditions."""
    metadata, columns = parquet.metadata, {condition.column for condition in spec.where}
    if not columns:
        return set()
    places = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    found = set()
    for group in range(metadata.num_row_groups):
        for condition in spec.where:
            if condition.column not in places:
                continue
            statistics = metadata.row_group(group).column(places[condition.column]).statistics
            if statistics is None or not statistics.has_min_max:
                continue
            if not may_hold(condition, statistics.min, statistics.max):
                found.add(group)
    return found


@lru_cache(maxsize=1024)
def _rows_in(uri: str, size_bytes: int, etag: str) -> list[int]:
    with _parquet(FileInfo(uri, size_bytes, etag)) as parquet:
        return _rows(parquet)


def read_group(piece: FileSlice, group: int, columns: list[str], spec: SourceSpec) -> Any:
    """The columns of one row group, and those that stand in the path; those that the file lacks are left out."""
    with _parquet(piece) as parquet:
        table = parquet.read_row_group(group, columns=columns, use_threads=False)
    for name, value in in_path(piece.uri, spec).items():
        if name in columns and name not in table.column_names:
            table = table.append_column(name, pa.array([value] * table.num_rows, value.type))
    return table


def in_path(uri: str, spec: SourceSpec) -> dict[str, Any]:
    """Columns of folders that are named `column=value`, as Hive, Spark and Delta write partitions: Arrow scalars."""
    found: dict[str, Any] = {}
    for folder in uri.split("/")[:-1]:
        name, is_one, value = folder.partition("=")
        if is_one and name:
            text = None if value == _NULL else unquote(value)
            kind = _TYPES.get(spec.source.types.get(name, "string"), pa.string())
            try:
                found[unquote(name)] = pa.scalar(text, pa.string()).cast(kind)
            except pa.ArrowInvalid:
                raise wrong("data.source.types", f"{name} is {value!r} in {uri}, and declared as {kind}") from None
    return found
