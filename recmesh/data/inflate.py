"""Random access to gzip: inflate once, keep restart points, go on from the nearest one."""

import zlib
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

_CHUNK = 1 << 18
_POINT_EVERY = 8 << 20
"""Bytes of text between restart points: one costs some 45 KB of memory, a seek at most 30 ms of inflating."""


@dataclass(frozen=True, slots=True)
class _Point:
    at: int
    """Offset in the text."""
    raw_at: int
    """Offset in the file of what follows `pending`."""
    decoder: Any
    pending: bytes


class Points:
    """Where inflating may start again; they belong to one version of one file."""

    def __init__(self) -> None:
        self._points = [_Point(0, 0, zlib.decompressobj(wbits=31), b"")]

    def before(self, offset: int) -> _Point:
        """The last point at or before the offset."""
        return self._points[bisect_right(self._points, offset, key=lambda point: point.at) - 1]

    def offer(self, at: int, raw_at: int, decoder: Any, pending: bytes) -> None:
        """Keeps a copy when the newest point is far enough behind."""
        if at - self._points[-1].at >= _POINT_EVERY and not decoder.eof:
            self._points.append(_Point(at, raw_at, decoder.copy(), pending))


class Inflated:
    """The text of a gzip file of one or several members, read at any offset; fastest in ascending order."""

    def __init__(self, raw: Any, points: Points) -> None:
        self._raw = raw
        self._points = points
        self._go_to(0)

    def _go_to(self, offset: int) -> None:
        point = self._points.before(offset)
        self._at, self._decoder, self._pending = point.at, point.decoder.copy(), point.pending
        self._piece = b""                  # text [at - len(piece), at)
        self._raw.seek(point.raw_at)

    def read(self, lo: int, hi: int) -> bytes:
        """Text [lo, hi), shorter at the end. zlib.error: damaged; EOFError: the file ends too early."""
        if lo < self._at - len(self._piece) or self._points.before(lo).at > self._at:
            self._go_to(lo)
        parts: list[bytes] = []
        while True:
            start = self._at - len(self._piece)
            if self._at > lo:
                parts.append(self._piece[max(0, lo - start) : hi - start])
            if self._at >= hi or not self._advance():
                return b"".join(parts)

    def _advance(self) -> bool:
        """Inflates the next piece; False at the end."""
        while True:
            if self._decoder.eof and not self._next_member():
                return False
            raw = self._pending or self._raw.read(_CHUNK)
            if not raw:
                raise EOFError("the compressed file ends in the middle")
            self._piece = self._decoder.decompress(raw, _CHUNK * 4)
            self._pending = self._decoder.unused_data if self._decoder.eof else self._decoder.unconsumed_tail
            if self._piece:
                self._at += len(self._piece)
                self._points.offer(self._at, self._raw.tell(), self._decoder, self._pending)
                return True

    def _next_member(self) -> bool:
        """Goes on to the next member, past the zeros that block devices leave; gzip does the same."""
        self._pending = self._pending.lstrip(b"\0")
        while not self._pending:
            raw = self._raw.read(_CHUNK)
            if not raw:
                return False
            self._pending = raw.lstrip(b"\0")
        self._decoder = zlib.decompressobj(wbits=31)
        return True
