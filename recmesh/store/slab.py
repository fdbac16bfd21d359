"""The places of a table's rows, and what a snapshot that is being copied still needs of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recmesh.store import row_kernels
from recmesh.store.memory import Region
from recmesh.store.row_kernels import BLOCK, MARKED, PENDING, ROWS, SAVED, Places

_MAX_ROWS = (1 << 31) - 2                    # a place has 31 bits in the index
_AHEAD_BYTES, _AHEAD_SHARE = 32 << 20, 8      # of the log have memory before they are needed; at most, of the rows
_SPARE_BYTES = 8 << 20                       # kept behind the last row: not every removal asks the kernel


class Slab:
    """Rows of `width` words; `row_kernels` says what is in them. Not thread-safe."""

    def __init__(self, width: int, *, size_bytes: int) -> None:
        self.width, self.row_bytes = width, 4 * width
        self._region, self._log = Region(size_bytes), Region(size_bytes)
        rows = min(_MAX_ROWS, min(self._region.size_bytes, self._log.size_bytes) // self.row_bytes) // BLOCK * BLOCK
        self.capacity = rows
        self._saved_region = Region(4 * rows, huge_pages=False)
        self.floats: NDArray[np.float32] = self._region.view(np.float32)
        self.words: NDArray[np.uint32] = self._region.view(np.uint32)
        self.longs: NDArray[np.uint64] = self._region.view(np.uint64)
        self.log: NDArray[np.float32] = self._log.view(np.float32)
        self.saved: NDArray[np.uint32] = self._saved_region.view(np.uint32)
        self.block_state = np.zeros(rows // BLOCK, np.uint8)
        self.meta = np.zeros(3, np.int64)
        self.arrays: tuple[Any, ...] = Places(
            self.floats, self.words, self.longs, self.log, self.meta, self.block_state, self.saved)
        self._touched = 0                    # places below may have memory
        self._log_ready = 0                  # bytes of the log that have memory
        self._to_clean = (0, 0)              # places marked by the last snapshot, bytes of its log

    @property
    def rows(self) -> int:
        """Rows there are: at places [0, rows)."""
        return int(self.meta[ROWS])

    @property
    def memory_bytes(self) -> int:
        """In rows, and in the log of a snapshot that is being copied."""
        return (self.rows + int(self.meta[SAVED])) * self.row_bytes

    def shrink(self) -> None:
        """Give back the memory behind the last row; to be called after removals."""
        lo, hi = self.rows * self.row_bytes, self._touched * self.row_bytes
        if hi - lo > _SPARE_BYTES:
            self._region.release(lo, hi)
            self._touched = self.rows

    def grown(self) -> None:
        """Note the rows there are, before some go."""
        self._touched = max(self._touched, self.rows)

    def make_ready(self) -> None:
        """Memory for what a snapshot will have to save, so that no update waits until the kernel has cleared pages.

        Before the mark and during the copy; it needs no lock.
        """
        self._saved_region.populate(0, 4 * self.rows)
        ahead = min(_AHEAD_BYTES, self.rows * self.row_bytes // _AHEAD_SHARE)
        wanted = int(self.meta[SAVED]) * self.row_bytes + ahead
        if wanted > self._log_ready:
            self._log.populate(self._log_ready, wanted)
            self._log_ready = wanted

    def mark(self) -> None:
        """From here on, the first change of each place saves what it held."""
        self.meta[MARKED] = self.meta[ROWS]
        self.block_state[:self.marked_blocks] = PENDING

    @property
    def marked_rows(self) -> int:
        """Rows at the mark."""
        return int(self.meta[MARKED])

    @property
    def marked_blocks(self) -> int:
        """Blocks that hold the rows at the mark."""
        return -(-self.marked_rows // BLOCK)

    def copy_block(self, block: int, out: NDArray[np.float32]) -> int:
        """out [BLOCK, width] := the block at the mark; returns its rows."""
        return int(row_kernels.copy_block(self.floats, self.log, self.saved, self.width, self.meta,
                                          self.block_state, block, out))

    def unmark(self) -> None:
        """The snapshot is copied, or given up: nothing is saved any more. `clean` must follow before a mark."""
        self.block_state[:self.marked_blocks] = row_kernels.COPIED
        self._to_clean = self.marked_rows, max(self._log_ready, int(self.meta[SAVED]) * self.row_bytes)
        self.meta[MARKED] = self.meta[SAVED] = 0

    def clean(self) -> None:
        """Forget what was saved; nobody else looks at it, so this needs no lock, however much it is."""
        places, log_bytes = self._to_clean
        self.saved[:places] = 0
        self._log.release(0, log_bytes)
        self._log_ready, self._to_clean = 0, (0, 0)
