"""Protobuf's wire format by hand, for messages that are mostly arrays: one copy going out, none coming in.

protobuf's own runtime copies each array four times on its way into a message (to `bytes`, to a message, to its
parent, to the wire) and twice on its way out; at some MiB per message that costs more than the network. What is
written here is a message like any other: any protobuf library reads it, and what any writes is read here. An array
is preceded by field PAD, which readers ignore, so that it starts at a multiple of eight bytes.
"""

from collections.abc import Container, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAD = 15
"""`bytes pad = 15` in each message that holds arrays."""

_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
_ALIGNMENT = 8
_LENGTH_BYTES = 5
"""Lengths are written with so many bytes: what follows one is placed before it is known."""


class Message:
    """A message that is being written; arrays are kept by reference until `to_bytes`."""

    def __init__(self, head: bytes = b"") -> None:
        """`head` is the rest of the message, as protobuf wrote it: two messages end to end are one."""
        self._parts: list[Any] = [head]
        self._size = len(head)

    def number(self, field: int, value: int) -> None:
        """An integer field; zero is left out, as protobuf does."""
        if value:
            self._put(_tag(field, _VARINT) + _varint(value))

    def text(self, field: int, value: str) -> None:
        """A string field."""
        data = value.encode()
        self._put(_tag(field, _BYTES) + _varint(len(data)) + data)

    def array(self, field: int, values: NDArray[Any]) -> None:
        """A bytes field of the array's memory, which must not change before `to_bytes`."""
        values = np.ascontiguousarray(values)
        short = -(self._size + 1 + _LENGTH_BYTES) % _ALIGNMENT
        if short:
            filler = (short - 2) % _ALIGNMENT
            self._put(_tag(PAD, _BYTES) + bytes([filler]) + bytes(filler))
        self._put(_tag(field, _BYTES) + _length(values.nbytes))
        self._parts.append(values)
        self._size += values.nbytes

    def begin(self, field: int) -> int:
        """A message as a field: what is written from here to `end` belongs to it."""
        self._put(_tag(field, _BYTES))
        self._put(b"")
        self._size += _LENGTH_BYTES
        return len(self._parts) - 1

    def end(self, begun: int) -> None:
        """`begun` is what `begin` returned."""
        size = sum(part.nbytes if isinstance(part, np.ndarray) else len(part) for part in self._parts[begun + 1:])
        self._parts[begun] = _length(size)

    def to_bytes(self) -> bytes:
        """The message."""
        return b"".join(self._parts)

    def _put(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Each field's number with its integer, or with its bytes as a view; ValueError when it is no message."""
    for field, value, _, _ in _fields(message):
        yield field, value


def split(message: bytes, arrays: Container[int]) -> tuple[bytes, list[tuple[int, memoryview]]]:
    """The message without its fields `arrays`, for protobuf to read; and these, in order. ValueError as above."""
    whole = memoryview(message)
    rest: list[memoryview] = []
    found: list[tuple[int, memoryview]] = []
    at = 0
    for field, value, begin, end in _fields(whole):
        if field in arrays:
            if not isinstance(value, memoryview):
                raise ValueError(f"field {field} is an integer, not bytes")
            found.append((field, value))
            rest.append(whole[at:begin])
            at = end
    rest.append(whole[at:])
    return b"".join(rest), found


def view(data: memoryview, dtype: str) -> NDArray[Any]:
    """The array in these bytes, read-only; a copy where they are not aligned. ValueError when they are none."""
    kind = np.dtype(dtype)
    if len(data) % kind.itemsize:
        raise ValueError(f"{len(data)} bytes are no multiple of {kind.itemsize}")
    values: NDArray[Any] = np.frombuffer(data, kind)
    return values if values.flags.aligned else values.copy()


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview, int, int]]:
    """Number, value, and where the field begins and ends."""
    at, size = 0, len(message)
    while at < size:
        begin = at
        key, at = _read_varint(message, at)
        kind = key & 7
        value: int | memoryview
        if kind == _VARINT:
            value, at = _read_varint(message, at)
        else:
            if kind == _BYTES:
                length, at = _read_varint(message, at)
            elif kind in _FIXED:
                length = _FIXED[kind]
            else:
                raise ValueError(f"wire type {kind} at byte {begin}")
            if at + length > size:
                raise ValueError(f"field {key >> 3} ends behind the message")
            value = message[at:at + length]
            at += length
        yield key >> 3, value, begin, at


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """The integer, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError(f"no integer at byte {at}")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    made = bytearray()
    while value >= 0x80:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _length(value: int) -> bytes:
    """In _LENGTH_BYTES, whatever it is."""
    return bytes((value >> shift) & 0x7F | (0x80 if shift < 28 else 0) for shift in (0, 7, 14, 21, 28))


def _tag(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)
