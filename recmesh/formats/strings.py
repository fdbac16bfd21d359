"""FNV-1a of whole Arrow columns; of large ones outside the GIL."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recmesh.formats.hashing import fnv1a64

_OFFSET = np.uint64(0xCBF29CE484222325)
_FEW_BYTES = 1 << 16
"""Hashing so many by the interpreter takes some ms; loading the compiled function takes seconds."""


class _Fnv1a64:
    """Hashes without the compiled function until a process has hashed more than a few bytes."""

    def __init__(self) -> None:
        self._left = _FEW_BYTES

    def __call__(self, data: NDArray[np.uint8], offsets: NDArray[np.int64], out: NDArray[np.uint64]) -> None:
        size = int(offsets[-1] - offsets[0]) + out.size
        if size <= self._left:
            self._left -= size
            raw = data[offsets[0] : offsets[-1]].tobytes()
            ends = (offsets - offsets[0]).tolist()
            out[:] = [fnv1a64(raw[start:end]) for start, end in pairwise(ends)]
            return
        self._left = -1
        from recmesh.formats.fnv import fnv1a64_of_slices  # see there

        fnv1a64_of_slices(data, offsets, out)


_fnv1a64 = _Fnv1a64()


def fnv1a64_of_strings(values: Any) -> NDArray[np.uint64]:
    """FNV-1a of each string; of the empty string where a value is missing."""
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, pa.large_string())
    if isinstance(array, pa.ChunkedArray):
        parts = [fnv1a64_of_strings(chunk) for chunk in array.chunks]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)
    if pa.types.is_dictionary(array.type):
        hashes = np.append(fnv1a64_of_strings(array.dictionary), _OFFSET)   # the last stands for missing
        indices = array.indices.cast(pa.int64()).fill_null(len(array.dictionary))
        taken: NDArray[np.uint64] = hashes[indices.to_numpy(zero_copy_only=False)]
        return taken
    if not (pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.large_binary() if pa.types.is_binary(array.type) else pa.large_string())
    array = array.fill_null("")   # a null may lie over bytes
    out = np.empty(len(array), np.uint64)
    if len(array):
        _, offset_buffer, data_buffer = array.buffers()
        offsets = np.frombuffer(offset_buffer, np.int64, count=len(array) + 1, offset=8 * array.offset)
        data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.empty(0, np.uint8)
        _fnv1a64(data, offsets, out)
    return out
