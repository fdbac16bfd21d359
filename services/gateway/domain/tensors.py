"""Tensors, and their two encodings: raw little-endian bytes, and lists of JSON values.

Every function that reads names the tensor in its errors, because a request has many.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from recmesh.runtime.errors import InvalidArgument, Violation
from services.gateway.domain.datatypes import Datatype, datatype, of_array

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
            _refuse(name, f"the protocol has no datatype for numpy's {array.dtype.name}")
        if kind.kind == "bytes":
            flat = [_as_bytes(value) for value in array.reshape(-1)]
            return cls(name, kind, _objects(flat, array.shape))
        return cls(name, kind, np.ascontiguousarray(array, dtype=kind.numpy))


def checked_shape(name: str, shape: Sequence[Any]) -> tuple[int, ...]:
    """The shape when all sizes are whole, not negative and not absurd."""
    if len(shape) > MAX_RANK:
        _refuse(name, f"has {len(shape)} dimensions, more than {MAX_RANK}")
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_DIMENSION:
            _refuse(
                name, f"shape {list(shape)} has a size that is not a whole number from 0 to {MAX_DIMENSION}"
            )
    return tuple(shape)


def from_raw(name: str, datatype_name: str, shape: Sequence[Any], raw: bytes | memoryview) -> Tensor:
    """The tensor of row-major little-endian bytes; BYTES elements are each led by their uint32 length."""
    kind = datatype(datatype_name, path=_path(name))
    sizes = checked_shape(name, shape)
    count = math.prod(sizes)
    if kind.kind == "bytes":
        return Tensor(name, kind, _objects(_split_elements(name, memoryview(raw), count), sizes))
    if len(raw) != count * kind.item_bytes:
        _refuse(
            name,
            f"has {len(raw)} bytes, but shape {list(sizes)} of {kind.name} needs {count * kind.item_bytes}",
        )
    array = np.frombuffer(raw, dtype=kind.numpy)
    if kind.kind == "bool" and count and int(array.view(np.uint8).max()) > 1:
        _refuse(name, "a BOOL is a byte of 0 or 1")
    return Tensor(name, kind, array.reshape(sizes))


def to_raw(tensor: Tensor) -> bytes:
    """The inverse of `from_raw`."""
    if tensor.datatype.kind == "bytes":
        return b"".join(struct.pack("<I", len(value)) + value for value in tensor.array.reshape(-1))
    return tensor.array.tobytes()


def from_values(name: str, datatype_name: str, shape: Sequence[Any], values: Any) -> Tensor:
    """The tensor of JSON values, nested as the shape is, or flat in row-major order.

    Nothing is rounded silently: a fraction is no integer, an integer must be in range, true is no number.
    """
    kind = datatype(datatype_name, path=_path(name))
    sizes = checked_shape(name, shape)
    if not isinstance(values, list):
        _refuse(name, "data is not a list")
    flat = _flatten(name, values, sizes)
    count = math.prod(sizes)
    if len(flat) != count:
        _refuse(name, f"has {len(flat)} values, but shape {list(sizes)} needs {count}")
    return Tensor(name, kind, _array_of(name, kind, flat).reshape(sizes))


def from_items(name: str, datatype_name: str, shape: Sequence[Any], items: Sequence[Any]) -> Tensor:
    """The tensor of the protocol's typed contents: one flat sequence."""
    return from_values(name, datatype_name, shape, list(items))


def to_values(tensor: Tensor) -> list[Any]:
    """The elements, flat, as JSON carries them; BYTES must be UTF-8."""
    flat = tensor.array.reshape(-1)
    if tensor.datatype.kind != "bytes":
        items: list[Any] = flat.tolist()
        return items
    try:
        return [value.decode() for value in flat]
    except UnicodeDecodeError:
        _refuse(tensor.name, "holds bytes that are not UTF-8; ask for it as binary data", root="outputs")


def _array_of(name: str, kind: Datatype, flat: list[Any]) -> Array:
    classes = set(map(type, flat))
    match kind.kind:
        case "bool":
            _only(name, kind, classes, {bool})
            return np.array(flat, dtype=kind.numpy)
        case "bytes":
            _only(name, kind, classes, {str, bytes})
            return _objects([_as_bytes(value) for value in flat], (len(flat),))
        case "float":
            _only(name, kind, classes, {int, float})
            return _floats(name, kind, flat)
        case _:
            _only(name, kind, classes, {int})
            low, high = int(np.iinfo(kind.numpy).min), int(np.iinfo(kind.numpy).max)
            if flat and (min(flat) < low or max(flat) > high):
                _refuse(name, f"holds a value outside {kind.name}'s range [{low}, {high}]")
            return np.array(flat, dtype=kind.numpy)


def _floats(name: str, kind: Datatype, flat: list[Any]) -> Array:
    try:
        exact = np.array(flat, dtype=np.float64)
    except OverflowError:
        _refuse(name, f"holds a value outside {kind.name}'s range")
    with np.errstate(over="ignore"):
        array = exact.astype(kind.numpy)
    if bool(np.any(np.isinf(array) & np.isfinite(exact))):
        _refuse(name, f"holds a value outside {kind.name}'s range")
    return array


def _only(name: str, kind: Datatype, found: set[type], allowed: set[type]) -> None:
    wrong = sorted(item.__name__ for item in found - allowed)
    if wrong:
        _refuse(name, f"is {kind.name}, but its data holds {', '.join(wrong)}")


def _flatten(name: str, values: list[Any], sizes: tuple[int, ...]) -> list[Any]:
    """Flat already, or nested exactly as `sizes` says."""
    if not values or not isinstance(values[0], list):
        if any(isinstance(value, list) for value in values):
            _refuse(name, "data mixes lists and values")
        return values
    if len(sizes) < 2 or len(values) != sizes[0]:
        _refuse(name, f"data is not nested as shape {list(sizes)} says")
    flat: list[Any] = []
    for row in values:
        if not isinstance(row, list) or len(row) != sizes[1]:
            _refuse(name, f"data is not nested as shape {list(sizes)} says")
        flat.extend(_flatten(name, row, sizes[1:]))
    return flat


def _split_elements(name: str, raw: memoryview, count: int) -> list[bytes]:
    elements: list[bytes] = []
    at = 0
    while at < len(raw):
        if at + 4 > len(raw) or len(elements) == count:
            _refuse(name, f"has {len(raw) - at} bytes after its {len(elements)} elements")
        (size,) = struct.unpack_from("<I", raw, at)
        if at + 4 + size > len(raw):
            _refuse(name, f"element {len(elements)} ends beyond the data")
        elements.append(bytes(raw[at + 4 : at + 4 + size]))
        at += 4 + size
    if len(elements) != count:
        _refuse(name, f"has {len(elements)} elements, but its shape needs {count}")
    return elements


def _objects(values: Sequence[bytes], shape: Sequence[int]) -> Array:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(tuple(shape))


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _path(name: str, root: str = "inputs") -> str:
    return f"{root}.{name}"


def _refuse(name: str, why: str, *, root: str = "inputs") -> NoReturn:
    raise InvalidArgument(
        f"{root.removesuffix('s')} {name!r}: {why}",
        reason="BAD_TENSOR",
        violations=[Violation(_path(name, root), why)],
    )
