"""A seeded order that is the same on every machine and in every version of every library."""

import numpy as np
from numpy.typing import NDArray

from recmesh.formats.hashing import GOLDEN, mix, splitmix64


def stream(seed: int, n: int, *, start: int = 0) -> NDArray[np.uint64]:
    """n outputs of SplitMix64 started at splitmix64(seed), from the one with this number on: distinct 64-bit words."""
    with np.errstate(over="ignore"):
        states = np.arange(start, start + n, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(mix(seed))
    return splitmix64(states)


def permutation(seed: int, n: int) -> NDArray[np.int64]:
    """[0, n) ordered by `stream(seed, n)`; every seed shuffles, 0 too.

    The words are distinct (splitmix64 is a bijection of distinct states), so no tie leaves room to a sort.
    """
    return np.argsort(stream(seed, n), kind="stable").astype(np.int64, copy=False)
