"""How often ids were asked for lately, about: a count-min sketch whose counts are halved now and then.

TinyLFU (Einziger, Friedman, Manes, ACM Transactions on Storage 2017): 4 rows of small counters; after `AGE` times as
many additions as a row has counters all are halved, so that what was frequent once is forgotten.
"""

import numpy as np
from numpy.typing import NDArray

DEPTH = 4
AGE = 10
_MOST = 255
_ODD = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93], np.uint64)


class Sketch:
    """Of distinct ids per call; not thread-safe."""

    def __init__(self, width: int) -> None:
        bits = max(4, int(width - 1).bit_length())
        self._shift = np.uint64(64 - bits)
        self._counts = np.zeros((DEPTH, 1 << bits), np.uint8)
        self._added = 0

    def add(self, ids: NDArray[np.int64]) -> None:
        """Each was asked for once more. Of two ids with one counter in the same call one is counted."""
        for row, places in zip(self._counts, self._places(ids), strict=True):
            row[places] += row[places] < _MOST
        self._added += len(ids)
        if self._added >= AGE * self._counts.shape[1]:
            self._counts >>= 1
            self._added //= 2

    def estimate(self, ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """How often, at least about: collisions only add."""
        found = [row[places] for row, places in zip(self._counts, self._places(ids), strict=True)]
        least: NDArray[np.uint8] = np.minimum.reduce(found)
        return least

    def _places(self, ids: NDArray[np.int64]) -> list[NDArray[np.uint64]]:
        bits = ids.view(np.uint64)
        mixed = bits ^ (bits >> np.uint64(32))
        return [(mixed * odd) >> self._shift for odd in _ODD]
