"""The bytes of a file, whatever packs them, read at any offset."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

import pyarrow as pa

from recmesh.data import snappy, spool
from recmesh.data.faults import Damaged
from recmesh.data.files import FileInfo, opened, unreadable
from recmesh.data.inflate import Inflated, Points
from recmesh.data.records import FileSlice
from recmesh.spec.dataset import Source

ReadRange = Callable[[int, int], bytes]
"""(lo, hi) -> bytes, shorter only at the end of the text."""

Packing = Literal["none", "gzip", "zstd", "snappy"]

_ENDINGS: tuple[tuple[str, Packing], ...] = (
    (".gz", "gzip"), (".gzip", "gzip"), (".zst", "zstd"), (".zstd", "zstd"), (".sz", "snappy"), (".snappy", "snappy"),
)


def packing_of(uri: str, source: Source) -> Packing:
    """As the specification says, or by the name's ending."""
    if source.compression != "infer":
        return source.compression
    return next((packing for ending, packing in _ENDINGS if uri.endswith(ending)), "none")


@contextmanager
def contents(file: FileInfo | FileSlice, source: Source) -> Iterator[ReadRange]:
    """Reads of the unpacked file; it is checked against its identity first.

    gzip and snappy are entered near the offset; zstd cannot be, so such a file is unpacked once, into a temporary one.
    InvalidArgument: damaged.
    """
    packing = packing_of(file.uri, source)
    with opened(file) as raw:
        try:
            match packing:
                case "gzip":
                    yield Inflated(raw, _points(file.uri, file.size_bytes, file.etag)).read
                case "snappy":
                    yield snappy.Framed(raw, _chunks(file.uri, file.size_bytes, file.etag)).read
                case "zstd":
                    key = (file.uri, file.size_bytes, file.etag)
                    with spool.unpacked(key, lambda: pa.CompressedInputStream(pa.PythonFile(raw), "zstd")) as read:
                        yield read
                case "none":
                    yield lambda lo, hi: _read(raw, lo, hi)
        except (zlib.error, EOFError, Damaged) as error:
            raise unreadable(file.uri, f"damaged {packing}: {error}") from None


def _read(raw: Any, lo: int, hi: int) -> bytes:
    raw.seek(lo)
    data: bytes = raw.read(hi - lo)
    return data


@lru_cache(maxsize=256)
def _points(uri: str, size_bytes: int, etag: str) -> Points:
    return Points()


@lru_cache(maxsize=256)
def _chunks(uri: str, size_bytes: int, etag: str) -> snappy.Chunks:
    return snappy.Chunks()
