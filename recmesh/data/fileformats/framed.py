"""Files of messages, each with its length before it: TFRecord with tf.Example, and length-prefixed protobuf."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from recmesh.data.contents import ReadRange, contents
from recmesh.data.fileformats.interface import Indexed
from recmesh.data.fileformats.lines import TextRange, range_of, slice_of, whole
from recmesh.data.fileformats.messages import Columns, Decoder, example_decoder, message_decoder
from recmesh.data.files import FileInfo, unreadable
from recmesh.data.records import FileSlice
from recmesh.data.schema import check_columns, needed_columns
from recmesh.spec.dataset import Source, SourceSpec

_BLOCK_BYTES = 4 << 20
_HEAD_RECORDS = 256
"""Columns and their types are those of so many records: a function of the file, never of the part that is read."""
_MOST_BYTES = 1 << 30                      # of one record; what says more is no such file


class BadFrame(Exception):
    """It is not framed like this from a byte on; the message says which, and why."""


class Framing(Protocol):
    """How messages follow each other."""

    def next(self, block: bytes, at: int) -> tuple[int, int, int] | None:
        """(start of the message, its end, start of the next frame); ends may lie beyond the block. None: the block
        ends within the frame's head. BadFrame."""

    def check(self, block: bytes, start: int, end: int) -> None:
        """BadFrame when a message does not have its checksum."""


class TfRecordFraming:
    """uint64 length, its masked CRC-32C, message, its masked CRC-32C."""

    _HEAD = struct.Struct("<QI")

    def next(self, block: bytes, at: int) -> tuple[int, int, int] | None:
        """See Framing. The length's checksum is always looked at: a wrong length leads anywhere."""
        if len(block) - at < self._HEAD.size:
            return None
        size, checksum = self._HEAD.unpack_from(block, at)
        if _masked(block[at : at + 8]) != checksum:
            raise BadFrame("the length of a record does not have its checksum")
        start = at + self._HEAD.size
        return start, start + size, start + size + 4

    def check(self, block: bytes, start: int, end: int) -> None:
        """See Framing."""
        if int.from_bytes(block[end : end + 4], "little") != _masked(block[start:end]):
            raise BadFrame("a record does not have its checksum")


class VarintFraming:
    """A varint length, as `writeDelimitedTo` and `SerializeDelimitedToOstream` write it."""

    def next(self, block: bytes, at: int) -> tuple[int, int, int] | None:
        """See Framing."""
        size = 0
        for place in range(10):
            if at + place >= len(block):
                return None
            byte = block[at + place]
            size |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                start = at + place + 1
                return start, start + size, start + size
        raise BadFrame("a length of more than ten bytes")

    def check(self, block: bytes, start: int, end: int) -> None:
        """There is no checksum."""


class FixedFraming:
    """An unsigned length of four bytes."""

    def __init__(self, name: str) -> None:
        """`fixed32-little` or `fixed32-big`."""
        self._head = struct.Struct("<I" if name.endswith("little") else ">I")

    def next(self, block: bytes, at: int) -> tuple[int, int, int] | None:
        """See Framing."""
        if len(block) - at < 4:
            return None
        (size,) = self._head.unpack_from(block, at)
        return at + 4, at + 4 + size, at + 4 + size

    def check(self, block: bytes, start: int, end: int) -> None:
        """There is no checksum."""


def _masked(data: bytes) -> int:
    from recmesh.data.crc32c import masked_crc32c

    return masked_crc32c(np.frombuffer(data, np.uint8))


def frames(read: ReadRange, lo: int, hi: int | None, framing: Framing) -> Iterator[tuple[int, int]]:
    """Where frames begin and end in [lo, hi or the end). BadFrame names the byte."""
    at, block, base = lo, b"", lo
    while hi is None or at < hi:
        found = None
        try:
            found = framing.next(block, at - base) if at - base < len(block) else None
        except BadFrame as error:
            raise BadFrame(f"byte {at}: {error}") from None
        if found is None:
            rest = block[at - base :] if at - base < len(block) else b""
            more = read(at + len(rest), at + len(rest) + _BLOCK_BYTES)
            if not more:
                if rest:
                    raise BadFrame(f"byte {at}: it ends within the head of a record")
                return
            block, base = rest + more, at
            continue
        start, end, after = found
        if end - start > _MOST_BYTES:
            raise BadFrame(f"byte {at}: a record that says it has {end - start:,} bytes")
        if after > len(block) and not read(base + after - 1, base + after):
            raise BadFrame(f"byte {at}: it ends within a record")
        yield at, base + after
        at = base + after


@dataclass(frozen=True, slots=True)
class Framed:
    """Files of such frames, with such messages in them. See FileFormat."""

    framing: Callable[[Source], Framing]
    decoder: Callable[[Source], Decoder]

    def index(self, file: FileInfo, spec: SourceSpec) -> Indexed:
        """Reads the whole file once, for its frames."""
        columns = self.columns_of(file, spec)
        slices: list[FileSlice] = []
        first = rows = begin = end = 0
        try:
            with contents(file, spec.source) as read:
                for lo, hi in frames(read, 0, None, self.framing(spec.source)):
                    begin = lo if not rows else begin
                    rows += 1
                    if rows == spec.task_rows:
                        slices.append(slice_of(file, TextRange(first, rows, begin, hi)))
                        first, rows = first + rows, 0
                    end = hi
                if rows:
                    slices.append(slice_of(file, TextRange(first, rows, begin, end)))
        except BadFrame as error:
            raise unreadable(file.uri, str(error)) from None
        return Indexed(columns.kinds, slices)

    def columns_of(self, file: FileInfo, spec: SourceSpec) -> Columns:
        """By the file's first records, and by what the specification declares."""
        framing, decoder = self.framing(spec.source), self.decoder(spec.source)
        messages: list[bytes] = []
        try:
            with contents(file, spec.source) as read:
                for lo, hi in frames(read, 0, None, framing):
                    messages.extend(_messages(read(lo, hi), framing))
                    if len(messages) == _HEAD_RECORDS:
                        break
        except BadFrame as error:
            raise unreadable(file.uri, str(error)) from None
        if not messages:
            raise unreadable(file.uri, "it is empty")
        return decoder.columns(messages, declared=spec.source.types, where=file.uri)

    def trim(self, piece: FileSlice, lo: int, hi: int, spec: SourceSpec) -> FileSlice:
        """Scans the slice."""
        with contents(piece, spec.source) as read:
            found = list(frames(read, piece.byte_lo, piece.byte_hi, self.framing(spec.source)))
        whole = range_of(piece)
        return slice_of(piece, TextRange(whole.first_row + lo, hi - lo, found[lo][0], found[hi - 1][1]))

    def reader(self, spec: SourceSpec, *, cache_bytes: int) -> "_Reader":
        """Decodes the needed fields."""
        return _Reader(self, spec, self.framing(spec.source), self.decoder(spec.source))


def tf_records() -> Framed:
    """TFRecord files of tf.Example."""
    return Framed(lambda source: TfRecordFraming(), lambda source: example_decoder())


def length_prefixed() -> Framed:
    """Messages of a type that the specification names, in a descriptor set."""
    return Framed(
        lambda source: VarintFraming() if source.framing == "varint" else FixedFraming(source.framing),
        lambda source: message_decoder(source.descriptors, source.message),
    )


class _Reader:
    def __init__(self, of: Framed, spec: SourceSpec, framing: Framing, decoder: Decoder) -> None:
        self._spec, self._framing, self._decoder = spec, framing, decoder
        self._needed = needed_columns(spec)
        self._columns = lru_cache(maxsize=64)(lambda file: of.columns_of(file, spec))

    def read(self, piece: FileSlice) -> Any:
        """See SliceReader."""
        columns = self._columns(FileInfo(piece.uri, piece.size_bytes, piece.etag))
        check_columns(self._spec, columns.kinds, where=piece.uri)
        with contents(piece, self._spec.source) as read:
            data = read(piece.byte_lo, piece.byte_hi)
        try:
            messages = _messages(data, self._framing)
        except BadFrame as error:
            raise unreadable(piece.uri, f"bytes {piece.byte_lo} to {piece.byte_hi}: {error}") from None
        table = self._decoder.table(messages, columns, self._needed, where=piece.uri, first_row=piece.first_row)
        return whole(table, piece)


def _messages(data: bytes, framing: Framing) -> list[bytes]:
    """The messages of whole frames, checksums verified."""
    found, at = [], 0
    while at < len(data):
        place = framing.next(data, at)
        if place is None:
            raise BadFrame("a record is cut off")
        start, end, at = place
        framing.check(data, start, end)
        found.append(data[start:end])
    return found
