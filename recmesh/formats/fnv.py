"""FNV-1a, compiled. Loading the compiler takes seconds, so that only those import it who hash much."""

import numba
import numpy as np
from numpy.typing import NDArray

_OFFSET = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_SIGNATURE = "void(uint8[::1], int64[::1], uint64[::1])"


@numba.njit(_SIGNATURE, nogil=True, cache=True)  # type: ignore[untyped-decorator]  # numba has no types
def fnv1a64_of_slices(data: NDArray[np.uint8], offsets: NDArray[np.int64], out: NDArray[np.uint64]) -> None:
    """FNV-1a of the bytes between each two offsets."""
    for i in range(out.size):
        value = _OFFSET
        for k in range(offsets[i], offsets[i + 1]):
            value = (value ^ np.uint64(data[k])) * _PRIME
        out[i] = value
