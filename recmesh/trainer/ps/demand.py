"""How much is asked of each slot: what a hot server gives away is chosen by it."""

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SLOTS

HALF_LIFE_S = 60.0
"""What was popular so long ago counts half."""


class SlotDemand:
    """Rows that pulls and pushes asked for, by slot. Counted without a lock: some may be lost, of all slots alike."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self.counts: NDArray[np.uint32] = np.zeros(SLOTS, np.uint32)
        """The kernels count into it."""
        self._now, self._aged_at = now, now()

    def age(self) -> None:
        """To be called now and then; keeps counts far below their limit."""
        halvings = int((self._now() - self._aged_at) / HALF_LIFE_S)
        if halvings:
            self._aged_at += halvings * HALF_LIFE_S
            np.right_shift(self.counts, min(halvings, 31), out=self.counts)

    def read(self) -> NDArray[np.uint32]:
        """uint32 [SLOTS]: a copy."""
        self.age()
        return self.counts.copy()
