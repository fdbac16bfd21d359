"""Arrow IPC files (Feather 2): their index from the footer, and rows of record batches."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from recmesh.data.fileformats.grouped import GroupReader, cut_groups
from recmesh.data.fileformats.interface import Indexed
from recmesh.data.files import FileInfo, opened, unreadable
from recmesh.data.records import FileSlice
from recmesh.data.schema import kind_of, needed_columns
from recmesh.spec.dataset import SourceSpec


class ArrowFile:
    """See FileFormat. The format for files, which has a footer; not the one for streams, which has none."""

    def index(self, file: FileInfo, spec: SourceSpec) -> Indexed:
        """Reads the footer, and the head of each batch."""
        kinds = self._kinds(file)
        return Indexed(kinds, cut_groups(file, _rows(file.uri, file.size_bytes, file.etag), rows_each=spec.task_rows))

    def _kinds(self, file: FileInfo) -> dict[str, Any]:
        with _file(file, None) as found:
            return {field.name: kind_of(field.type) for field in found.schema}

    def trim(self, piece: FileSlice, lo: int, hi: int, spec: SourceSpec) -> FileSlice:
        """Rows are addressed by number."""
        return replace(piece, first_row=piece.first_row + lo, rows=hi - lo)

    def reader(self, spec: SourceSpec, *, cache_bytes: int) -> GroupReader:
        """Reads the needed columns of whole record batches."""
        columns = needed_columns(spec)

        def read_group(piece: FileSlice, group: int) -> Any:
            with _file(piece, columns) as found:
                return pa.Table.from_batches([found.get_batch(group)])

        return GroupReader(
            lambda piece: _rows(piece.uri, piece.size_bytes, piece.etag), read_group, cache_bytes=cache_bytes
        )


@contextmanager
def _file(file: FileInfo | FileSlice, columns: list[str] | None) -> Iterator[Any]:
    with opened(file) as stream:
        try:
            found = pa.ipc.open_file(stream)
            if columns is not None:
                wanted = [index for index, field in enumerate(found.schema) if field.name in set(columns)]
                found = pa.ipc.open_file(stream, options=pa.ipc.IpcReadOptions(included_fields=wanted))
            yield found
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise                       # the file system failed, not the format
            raise unreadable(file.uri, f"no Arrow IPC file: {error}") from None


@lru_cache(maxsize=1024)
def _rows(uri: str, size_bytes: int, etag: str) -> tuple[int, ...]:
    """Of each record batch; the footer does not say, so each batch's head is read."""
    with _file(FileInfo(uri, size_bytes, etag), []) as found:
        return tuple(found.get_batch(index).num_rows for index in range(found.num_record_batches))
