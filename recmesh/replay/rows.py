"""Rows of files in file order, with all their columns, and when each of them happened."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from recmesh.data.faults import wrong
from recmesh.data.fileformats import FileFormat, format_named
from recmesh.data.files import resolve_files
from recmesh.data.records import FileSlice
from recmesh.partitions import unit_of
from recmesh.spec.dataset import Feature, Source, SourceSpec

F64 = NDArray[np.float64]

_ENDINGS = {
    ".parquet": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".arrow": "arrow", ".feather": "arrow", ".tfrecord": "tfrecord",
}
_PACKED = (".gz", ".zst", ".sz")
_CHUNK_ROWS = 16_384
_CACHE_BYTES = 64 << 20


class _AllColumns(SourceSpec):
    """A source that is only read, so nothing in it is a label."""

    @property
    def label_columns(self) -> list[str]:
        """None."""
        return []


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one file."""

    file: str
    """What names the file in ids of messages: changes with its content."""
    first_row: int
    """In the file."""
    number: int
    """Of the first row, counted over all files."""
    table: Any
    """The columns that are sent, in their order, and those that are needed besides."""


@dataclass(frozen=True)
class Rows:
    """Files as one sequence of rows."""

    source: Source
    columns: list[str]
    """That are sent."""
    _kind: FileFormat
    _spec: SourceSpec
    _slices: list[FileSlice]
    total: int
    identities: dict[str, str]
    """By URI: the file's identity."""
    offsets: dict[str, int] = field(default_factory=dict)
    """By identity: the number of the file's first row."""

    def chunks(self) -> Iterator[Chunk]:
        """All rows, in order; DataLoss when a file changed since it was opened."""
        reader = self._kind.reader(self._spec, cache_bytes=_CACHE_BYTES)
        number = 0
        for piece in self._slices:
            table = reader.read(piece)
            yield Chunk(self.identities[piece.uri], piece.first_row, number, table)
            number += piece.rows


def open_rows(files: Sequence[str], *, format: str = "", columns: Sequence[str] = (), also: Sequence[str] = ()) -> Rows:
    """The rows of files of one format (by their ending, unless named); `also` are read without being sent.

    InvalidArgument: a column is missing, or the format is not known. NotFound: there is no such file.
    """
    source = Source.parse({"format": format or _format_of(files[0]), "files": list(files)})
    kind = format_named(source.format)
    infos = resolve_files(source)
    indexed = [(info, kind.index(info, _spec(source, []))) for info in infos]
    known = list(indexed[0][1].kinds)
    for info, found in indexed:
        missing = [name for name in (*columns, *also) if name and name not in found.kinds]
        if missing:
            raise wrong("columns", f"{info.uri} has no column {', '.join(missing)}; there are {', '.join(known)}")
    sent = list(columns) or known
    spec = _spec(source, list(dict.fromkeys([*sent, *(name for name in also if name)])))
    identities = {info.uri: _identity(info.uri, info.size_bytes, info.etag) for info, _ in indexed}
    offsets, total = {}, 0
    for info, found in indexed:
        offsets[identities[info.uri]] = total
        total += sum(piece.rows for piece in found.slices)
    slices = [piece for _, found in indexed for piece in found.slices]
    return Rows(source, sent, kind, spec, slices, total, identities, offsets)


def times_of(table: Any, column: str, *, where: str) -> F64:
    """[rows]: Unix seconds of a column of timestamps, dates, ISO 8601 texts (UTC where they say nothing else), or
    numbers of seconds, milliseconds, microseconds or nanoseconds. InvalidArgument names the first row without one."""
    values = table[column].combine_chunks() if isinstance(table[column], pa.ChunkedArray) else table[column]
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        row = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
        raise wrong("time", f"column {column!r} has no value in row {row} of {where}")
    try:
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            values = _parsed(values)
        if pa.types.is_temporal(values.type):
            micros = values.cast(pa.timestamp("us", getattr(values.type, "tz", None)), safe=False).cast(pa.int64())
            seconds: F64 = micros.to_numpy(zero_copy_only=False) / 1e6
            return seconds
        numbers: F64 = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise wrong("time", f"column {column!r} of {where} holds no times: {error}") from None
    if not np.isfinite(numbers).all():
        raise wrong("time", f"column {column!r} of {where} holds what is no number")
    return numbers * unit_of(float(np.abs(numbers).max(initial=0.0)))


def _parsed(texts: Any) -> Any:
    """ISO 8601; a zone counts where one is written in the first text."""
    first = texts[0].as_py() if len(texts) else ""
    has_zone = first[-1:] in "Zz" or "+" in first[10:] or "-" in first[10:]
    return texts.cast(pa.timestamp("us", "UTC" if has_zone else None))


def as_json(table: Any, columns: Sequence[str]) -> list[bytes]:
    """One JSON object per row. Numbers are exact; what is not finite, and what is missing, is null."""
    values = []
    for name in columns:
        column = table[name]
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        values.append(column.to_numpy().tolist() if plain and column.null_count == 0 else column.to_pylist())
    dumps = orjson.dumps
    try:
        return [dumps(dict(zip(columns, row, strict=True))) for row in zip(*values, strict=True)]
    except TypeError as error:
        raise wrong("columns", f"a value cannot be JSON ({error}); choose others with columns") from None


def keys_of(table: Any, column: str) -> Any:
    """An Arrow array of texts: what is hashed, and sent as a key where there are keys."""
    values = table[column].combine_chunks() if isinstance(table[column], pa.ChunkedArray) else table[column]
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    try:
        return pc.fill_null(values.cast(pa.large_string()), "")
    except pa.ArrowException as error:
        raise wrong("key", f"column {column!r} is of type {values.type}, which is no key: {error}") from None


def _spec(source: Source, columns: list[str]) -> SourceSpec:
    # A function takes columns of any kind, so nothing is asked of them.
    every = Feature.model_construct(name="row", columns=columns, function="recmesh.replay.rows:as_json")
    return _AllColumns.model_construct(source=source, features=[every], task_rows=_CHUNK_ROWS)


def _format_of(path: str) -> str:
    name = PurePosixPath(path.rpartition("::")[2]).name
    for packed in _PACKED:
        name = name.removesuffix(packed)
    ending = PurePosixPath(name).suffix
    if ending not in _ENDINGS:
        raise wrong("format", f"{path}: its ending names no format; there are {', '.join(sorted(_ENDINGS))}")
    return _ENDINGS[ending]


def _identity(uri: str, size_bytes: int, etag: str) -> str:
    return hashlib.sha256(f"{uri}\n{size_bytes}\n{etag}".encode()).hexdigest()[:12]
