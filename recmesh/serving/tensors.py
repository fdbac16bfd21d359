"""Tensors and their raw encoding: row-major, little-endian; BYTES elements each led by their uint32 length.

Every function that reads names the tensor in its errors, because a request has many.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.serving.datatypes import Datatype, datatype, of_array

MAX_RANK = 8
MAX_DIMENSION = 2**31 - 1

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array. BYTES tensors hold an object array of `bytes`."""

    name: str
    datatype: Datatype
    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return tuple(int(size) for size in self.array.shape)

    @classmethod
    def of(cls, name: str, array: Array) -> "Tensor":
        """A tensor from a model's output; InvalidArgument when the protocol cannot carry its dtype."""
        kind = of_array(array)
        if kind is None:
            refuse(name, f"the protocol has no datatype for numpy's {array.dtype.name}")
        if kind.kind == "bytes":
            flat = [as_bytes(value) for value in array.reshape(-1)]
            return cls(name, kind, objects(flat, array.shape))
        return cls(name, kind, np.asarray(array, dtype=kind.numpy, order="C"))


def checked_shape(name: str, shape: Sequence[Any]) -> tuple[int, ...]:
    """The shape when all sizes are whole, not negative and not absurd."""
    if len(shape) > MAX_RANK:
        refuse(name, f"has {len(shape)} dimensions, more than {MAX_RANK}")
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_DIMENSION:
            refuse(
                name, f"shape {list(shape)} has a size that is not a whole number from 0 to {MAX_DIMENSION}"
            )
    return tuple(shape)


def from_raw(name: str, datatype_name: str, shape: Sequence[Any], raw: bytes | memoryview) -> Tensor:
    """The tensor of row-major little-endian bytes; BYTES elements are each led by their uint32 length."""
    kind = datatype(datatype_name, path=path_of(name))
    sizes = checked_shape(name, shape)
    count = math.prod(sizes)
    if kind.kind == "bytes":
        return Tensor(name, kind, objects(_split_elements(name, memoryview(raw), count), sizes))
    if len(raw) != count * kind.item_bytes:
        refuse(
            name,
            f"has {len(raw)} bytes, but shape {list(sizes)} of {kind.name} needs {count * kind.item_bytes}",
        )
    array = np.frombuffer(raw, dtype=kind.numpy)
    if kind.kind == "bool" and count and int(array.view(np.uint8).max()) > 1:
        refuse(name, "a BOOL is a byte of 0 or 1")
    return Tensor(name, kind, array.reshape(sizes))


def to_raw(tensor: Tensor) -> bytes:
    """The inverse of `from_raw`."""
    if tensor.datatype.kind == "bytes":
        return b"".join(struct.pack("<I", len(value)) + value for value in tensor.array.reshape(-1))
    return tensor.array.tobytes()


def to_buffer(tensor: Tensor) -> memoryview:
    """As `to_raw`, but of numbers a view of the tensor's own memory where that is in one piece."""
    if tensor.datatype.kind == "bytes":
        return memoryview(to_raw(tensor))
    flat = np.asarray(tensor.array, dtype=tensor.datatype.numpy, order="C").reshape(-1)
    return flat.view(np.uint8).data


def _split_elements(name: str, raw: memoryview, count: int) -> list[bytes]:
    elements: list[bytes] = []
    at = 0
    while at < len(raw):
        if at + 4 > len(raw) or len(elements) == count:
            refuse(name, f"has {len(raw) - at} bytes after its {len(elements)} elements")
        (size,) = struct.unpack_from("<I", raw, at)
        if at + 4 + size > len(raw):
            refuse(name, f"element {len(elements)} ends beyond the data")
        elements.append(bytes(raw[at + 4 : at + 4 + size]))
        at += 4 + size
    if len(elements) != count:
        refuse(name, f"has {len(elements)} elements, but its shape needs {count}")
    return elements


def objects(values: Sequence[bytes], shape: Sequence[int]) -> Array:
    """An array of `bytes`."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(tuple(shape))


def as_bytes(value: Any) -> bytes:
    """Text as UTF-8."""
    return value.encode() if isinstance(value, str) else bytes(value)


def path_of(name: str, root: str = "inputs") -> str:
    """Where errors say a tensor is."""
    return f"{root}.{name}"


def refuse(name: str, why: str, *, root: str = "inputs") -> NoReturn:
    """InvalidArgument that names the tensor."""
    raise InvalidArgument(
        f"{root.removesuffix('s')} {name!r}: {why}",
        reason="BAD_TENSOR",
        violations=[Violation(path_of(name, root), why)],
    )
