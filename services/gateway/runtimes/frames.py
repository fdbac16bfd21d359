"""Frames between the gateway and a model server: a JSON header, then the tensors' raw bytes.

    uint32 header size | uint64 body size | header (JSON, UTF-8) | body

The header's `tensors` say name, datatype, shape and size of each tensor, in the order in which their bytes
follow.
"""

import json
import struct
from collections.abc import Sequence
from typing import Any

from services.gateway.domain.tensors import Tensor, from_raw, to_raw

PREFIX = struct.Struct("<IQ")
MAX_HEADER_BYTES = 16 << 20
MAX_BODY_BYTES = 2 << 30

Header = dict[str, Any]


class FrameError(Exception):
    """The other side does not speak this protocol; the connection is of no more use."""


def encode(header: Header, tensors: Sequence[Tensor] = ()) -> list[bytes]:
    """The frame as buffers to be written one after another."""
    bodies = [to_raw(tensor) for tensor in tensors]
    described = [
        {
            "name": item.name,
            "datatype": item.datatype.name,
            "shape": list(item.shape),
            "size_bytes": len(body),
        }
        for item, body in zip(tensors, bodies, strict=True)
    ]
    head = json.dumps({**header, "tensors": described}, separators=(",", ":")).encode()
    return [PREFIX.pack(len(head), sum(map(len, bodies))) + head, *bodies]


def sizes(prefix: bytes) -> tuple[int, int]:
    """Sizes of header and body; FrameError when they are beyond any sense."""
    header_bytes, body_bytes = PREFIX.unpack(prefix)
    if header_bytes > MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
        raise FrameError(f"a frame of {header_bytes} + {body_bytes} bytes")
    return header_bytes, body_bytes


def decode(head: bytes, body: bytes) -> tuple[Header, list[Tensor]]:
    """Header and tensors; the tensors' arrays are views of `body`."""
    try:
        header = json.loads(head)
        described = header.pop("tensors")
    except (ValueError, KeyError, AttributeError) as error:
        raise FrameError(f"a header that is not one: {error}") from None
    view = memoryview(body)
    tensors: list[Tensor] = []
    at = 0
    for item in described:
        end = at + int(item["size_bytes"])
        tensors.append(from_raw(item["name"], item["datatype"], item["shape"], view[at:end]))
        at = end
    if at != len(body):
        raise FrameError(f"{len(body) - at} bytes belong to no tensor")
    return header, tensors
