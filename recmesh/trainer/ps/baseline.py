"""What a delta snapshot may leave out: rows that have not changed since an earlier cut.

A row's header says the step of its group after its last update, and a cut knows the step of every group. An
update that is claimed after the cut writes a step above the cut's, one that was committed before it writes at
most the cut's: so the rows of a slot that changed since are those with `last_step` > the slot's step at the cut.
Steps of a slot never fall: groups that merge go on with the larger one. Nothing is marked as dirty during
training, and an aborted snapshot has nothing to give back: the next one looks past it, at the last committed.

Removed rows have no header; their ids are noted here until a snapshot that holds them is built on.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SLOTS
from recmesh.trainer.ps.ledger import Cut

_CUTS_KEPT = 8
"""Cuts that may still be built on: the last committed one, and those after it of which nobody has said."""
_REMOVED_KEPT = 1 << 22
"""Noted ids, 8 bytes each; with more of them the next snapshot is whole."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A cut, as far as a later snapshot that builds on it must know it."""

    snapshot: int
    steps: NDArray[np.int64]
    """int64 [SLOTS]: the step of each slot's group; -1 where the slot was elsewhere."""
    since: int
    """The map version at which the slots here had last changed."""
    removals: int
    """How many removals had been noted before it."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What the next snapshot holds: all, or what differs from the base."""

    base: int = 0
    steps: NDArray[np.int64] | None = None
    """Rows with a larger last step have changed; None: every row counts."""
    removed: Sequence[tuple[int, NDArray[np.int64]]] = ()
    """(table, ids)"""

    def keep(self, slots: NDArray[np.uint16], last_step: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which rows have changed."""
        if self.steps is None:
            return np.ones(len(last_step), np.bool_)
        return np.greater(last_step.view(np.int64), self.steps[slots])

    def removed_of(self, table: int) -> NDArray[np.int64]:
        """Distinct ids of a table that were removed since the base, ascending."""
        found = [ids for number, ids in self.removed if number == table]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)


class Baselines:
    """The cuts of one generation at one server. Under the exclusive latch, but for `note_removed`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cuts: dict[int, Baseline] = {}
        self._removed: list[tuple[int, NDArray[np.int64]]] = []
        self._dropped = 0                # removals that are no longer listed
        self._ids = 0

    def clear(self) -> None:
        """Nothing can be built on any more: a restore, another declaration."""
        self._cuts.clear()
        self._dropped += len(self._removed)
        self._removed.clear()
        self._ids = 0

    def note_removed(self, table: int, ids: NDArray[np.int64]) -> None:
        """Rows that are gone; called in the same latch section as their removal."""
        with self._lock:
            if not self._cuts:
                return                   # nothing can be built on, so the next snapshot is whole
            self._removed.append((table, ids.copy()))
            self._ids += len(ids)
            if self._ids > _REMOVED_KEPT:
                self.clear()

    def changes(self, base: int, *, since: int) -> Changes:
        """What differs from the base; all of it when the base is not known, or slots have moved since."""
        known = self._cuts.get(base)
        if known is None or known.since != since:
            return Changes()
        for number in [number for number in self._cuts if number < base]:
            del self._cuts[number]
        gone = known.removals - self._dropped
        self._ids -= sum(len(ids) for _, ids in self._removed[:gone])
        del self._removed[:gone]
        self._dropped = known.removals
        return Changes(base, known.steps, tuple(self._removed))

    def cut(self, snapshot: int, cuts: Sequence[Cut], *, since: int) -> None:
        """A mark: later snapshots may build on it once it is committed."""
        steps = np.full(SLOTS, -1, np.int64)
        for cut in cuts:
            steps[cut.slots] = cut.step
        self._cuts[snapshot] = Baseline(snapshot, steps, since, self._dropped + len(self._removed))
        for number in sorted(self._cuts)[:-_CUTS_KEPT]:
            del self._cuts[number]
