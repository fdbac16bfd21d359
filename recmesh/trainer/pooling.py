"""Kernels between rows and a model's inputs, forward and backward, for skins whose framework is slower at it.

Shapes: rows [n, d] are a batch's distinct rows, index [N] points into them, offsets [B + 1] cut N into bags,
weights [N]. Gradients are added to `out`, which is not cleared first. Kernels run without the GIL, on one
core. Each states its types: it is compiled once per machine, and loaded from the cache at its first call.
"""

import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from recmesh.trainer.session import Floats, Ints

_F32, _F32_2D, _F32_3D = types.float32[::1], types.float32[:, ::1], types.float32[:, :, ::1]
_I64, _I64_2D = types.int64[::1], types.int64[:, ::1]
_READ_I64 = types.Array(types.int64, 1, "C", readonly=True)
_READ_2D = types.Array(types.float32, 2, "C", readonly=True)
_READ_3D = types.Array(types.float32, 3, "C", readonly=True)


class Kernel:
    """A procedure that is compiled when it is first called: a model needs few of them, and loading takes time."""

    def __init__(self, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.__doc__ = function.__doc__
        self._function, self._arguments = function, arguments
        self._lock = threading.Lock()
        self._compiled: Callable[..., None] | None = None

    def __call__(self, *arguments: Any) -> None:
        """Runs it."""
        (self._compiled or self.ready())(*arguments)

    def ready(self) -> Callable[..., None]:
        """Compiled, now if it was not before."""
        with self._lock:
            self._compiled = self._compiled or self._compile()
            return self._compiled

    def _compile(self) -> Callable[..., None]:
        signature = types.void(*self._arguments)
        made: Callable[..., None] = numba.njit(signature, nogil=True, cache=True, error_model="numpy")(
            self._function
        )
        return made


def kernel(*arguments: Any) -> Callable[[Callable[..., None]], Kernel]:
    """Of these argument types."""
    return lambda function: Kernel(function, arguments)


@kernel(_READ_2D, _I64, _F32_2D)
def take_into(rows: Floats, index: Ints, out: Floats) -> None:
    """out[i] := rows[index[i]]."""
    for i in range(index.size):
        target, source = out[i], rows[index[i]]
        for j in range(np.uint64(target.size)):
            target[j] = source[j]


@kernel(_READ_2D, _READ_I64, _F32_2D)
def take_back(grads: Floats, index: Ints, out: Floats) -> None:
    """out[index[i]] += grads[i]."""
    for i in range(index.size):
        target, source = out[index[i]], grads[i]
        for j in range(np.uint64(target.size)):
            target[j] += source[j]


@kernel(_READ_2D, _I64, _I64, _F32, _F32_2D)
def bag_sum_into(rows: Floats, index: Ints, offsets: Ints, weights: Floats, out: Floats) -> None:
    """out[b] := Σ weights[i]·rows[index[i]] over the bag; an empty bag is zero."""
    for b in range(offsets.size - 1):
        target = out[b]
        target[:] = np.float32(0.0)
        for i in range(offsets[b], offsets[b + 1]):
            source, weight = rows[index[i]], weights[i]
            for j in range(np.uint64(target.size)):
                target[j] += weight * source[j]


@kernel(_READ_2D, _I64, _I64, _F32, _F32_2D)
def bag_sum_back(grads: Floats, index: Ints, offsets: Ints, weights: Floats, out: Floats) -> None:
    """out[index[i]] += weights[i]·grads[b]."""
    for b in range(offsets.size - 1):
        source = grads[b]
        for i in range(offsets[b], offsets[b + 1]):
            target, weight = out[index[i]], weights[i]
            for j in range(np.uint64(target.size)):
                target[j] += weight * source[j]


@kernel(_READ_2D, _I64, _I64, _F32_2D, _I64_2D)
def bag_max_into(rows: Floats, index: Ints, offsets: Ints, out: Floats, winner: Ints) -> None:
    """out[b, j] := the largest rows[index[i], j] of the bag, winner its row; of an empty bag 0 and -1."""
    for b in range(offsets.size - 1):
        for j in range(out.shape[1]):
            out[b, j] = np.float32(0.0)
            winner[b, j] = -1
        for i in range(offsets[b], offsets[b + 1]):
            source = rows[index[i]]
            for j in range(out.shape[1]):
                if winner[b, j] < 0 or source[j] > out[b, j]:
                    out[b, j] = source[j]
                    winner[b, j] = index[i]


@kernel(_READ_2D, _I64_2D, _F32_2D)
def bag_max_back(grads: Floats, winner: Ints, out: Floats) -> None:
    """out[winner[b, j], j] += grads[b, j]."""
    for b in range(grads.shape[0]):
        for j in range(grads.shape[1]):
            if winner[b, j] >= 0:
                out[winner[b, j], j] += grads[b, j]


@kernel(_READ_2D, _I64, _I64, _F32_3D)
def pad_into(rows: Floats, index: Ints, offsets: Ints, out: Floats) -> None:
    """out[b, k] := rows[index[offsets[b] + k]], zero behind the sequence's end. out: [B, L, d]."""
    for b in range(offsets.size - 1):
        length = offsets[b + 1] - offsets[b]
        for k in range(out.shape[1]):
            target = out[b, k]
            if k < length:
                source = rows[index[offsets[b] + k]]
                for j in range(np.uint64(target.size)):
                    target[j] = source[j]
            else:
                target[:] = np.float32(0.0)


@kernel(_READ_3D, _I64, _I64, _F32_2D)
def pad_back(grads: Floats, index: Ints, offsets: Ints, out: Floats) -> None:
    """out[index[offsets[b] + k]] += grads[b, k] within each sequence."""
    for b in range(offsets.size - 1):
        for i in range(offsets[b], offsets[b + 1]):
            target, source = out[index[i]], grads[b, i - offsets[b]]
            for j in range(np.uint64(target.size)):
                target[j] += source[j]


def bag_weights(
    pooling: str, offsets: Ints, weights: NDArray[np.float32] | None, count: int
) -> Floats:
    """What each id of a bag counts: for `sum` its weight, for `mean` its share of the bag's weights."""
    own = np.ones(count, np.float32) if weights is None else np.ascontiguousarray(weights, np.float32)
    if pooling != "mean":
        return own
    lengths = np.diff(offsets)
    padded = np.concatenate((own.astype(np.float64), [0.0]))
    totals = np.where(lengths > 0, np.add.reduceat(padded, offsets[:-1]), 0.0)
    shares = np.divide(1.0, totals, out=np.zeros_like(totals), where=totals != 0.0)
    shared: Floats = (own * np.repeat(shares, lengths)).astype(np.float32)
    return shared
