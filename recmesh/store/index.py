"""The index of all rows of a store: (table, id) -> place."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import table_salt
from recmesh.runtime.errors import ResourceExhausted
from recmesh.store.memory import Region
from recmesh.store.probing import CAPACITY, FREED, HASTE, NEXT, PARTITIONS, Entries, full_at

ENTRY_BYTES = 16
_FIRST_ENTRIES = 64
_FREED_LOG = 4096
_MOVED = 1 << 16
"""Places of partitions that may move in one call though they could wait: 0.1 us each. While partitions grow at all, an
entry moves 8 to 9 places' worth of them on the average, so that twice as much as that never falls behind."""
_ADDRESS_FACTOR = 4                          # regions that growth left keep their addresses
MAX_TABLES = 65_536


class Index:
    """The arrays that kernels take; `probing` says what is in them."""

    def __init__(self, size_bytes: int) -> None:
        self._region = Region(_ADDRESS_FACTOR * size_bytes)
        self.arena: NDArray[np.uint64] = self._region.view(np.uint64)
        self.parts = np.zeros(3 * PARTITIONS, np.int64)
        self.parts[:PARTITIONS] = np.arange(PARTITIONS) * _FIRST_ENTRIES
        self.parts[PARTITIONS:2 * PARTITIONS] = _FIRST_ENTRIES - 1
        self.ctl = np.zeros(4, np.int64)
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
        """A call that enters at most `ids` begins. ResourceExhausted unless they fit, wherever they fall."""
        # Each partition that they might fill doubles once; one that doubles again takes at least half its size of
        # them, and all its regions together fewer than 24 entries for each.
        sizes, used = self.parts[PARTITIONS:2 * PARTITIONS] + 1, self.parts[2 * PARTITIONS:]
        once = 2 * int(sizes[used + ids > full_at(np.arange(PARTITIONS), sizes)].sum())
        if self.ctl[NEXT] + once + 24 * ids > self.ctl[CAPACITY]:
            raise ResourceExhausted("the index of this parameter server is full", reason="INDEX_FULL")
        self.ctl[HASTE] = max(_MOVED, 16 * ids)

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
