"""Snappy's framing format, read at any offset: chunks of at most 64 KiB that stand for themselves.

https://github.com/google/snappy/blob/main/framing_format.txt
"""

from bisect import bisect_right
from typing import Any

import numpy as np
import pyarrow as pa

from recmesh.data.crc32c import masked_crc32c
from recmesh.data.faults import Damaged

_HEADER = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _PLAIN, _STREAM = 0x00, 0x01, 0xFF
_RESERVED_SKIPPABLE = 0x80
_MOST_BYTES = 1 << 16                      # of one chunk, unpacked
_CHECKSUM_BYTES = 4


class Chunks:
    """Where the chunks that were met begin; they belong to one version of one file."""

    def __init__(self) -> None:
        self.at: list[int] = [0]
        """Offsets in the text, ascending."""
        self.raw_at: list[int] = [0]
        """In the file."""


class Framed:
    """The text of a file, read at any offset; fastest in ascending order."""

    def __init__(self, raw: Any, chunks: Chunks) -> None:
        self._raw, self._chunks, self._codec = raw, chunks, pa.Codec("snappy")
        self._piece, self._start = b"", 0
        self._raw_at = 0

    def read(self, lo: int, hi: int) -> bytes:
        """Text [lo, hi), shorter at the end. Damaged."""
        if not self._start <= lo <= self._start + len(self._piece):
            known = bisect_right(self._chunks.at, lo) - 1
            self._piece, self._start, self._raw_at = b"", self._chunks.at[known], self._chunks.raw_at[known]
        parts: list[bytes] = []
        while True:
            end = self._start + len(self._piece)
            if end > lo:
                parts.append(self._piece[max(0, lo - self._start) : hi - self._start])
            if end >= hi or not self._advance():
                return b"".join(parts)

    def _advance(self) -> bool:
        """Unpacks the next chunk with data; False at the end."""
        self._raw.seek(self._raw_at)
        while True:
            begin = self._raw_at
            head = self._raw.read(4)
            if not head:
                return False
            if begin == 0 and not head.startswith(_HEADER[:4]):
                raise Damaged("it does not begin as framed snappy does")
            size = int.from_bytes(head[1:4], "little")
            data = self._raw.read(size) if len(head) == 4 else b""
            if len(head) < 4 or len(data) < size:
                raise Damaged("it ends in the middle")
            self._raw_at = begin + 4 + size
            kind = head[0]
            if kind in (_COMPRESSED, _PLAIN):
                self._note(begin)
                self._start, self._piece = self._start + len(self._piece), self._unpacked(kind, data, begin)
                return True
            if kind < _RESERVED_SKIPPABLE or (kind == _STREAM and data != _HEADER[4:]):
                raise Damaged(f"byte {begin} begins no chunk of framed snappy")

    def _note(self, begin: int) -> None:
        at = self._start + len(self._piece)
        if at > self._chunks.at[-1]:
            self._chunks.at.append(at)
            self._chunks.raw_at.append(begin)

    def _unpacked(self, kind: int, data: bytes, begin: int) -> bytes:
        checksum, body = int.from_bytes(data[:_CHECKSUM_BYTES], "little"), data[_CHECKSUM_BYTES:]
        if kind == _COMPRESSED:
            size = _size_of(body)
            if size > _MOST_BYTES:
                raise Damaged(f"the chunk at byte {begin} says that it holds {size} bytes")
            try:
                body = self._codec.decompress(body, decompressed_size=size, asbytes=True)
            except OSError as error:
                raise Damaged(f"the chunk at byte {begin}: {error}") from None
        if masked_crc32c(np.frombuffer(body, np.uint8)) != checksum:
            raise Damaged(f"the chunk at byte {begin} does not have its checksum")
        return body


def _size_of(body: bytes) -> int:
    """The varint that a compressed block begins with."""
    size = 0
    for place, byte in enumerate(body[:5]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return size
    raise Damaged("a chunk without its size")
