"""FNV-1a of whole Arrow columns, outside the GIL."""

from typing import Any

import numba
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_OFFSET = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_SIGNATURE = "void(uint8[::1], int64[::1], uint64[::1])"


@numba.njit(_SIGNATURE, nogil=True, cache=True)  # type: ignore[untyped-decorator]  # numba has no types
def _fnv1a64(data: NDArray[np.uint8], offsets: NDArray[np.int64], out: NDArray[np.uint64]) -> None:
    for i in range(out.size):
        value = _OFFSET
        for k in range(offsets[i], offsets[i + 1]):
            value = (value ^ np.uint64(data[k])) * _PRIME
        out[i] = value


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
