"""CSV, TSV and Criteo files: their columns, their index, and rows of byte ranges."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv

from recmesh.data.contents import contents
from recmesh.data.fileformats.interface import Indexed
from recmesh.data.fileformats.lines import cut, part, range_of, scan, slice_of, whole
from recmesh.data.files import FileInfo, unreadable
from recmesh.data.records import FileSlice
from recmesh.data.schema import Kind, check_columns, kind_of, needed_columns, types_are_enough
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import Source, SourceSpec

CRITEO_COLUMNS = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))

_HEAD_BYTES = 1 << 20
"""Types are inferred from this much of each file: a function of the file, never of the part that is read."""
_TYPES = {"int": pa.int64(), "float": pa.float64(), "string": pa.string()}


class Delimited:
    """See FileFormat."""

    def index(self, file: FileInfo, spec: SourceSpec) -> Indexed:
        """Reads the whole file once."""
        layout = layout_of(file, spec)
        with contents(file, spec.source) as read:
            ranges = cut(read, layout.body, rows_each=spec.task_rows, **_dialect(spec.source))
        return Indexed(layout.kinds, [slice_of(file, found) for found in ranges])

    def trim(self, piece: FileSlice, lo: int, hi: int, spec: SourceSpec) -> FileSlice:
        """Scans the slice."""
        with contents(piece, spec.source) as read:
            return slice_of(piece, part(read, range_of(piece), lo, hi, **_dialect(spec.source)))

    def reader(self, spec: SourceSpec, *, cache_bytes: int) -> "_Reader":
        """Parses the needed columns."""
        return _Reader(spec)


class _Reader:
    def __init__(self, spec: SourceSpec) -> None:
        self._spec, self._columns = spec, needed_columns(spec)
        self._layout = lru_cache(maxsize=64)(lambda file: layout_of(file, spec))

    def read(self, piece: FileSlice) -> Any:
        """See SliceReader."""
        layout = self._layout(FileInfo(piece.uri, piece.size_bytes, piece.etag))
        check_columns(self._spec, layout.kinds, where=piece.uri)
        with contents(piece, self._spec.source) as read:
            data = read(piece.byte_lo, piece.byte_hi)
        types = dict(zip(layout.columns, layout.types, strict=True))
        return whole(_parse(data, layout.columns, types, piece.uri, self._spec.source, only=self._columns), piece)


@dataclass(frozen=True, slots=True)
class Layout:
    """What must be known of a text file before any of its rows can be read."""

    columns: tuple[str, ...]
    body: int
    """Offset of the first record after the header."""
    types: tuple[Any, ...]
    """Arrow types, by column."""

    @property
    def kinds(self) -> dict[str, Kind]:
        """By column name."""
        return {name: kind_of(type_) for name, type_ in zip(self.columns, self.types, strict=True)}


def delimiter_of(source: Source) -> str:
    """The character between fields."""
    return source.delimiter or ("," if source.format == "csv" else "\t")


def _quoted(source: Source) -> bool:
    if source.format == "criteo" or source.quoted is None:
        return source.format == "csv"   # tab-separated formats have no quoting: a quote is a character
    return source.quoted


def layout_of(file: FileInfo | FileSlice, spec: SourceSpec) -> Layout:
    """Columns, types and header of a file; InvalidArgument when its start is not of the format."""
    with contents(file, spec.source) as read:
        head = read(0, _HEAD_BYTES)
        if not head.strip():
            raise unreadable(file.uri, "it is empty")
        body, columns = _columns(head, file.uri, spec.source)
        end = body
        for _, ends in scan(lambda lo, hi: head[lo:hi], body, None, **_dialect(spec.source)):
            end = int(ends[-1]) if len(ends) and (int(ends[-1]) < len(head) or head.endswith(b"\n")) else end
    sample = head[body : end if end > body else len(head)]
    return Layout(columns, body, tuple(_types(sample, columns, file.uri, spec)))


def _dialect(source: Source) -> dict[str, Any]:
    return {"delimiter": delimiter_of(source), "quoted": _quoted(source)}


def _columns(head: bytes, uri: str, source: Source) -> tuple[int, tuple[str, ...]]:
    bom = 3 if head.startswith(b"\xef\xbb\xbf") else 0
    if source.format == "criteo":
        return bom, CRITEO_COLUMNS
    if not source.header:
        return bom, tuple(source.columns)
    spans = next(scan(lambda lo, hi: head[lo:hi], bom, None, **_dialect(source)), None)
    if spans is None or not len(spans[0]):
        raise unreadable(uri, "it has no header")
    start, end = int(spans[0][0]), int(spans[1][0])
    table = _parse(head[start:end], None, {}, uri, source)
    names = tuple(str(value) for value in next(iter(table.to_pylist()), {}).values())
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise unreadable(uri, f"its header names {twice!r} twice")
    return end, names


def _types(sample: bytes, columns: tuple[str, ...], uri: str, spec: SourceSpec) -> list[Any]:
    if spec.source.format == "criteo":
        return [pa.int64()] * 14 + [pa.string()] * 26
    declared = {name: _TYPES[kind] for name, kind in spec.source.types.items()}
    for feature in spec.features:
        if feature.separator:               # lists in text, also where every row holds a single id
            declared[feature.source_columns[0]] = pa.string()
            declared |= {feature.weights: pa.string()} if feature.weights else {}
    if not sample.strip():
        return [declared.get(name, pa.null()) for name in columns]
    try:
        inferred = _parse(sample, columns, declared, uri, spec.source).schema
    except InvalidArgument:
        if not types_are_enough(declared, spec):
            raise
        return [declared.get(name, pa.string()) for name in columns]
    types = [inferred.field(name).type for name in columns]
    return [pa.string() if kind_of(type_) == "other" else type_ for type_ in types]    # dates and times


def _parse(
    data: Any, columns: tuple[str, ...] | None, types: Mapping[str, Any], uri: str, source: Source,
    only: list[str] | None = None,
) -> Any:
    try:
        return csv.read_csv(
            pa.BufferReader(data),
            read_options=csv.ReadOptions(
                column_names=list(columns) if columns else None,
                autogenerate_column_names=columns is None,
                use_threads=False,
                block_size=max(1 << 20, len(data) + 1),
            ),
            parse_options=csv.ParseOptions(
                delimiter=delimiter_of(source),
                quote_char='"' if _quoted(source) else False,
                newlines_in_values=_quoted(source),
                ignore_empty_lines=True,
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict(types) if columns else {"f0": pa.string()},
                include_columns=only,
                strings_can_be_null=False,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        hint = "; see data.source.types" if "conversion error" in str(error) else ""
        raise unreadable(uri, f"{error}{hint}") from None
