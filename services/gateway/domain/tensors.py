"""Tensors as lists of JSON values; their raw encoding is `recmesh.serving`'s, and told here too."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from recmesh.serving.datatypes import Datatype, datatype
from recmesh.serving.tensors import (
    Array,
    Tensor,
    as_bytes,
    checked_shape,
    from_raw,
    objects,
    path_of,
    refuse,
    to_raw,
)

__all__ = ["Array", "Tensor", "checked_shape", "from_items", "from_raw", "from_values", "to_raw", "to_values"]


def from_values(name: str, datatype_name: str, shape: Sequence[Any], values: Any) -> Tensor:
    """The tensor of JSON values, nested as the shape is, or flat in row-major order.

    Nothing is rounded silently: a fraction is no integer, an integer must be in range, true is no number.
    """
    kind = datatype(datatype_name, path=path_of(name))
    sizes = checked_shape(name, shape)
    if not isinstance(values, list):
        refuse(name, "data is not a list")
    flat = _flatten(name, values, sizes)
    count = math.prod(sizes)
    if len(flat) != count:
        refuse(name, f"has {len(flat)} values, but shape {list(sizes)} needs {count}")
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
        refuse(tensor.name, "holds bytes that are not UTF-8; ask for it as binary data", root="outputs")


def _array_of(name: str, kind: Datatype, flat: list[Any]) -> Array:
    classes = set(map(type, flat))
    if list in classes:
        refuse(name, "data mixes lists and values")
    match kind.kind:
        case "bool":
            _only(name, kind, classes, {bool})
            return np.array(flat, dtype=kind.numpy)
        case "bytes":
            _only(name, kind, classes, {str, bytes})
            return objects([as_bytes(value) for value in flat], (len(flat),))
        case "float":
            _only(name, kind, classes, {int, float})
            return _floats(name, kind, flat)
        case _:
            _only(name, kind, classes, {int})
            try:
                return np.array(flat, dtype=kind.numpy)
            except OverflowError:
                ends = np.iinfo(kind.numpy)
                refuse(name, f"holds a value outside {kind.name}'s range [{ends.min}, {ends.max}]")


def _floats(name: str, kind: Datatype, flat: list[Any]) -> Array:
    try:
        exact = np.array(flat, dtype=np.float64)
    except OverflowError:
        refuse(name, f"holds a value outside {kind.name}'s range")
    with np.errstate(over="ignore"):
        array = exact.astype(kind.numpy)
    infinite = np.isinf(array)
    if infinite.any() and np.isfinite(exact[infinite]).any():
        refuse(name, f"holds a value outside {kind.name}'s range")
    return array


def _only(name: str, kind: Datatype, found: set[type], allowed: set[type]) -> None:
    if found <= allowed:
        return
    wrong = sorted(item.__name__ for item in found - allowed)
    refuse(name, f"is {kind.name}, but its data holds {', '.join(wrong)}")


def _flatten(name: str, values: list[Any], sizes: tuple[int, ...]) -> list[Any]:
    """Flat already, or nested exactly as `sizes` says; whoever reads the values sees whether some are lists."""
    flat, count = values, sizes[0] if sizes else 1
    for size in sizes[1:]:
        if not flat or not isinstance(flat[0], list):
            break
        if len(flat) != count or set(map(type, flat)) != {list} or set(map(len, flat)) != {size}:
            refuse(name, f"data is not nested as shape {list(sizes)} says")
        flat, count = list(itertools.chain.from_iterable(flat)), count * size
    if flat and isinstance(flat[0], list):
        refuse(name, f"data is not nested as shape {list(sizes)} says")
    return flat
