"""Inputs on which a model is measured and its halves are checked: recorded ones, or generated ones."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recmesh.runtime.errors import InvalidArgument
from recmesh.serving.split.source import Arrays, Port

SMALL_IDS = 8
"""Generated integers are below this unless the model's own ids can be found: most tables have as many rows."""
_WORDS = ("", "a", "b", "c", "red", "blue", "unheard of")


def generated(
    ports: Sequence[Port], batch: int, length: int, rng: np.random.Generator, pool: "np.ndarray[Any, Any]"
) -> Arrays:
    """Inputs of `batch` samples, `length` ids where a row has several; half the int64 ids are drawn from `pool`."""
    return {each.name: _array(each, batch, length, rng, pool) for each in ports}


def _array(
    port: Port, batch: int, length: int, rng: np.random.Generator, pool: "np.ndarray[Any, Any]"
) -> "np.ndarray[Any, Any]":
    shape = tuple(
        size if size != -1 else batch if axis == 0 else min(length, port.max_length or length)
        for axis, size in enumerate(port.shape)
    )
    if port.dtype in ("string", "bytes", "BYTES"):
        return np.array([word.encode() for word in rng.choice(_WORDS, size=shape).reshape(-1)], object).reshape(shape)
    kind = np.dtype(port.dtype)
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind == "f":
        return rng.standard_normal(shape).astype(kind)
    if kind.kind not in "iu":
        raise InvalidArgument(f"no inputs of {port.dtype} can be made for {port.name!r}: give recorded ones (--inputs)")
    if port.kind == "lengths" or port.name.endswith((".lengths", "_lengths")):
        return rng.integers(0, length + 1, shape).astype(kind)
    ids = rng.integers(0, SMALL_IDS, shape)
    if len(pool) and kind == np.int64:
        ids = np.where(rng.random(shape) < 0.5, ids, rng.choice(pool, size=shape))
    return np.asarray(ids, kind)


def recorded(file: Path, ports: Sequence[Port]) -> Arrays:
    """Inputs of an `.npz` file, by name; InvalidArgument names what is missing or of another type or rank."""
    try:
        with np.load(file, allow_pickle=False) as content:
            found = {name: content[name] for name in content.files}
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{file} cannot be read as .npz: {error}") from error
    made: Arrays = {}
    for port in ports:
        array = found.get(port.name)
        if array is None:
            raise InvalidArgument(f"{file} has no {port.name!r}; it has {', '.join(sorted(found)) or 'nothing'}")
        if port.dtype == "string" and array.dtype.kind in "US":
            flat = [text.encode() if isinstance(text, str) else bytes(text) for text in array.reshape(-1).tolist()]
            array = np.array(flat, object).reshape(array.shape)
        elif array.dtype != np.dtype(port.dtype if port.dtype != "string" else "O"):
            raise InvalidArgument(f"{file}: {port.name!r} is {array.dtype}, the model takes {port.dtype}")
        if array.ndim != len(port.shape):
            raise InvalidArgument(
                f"{file}: {port.name!r} has {array.ndim} dimensions, the model takes {len(port.shape)}"
            )
        made[port.name] = array
    return made


def resized(inputs: Arrays, ports: Sequence[Port], batch: int) -> Arrays:
    """Recorded inputs with another number of samples, repeated where there are too few."""
    return {
        port.name: np.resize(inputs[port.name], (batch, *inputs[port.name].shape[1:]))
        if port.shape and port.shape[0] == -1 else inputs[port.name]
        for port in ports
    }  # fmt: skip


def identifier(text: str) -> str:
    """A name that a Python identifier can be."""
    made = re.sub(r"\W", "_", text)
    return made if made[:1].isalpha() or made[:1] == "_" else f"t_{made}"


def pools(pool: "np.ndarray[Any, Any]") -> Iterator["np.ndarray[Any, Any]"]:
    """The model's ids first; none, where it cannot look those up."""
    if len(pool):
        yield pool
    yield np.zeros(0, np.int64)
