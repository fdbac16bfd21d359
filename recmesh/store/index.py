"""The index of all rows of a store: (table, id) -> place."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import table_salt
from recmesh.runtime.errors import ResourceExhausted
from recmesh.store.memory import Region
from recmesh.store.probing import CAPACITY, FREED, NEXT, PARTITIONS, Entries

ENTRY_BYTES = 16
_FIRST_ENTRIES = 256                         # one page per partition
_FREED_LOG = 4096
MAX_TABLES = 65_536


class Index:
    """The arrays that kernels take; `probing` says what is in them."""

    def __init__(self, size_bytes: int) -> None:
        self._region = Region(size_bytes)
        self.arena: NDArray[np.uint64] = self._region.view(np.uint64)
        self.parts = np.zeros(3 * PARTITIONS, np.int64)
        self.parts[:PARTITIONS] = np.arange(PARTITIONS) * _FIRST_ENTRIES
        self.parts[PARTITIONS:2 * PARTITIONS] = _FIRST_ENTRIES - 1
        self.ctl = np.zeros(3, np.int64)
        self.ctl[NEXT] = PARTITIONS * _FIRST_ENTRIES
        self.ctl[CAPACITY] = self._region.size_bytes // ENTRY_BYTES
        self.freed = np.zeros(2 * _FREED_LOG, np.int64)
        self.salts = np.zeros(MAX_TABLES, np.uint64)
        self.arrays: tuple[Any, ...] = Entries(self.arena, self.parts, self.ctl, self.freed, self.salts)

    def add_table(self, number: int, name: str) -> np.uint64:
        """The salt of a new table."""
        if number >= MAX_TABLES:
            raise ResourceExhausted(f"a store has at most {MAX_TABLES} tables", reason="TABLES")
        self.salts[number] = table_salt(name)
        return np.uint64(self.salts[number])

    def reserve(self, ids: int) -> None:
        """ResourceExhausted unless `ids` more entries fit, wherever they fall."""
        # At worst they all fall into one partition, which doubles until it holds them, at 5/8 full; and each
        # other one grows at most once more for the rounding.
        largest = int(self.parts[PARTITIONS:2 * PARTITIONS].max()) + 1
        if self.ctl[NEXT] + 2 * (largest + 4 * ids) * 2 > self.ctl[CAPACITY]:
            raise ResourceExhausted("the index of this parameter server is full", reason="INDEX_FULL")

    def collect(self) -> None:
        """Give back the memory of regions that growth left."""
        for i in range(int(self.ctl[FREED])):
            offset, size = self.freed[2 * i:2 * i + 2].tolist()
            self._region.release(offset * ENTRY_BYTES, (offset + size) * ENTRY_BYTES)
        self.ctl[FREED] = 0

    @property
    def memory_bytes(self) -> int:
        """In live regions."""
        return int((self.parts[PARTITIONS:2 * PARTITIONS] + 1).sum()) * ENTRY_BYTES
