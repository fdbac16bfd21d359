"""Which rows and chunks of moving slots changed since they were last sent."""

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SlotMask
from recmesh.store import kernels

COMPACT_IDS = 1 << 20
"""Ids of a table in the log before doubles are dropped: hot rows come again and again."""


class ChangeLog:
    """Filled by pushes *after* they changed the store, so that whoever drains it reads what they wrote."""

    def __init__(self, slots: SlotMask) -> None:
        self.slots = slots
        self._mask = slots.astype(np.uint8)
        self._lock = threading.Lock()
        self._ids: dict[int, _Ids] = {}
        self._chunks: set[tuple[int, int]] = set()

    def rows(self, table: int, ids: NDArray[np.int64], *, salt: np.uint64) -> None:
        """Rows that a push touched or removed; those of slots that stay are left out."""
        places = np.empty(len(ids), np.int64)
        n = int(kernels.select(ids, salt, self._mask, places))
        if n:
            with self._lock:
                self._ids.setdefault(table, _Ids()).add(ids[places[:n]])

    def chunks(self, touched: Sequence[tuple[int, int]]) -> None:
        """(block, chunk) of chunks in moving slots that a push touched."""
        with self._lock:
            self._chunks.update(touched)

    def drain(self) -> tuple[dict[int, NDArray[np.int64]], list[tuple[int, int]]]:
        """Distinct ids by table, and chunks; the log is empty afterwards."""
        with self._lock:
            ids, self._ids = self._ids, {}
            chunks, self._chunks = self._chunks, set()
        return {table: kept.distinct() for table, kept in ids.items()}, sorted(chunks)


class _Ids:
    def __init__(self) -> None:
        self._parts: list[NDArray[np.int64]] = []
        self._size, self._limit = 0, COMPACT_IDS

    def add(self, ids: NDArray[np.int64]) -> None:
        self._parts.append(ids)
        self._size += ids.size
        if self._size > self._limit:
            self._parts = [self.distinct()]
            self._size = self._parts[0].size
            self._limit = max(COMPACT_IDS, 2 * self._size)

    def distinct(self) -> NDArray[np.int64]:
        return np.unique(np.concatenate(self._parts))
