"""Frames, as every process of serving speaks them: a JSON header, then the tensors' bytes in one body.

    magic, with the version | uint32 header size | uint64 body size | header (JSON, UTF-8) | body

The header's `tensors` say name, datatype, shape, size and place in the body of each tensor; places are
multiples of ALIGN. Tensors up to SMALL_BYTES lie packed at the front, in one buffer, since sending many small
buffers costs more than copying them; larger ones are sent as they lie in memory. Whoever receives a frame reads
the body into one buffer, and the tensors are views of it.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from recmesh.serving.tensors import Tensor, from_raw, to_buffer

MAGIC = b"rms\x01"
PREFIX = struct.Struct("<4sIQ")
SMALL_BYTES = 4096
ALIGN = 64
MAX_HEADER_BYTES = 16 << 20
MAX_BODY_BYTES = 2 << 30
_NOTHING = memoryview(b"")

Header = dict[str, Any]
Bytes = bytes | bytearray | memoryview


class FrameError(Exception):
    """The other side does not speak this protocol; the connection is of no more use."""


@dataclass(frozen=True, slots=True)
class Body:
    """Tensors laid out: what the header says of them, and their bytes."""

    described: list[Header]
    parts: list[Bytes]
    size_bytes: int


def lay_out(tensors: Sequence[Tensor]) -> Body:
    """Small tensors in one buffer, then the others, each where `described` says."""
    buffers = [to_buffer(tensor) for tensor in tensors]
    packed = bytearray()
    places: dict[int, int] = {}
    for index, buffer in enumerate(buffers):
        if buffer.nbytes <= SMALL_BYTES:
            packed.extend(bytes(-len(packed) % ALIGN))
            places[index] = len(packed)
            packed.extend(buffer)
    parts: list[Bytes] = [packed] if packed else []
    size_bytes = len(packed)
    for index, buffer in enumerate(buffers):
        if index not in places:
            if padding := -size_bytes % ALIGN:
                parts.append(bytes(padding))
            places[index] = size_bytes + padding
            size_bytes = places[index] + buffer.nbytes
            parts.append(buffer)
    described = [
        {
            "name": tensor.name, "datatype": tensor.datatype.name, "shape": tensor.shape,
            "size_bytes": buffer.nbytes, "at": places[index],
        }
        for index, (tensor, buffer) in enumerate(zip(tensors, buffers, strict=True))
    ]  # fmt: skip
    return Body(described, parts, size_bytes)


def encode(header: Header, tensors: Sequence[Tensor] = ()) -> list[Bytes]:
    """The frame as buffers to be written one after another."""
    body = lay_out(tensors)
    return [head(header, body.described, body.size_bytes), *body.parts]


def head(header: Header, described: Sequence[Header], body_bytes: int) -> bytes:
    """Prefix and header of a frame whose body follows."""
    text = orjson.dumps({**header, "tensors": described})
    return PREFIX.pack(MAGIC, len(text), body_bytes) + text


def sizes(
    prefix: Bytes, *, max_header_bytes: int = MAX_HEADER_BYTES, max_body_bytes: int = MAX_BODY_BYTES
) -> tuple[int, int]:
    """Sizes of header and body; FrameError when it is no frame of ours, or they are beyond any sense."""
    magic, header_bytes, body_bytes = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise FrameError(f"a frame begins with {magic!r}; this side speaks {MAGIC!r}")
    if header_bytes > max_header_bytes or body_bytes > max_body_bytes:
        raise FrameError(f"a frame of {header_bytes} + {body_bytes} bytes")
    return header_bytes, body_bytes


def header_of(text: Bytes) -> Header:
    """The decoded header, `tensors` in it."""
    try:
        header = orjson.loads(memoryview(text))
    except orjson.JSONDecodeError as error:
        raise FrameError(f"a header that is not one: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("tensors"), list):
        raise FrameError("a header that is not one: it tells of no tensors")
    return header


def tensors_of(header: Header, body: Bytes) -> list[Tensor]:
    """Takes `tensors` out of the header; their arrays are views of `body`, none of them beyond its end."""
    view = memoryview(body)
    found: list[Tensor] = []
    for item in header.pop("tensors"):
        try:
            at, size_bytes = int(item["at"]), int(item["size_bytes"])
            name, datatype, shape = str(item["name"]), str(item["datatype"]), list(item["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise FrameError(f"a tensor's entry in the header is wrong: {error!r}") from None
        if at < 0 or size_bytes < 0 or at + size_bytes > view.nbytes:
            raise FrameError(f"tensor {name!r} lies beyond the body")
        found.append(from_raw(name, datatype, shape, view[at : at + size_bytes]))
    return found


def decode(text: Bytes, body: Bytes) -> tuple[Header, list[Tensor]]:
    """Header and tensors."""
    header = header_of(text)
    return header, tensors_of(header, body)


class Cutter:
    """Whole frames out of a stream that comes in pieces of any size, for whoever cannot wait for bytes.

    Tensors are views of the pieces they came in, but for frames that came in several.
    """

    def __init__(self) -> None:
        self._short = b""
        """The beginning of a frame whose size is not known yet."""
        self._frame = self._missing = _NOTHING
        """A frame that is being filled, and what of it has not come."""

    def cut(self, piece: bytes) -> list[tuple[Header, list[Tensor]]]:
        """The frames that end in this piece; FrameError, and what `decode` raises."""
        view, found = memoryview(piece), []
        if self._missing.nbytes:
            taken = min(self._missing.nbytes, view.nbytes)
            self._missing[:taken] = view[:taken]
            self._missing, view = self._missing[taken:], view[taken:]
            if self._missing.nbytes:
                return []
            found.append(_whole(self._frame))
            self._frame = self._missing = _NOTHING
        elif self._short:
            view, self._short = memoryview(self._short + piece), b""
        while view.nbytes >= PREFIX.size:
            size_bytes = PREFIX.size + sum(sizes(view[: PREFIX.size]))
            if view.nbytes < size_bytes:
                self._frame = np.empty(size_bytes, np.uint8).data
                self._frame[: view.nbytes] = view
                self._missing = self._frame[view.nbytes :]
                return found
            found.append(_whole(view[:size_bytes]))
            view = view[size_bytes:]
        self._short = bytes(view)
        return found


def _whole(frame: memoryview) -> tuple[Header, list[Tensor]]:
    header_bytes, _ = sizes(frame[: PREFIX.size])
    body = PREFIX.size + header_bytes
    return decode(frame[PREFIX.size : body], frame[body:])
