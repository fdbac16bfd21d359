"""Which rows of a table go: those not updated for long (TTL), and the rarest beyond a budget of bytes (LFU).

It runs inside apply, after the update, and only there: age is counted in steps of the group, so that neither a
clock nor a thread of its own decides anything. Each push looks at about as many places as it updated, from
the last to the first and round again, so that no push waits for a pass over the table; a row goes within one
round after it is due.

LFU is approximate: over the budget, the eighth of rows that a sample finds least frequent is fair game, and the
pass takes what it meets of them. An exact order would cost a write to a heap with each update.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recmesh.formats import SLOTS, SlotMask
from recmesh.store.slab import Slab
from recmesh.store.table import Table

_LEAST_PLACES, _MOST_PLACES = 256, 65_536
_PLACES_PER_EXCESS = 16                      # an eighth of them are fair game
_MOST_EVICTED = 4096                         # of one table in one push
_SAMPLE, _RARE_SHARE = 512, 8
_CANDIDATES_SHARE = 8                        # of the budget: beyond it, candidates go first
_ALL_SLOTS = np.ones(SLOTS, np.bool_)


class Evicted(NamedTuple):
    """Rows that went."""

    ids: NDArray[np.int64]
    updates: NDArray[np.uint32]
    """Their own update counts: a slot's rows and its evicted ones add up to what was applied."""


NOTHING = Evicted(np.empty(0, np.int64), np.empty(0, np.uint32))


class Eviction:
    """The pass over one table. Not thread-safe: the store serialises."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._next = {id(slab): 0 for slab in (table.slab, table.candidates)}

    def after(self, pushed: int, *, step: int, slots: SlotMask | None, share: float) -> Evicted:
        """Evict after an update of `pushed` ids at the group's `step`; only in the group's slots.

        share: of the table's slots that live here, and so of its budget.
        """
        schema = self._table.schema
        if not schema.ttl_steps and not schema.max_bytes:
            return NOTHING
        found = []
        excess = self._excess(share) if schema.max_bytes else {}
        for slab in (self._table.slab, self._table.candidates):
            over = excess.get(id(slab), 0)
            if slab.rows and (schema.ttl_steps or over):
                found.append(self._pass(slab, pushed, over, step, _ALL_SLOTS if slots is None else slots))
        ids = np.concatenate([part.ids for part in found]) if found else NOTHING.ids
        if not len(ids):
            return NOTHING
        self._table.remove(ids)
        return Evicted(ids, np.concatenate([part.updates for part in found]))

    def _excess(self, share: float) -> dict[int, int]:
        """By slab: how many rows are beyond the budget."""
        rows, candidates = self._table.slab, self._table.candidates
        budget = self._table.schema.max_bytes * share
        over = rows.row_bytes * rows.rows + candidates.row_bytes * candidates.rows - budget
        if over <= 0:
            return {}
        many = candidates.row_bytes * candidates.rows > budget / _CANDIDATES_SHARE
        slab = candidates if many else rows
        return {id(slab): min(_MOST_EVICTED, -int(-over // slab.row_bytes))}

    def _pass(self, slab: Slab, pushed: int, excess: int, step: int, slots: SlotMask) -> Evicted:
        places = max(_LEAST_PLACES, pushed if self._table.schema.ttl_steps else 0, _PLACES_PER_EXCESS * excess)
        places = min(places, _MOST_PLACES, slab.rows)
        hi = self._next[id(slab)]
        if not 0 < hi <= slab.rows:
            hi = slab.rows
        ids, updates = np.empty(_MOST_EVICTED, np.int64), np.empty(_MOST_EVICTED, np.uint32)
        n, stopped = self._table.overdue(
            slab, max(0, hi - places), hi, slots, now=step + 1, rare=self._rare(slab) if excess else -1,
            rare_limit=excess, ids=ids, updates=updates)
        self._next[id(slab)] = stopped
        return Evicted(ids[:n], updates[:n])

    def _rare(self, slab: Slab) -> int:
        """The frequency that an eighth of the rows does not exceed, by a sample spread over the places."""
        places = np.linspace(0, slab.rows - 1, min(_SAMPLE, slab.rows)).astype(np.int64)
        frequencies = slab.words[(places + 1) * slab.width - 1]
        return int(np.partition(frequencies, len(places) // _RARE_SHARE)[len(places) // _RARE_SHARE])
