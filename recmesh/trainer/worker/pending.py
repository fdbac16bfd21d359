"""Batches of leases that are to be read: in order, except that those whose rows take long wait for others. Bounded."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, islice
from time import monotonic

from recmesh.trainer.patience import NoLongerWanted
from recmesh.trainer.ports import Lease, Piece

Item = tuple[Lease, Piece]
_POLL_S = 0.1
MOST_LOOKED_AT = 4096
"""Of all that wait, when one is chosen."""


class Pending:
    """A queue for one thread that adds and several that take; those that are to be read again come first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._again: deque[Item] = deque()
        self._batches: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._again) + len(self._batches)

    def offer(self, item: Item, *, most: Callable[[], int], gone: threading.Event) -> None:
        """Adds it once fewer than `most()` wait; NoLongerWanted when `gone` is set before."""
        with self._changed:
            while len(self._batches) >= most():
                self._changed.wait(_POLL_S)
                if gone.is_set():
                    raise NoLongerWanted("queue")
            self._batches.append(item)
            self._changed.notify_all()

    def again(self, items: Sequence[Item]) -> None:
        """Before all others; never full, as they were here before."""
        with self._changed:
            self._again.extend(items)
            self._changed.notify_all()

    def take(self, choose: Callable[[Sequence[Item]], int | None], *, timeout_s: float) -> Item | None:
        """The one that `choose` picks of those that wait, in their order; None when it picks none in this time."""
        until = monotonic() + timeout_s
        with self._changed:
            while True:
                waiting = list(islice(chain(self._again, self._batches), MOST_LOOKED_AT))
                chosen = choose(waiting) if waiting else None
                if chosen is not None:
                    return self._remove(chosen)
                left_s = until - monotonic()
                if left_s <= 0:
                    return None
                self._changed.wait(left_s)

    def look_again(self) -> None:
        """What could not be chosen may be now."""
        with self._changed:
            self._changed.notify_all()

    def _remove(self, index: int) -> Item:
        lane, at = (self._again, index) if index < len(self._again) else (self._batches, index - len(self._again))
        item = lane[at]
        del lane[at]
        self._changed.notify_all()
        return item
