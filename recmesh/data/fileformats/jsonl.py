"""JSON lines: one object per line, as columns."""

import io
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

from recmesh.data.contents import contents
from recmesh.data.fileformats.interface import Indexed
from recmesh.data.fileformats.lines import cut, part, range_of, slice_of, whole
from recmesh.data.files import FileInfo, unreadable
from recmesh.data.records import FileSlice
from recmesh.data.schema import ARROW_TYPES, check_columns, kind_of, needed_columns, types_are_enough
from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.dataset import SourceSpec

_HEAD_BYTES = 1 << 20
"""Types are inferred from this much of each file: a function of the file, never of the part that is read."""
_PLAIN: dict[str, Any] = {"delimiter": ",", "quoted": False}     # a line break inside a JSON text is written \n


class JsonLines:
    """See FileFormat."""

    def index(self, file: FileInfo, spec: SourceSpec) -> Indexed:
        """Reads the whole file once, for its line breaks."""
        schema = _schema_of(file, spec)
        with contents(file, spec.source) as read:
            ranges = cut(read, 0, rows_each=spec.task_rows, **_PLAIN)
        return Indexed({field.name: kind_of(field.type) for field in schema}, [slice_of(file, each) for each in ranges])

    def trim(self, piece: FileSlice, lo: int, hi: int, spec: SourceSpec) -> FileSlice:
        """Scans the slice."""
        with contents(piece, spec.source) as read:
            return slice_of(piece, part(read, range_of(piece), lo, hi, **_PLAIN))

    def reader(self, spec: SourceSpec, *, cache_bytes: int) -> "_Reader":
        """Parses the needed columns."""
        return _Reader(spec)


class _Reader:
    def __init__(self, spec: SourceSpec) -> None:
        self._spec, self._columns = spec, set(needed_columns(spec))
        self._schema = lru_cache(maxsize=64)(lambda file: _schema_of(file, spec))

    def read(self, piece: FileSlice) -> Any:
        """See SliceReader."""
        schema = self._schema(FileInfo(piece.uri, piece.size_bytes, piece.etag))
        check_columns(self._spec, {field.name: kind_of(field.type) for field in schema}, where=piece.uri)
        with contents(piece, self._spec.source) as read:
            data = read(piece.byte_lo, piece.byte_hi)
        wanted = pa.schema([field for field in schema if field.name in self._columns])
        return whole(_parse(data, wanted, piece.uri), piece)


def _schema_of(file: FileInfo, spec: SourceSpec) -> Any:
    """Columns of the file's start, and those whose types the specification declares."""
    with contents(file, spec.source) as read:
        head = read(0, _HEAD_BYTES)
    if not head.strip():
        raise unreadable(file.uri, "it is empty")
    if len(head) == _HEAD_BYTES:
        end = head.rfind(b"\n") + 1
        if not end:
            raise unreadable(file.uri, f"its first line is longer than {_HEAD_BYTES:,} bytes")
        head = head[:end]
    declared = {name: ARROW_TYPES[kind] for name, kind in spec.source.types.items()}
    try:
        inferred = {field.name: field.type for field in _parse(head, None, file.uri).schema}
    except InvalidArgument:
        if not types_are_enough(declared, spec):
            raise
        inferred = {}
    return pa.schema(list({**inferred, **declared}.items()))


def _parse(data: bytes, schema: Any, uri: str) -> Any:
    try:
        return pj.read_json(
            io.BytesIO(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(1 << 20, len(data) + 1)),
            parse_options=pj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise unreadable(uri, f"{error}; see data.source.types for columns that change their type") from None
