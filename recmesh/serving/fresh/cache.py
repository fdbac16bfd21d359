"""Rows of one table in bounded memory: eight places to a set, admission by frequency (`sketch`).

A row that is not here takes a free place of its set, or that of the row asked for least often, if it was itself asked
for more often: a scan of rare ids does not push the hot ones out. All of it is done for the ids of a request at once.
"""

import numpy as np
from numpy.typing import NDArray

from recmesh.formats.tables import Ids, Rows
from recmesh.serving.fresh.sketch import Sketch

WAYS = 8
_BYTES_BESIDE = 8 + 1 + 4 * 8
"""Per place: the id, whether it is taken, and the sketch's counters (8 for each place and row of it)."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Cache:
    """Of distinct ids per call; not thread-safe. A size below eight rows makes one that holds nothing."""

    def __init__(self, size_bytes: int, *, dim: int) -> None:
        sets = size_bytes // (WAYS * (4 * dim + _BYTES_BESIDE))
        self._bits = int(sets).bit_length() - 1 if sets else -1
        places = WAYS << self._bits if sets else 0
        self._ids = np.zeros((places // WAYS, WAYS), np.int64)
        self._taken = np.zeros((places // WAYS, WAYS), np.bool_)
        self._rows = np.zeros((places, dim), np.float32)
        self._sketch = Sketch(8 * places) if places else None

    @property
    def size_bytes(self) -> int:
        """Of rows, ids and counters."""
        return self._rows.nbytes + self._ids.nbytes + self._taken.nbytes + (4 * 8 * self._ids.size)

    def __len__(self) -> int:
        return int(self._taken.sum())

    def clear(self) -> None:
        """No row is here; what was asked for often stays known."""
        self._taken[:] = False

    def get(self, ids: Ids, out: Rows) -> NDArray[np.bool_]:
        """Which of the ids are here; their rows are written to out [ids, dim]. Each id counts as asked for."""
        if self._sketch is None or not len(ids):
            return np.zeros(len(ids), np.bool_)
        self._sketch.add(ids)
        sets = self._sets(ids)
        match = (self._ids[sets] == ids[:, None]) & self._taken[sets]
        found: NDArray[np.bool_] = match.any(axis=1)
        places = sets[found] * WAYS + match[found].argmax(axis=1)
        out[found] = self._rows[places]
        return found

    def offer(self, ids: Ids, rows: Rows) -> None:
        """Rows that were not here, and may be from now on."""
        if self._sketch is None or not len(ids):
            return
        sets = self._sets(ids)
        held = self._sketch.estimate(self._ids[sets].reshape(-1)).reshape(len(ids), WAYS).astype(np.int16)
        held[~self._taken[sets]] = -1
        victims = held.argmin(axis=1)
        admitted = self._sketch.estimate(ids) > np.take_along_axis(held, victims[:, None], axis=1)[:, 0]
        places = sets * WAYS + victims
        # Of several that want one place, the last gets it.
        _, last = np.unique(places[::-1], return_index=True)
        chosen = len(ids) - 1 - last
        chosen = chosen[admitted[chosen]]
        where = places[chosen]
        self._ids.reshape(-1)[where] = ids[chosen]
        self._taken.reshape(-1)[where] = True
        self._rows[where] = rows[chosen]

    def _sets(self, ids: Ids) -> NDArray[np.int64]:
        if not self._bits:
            return np.zeros(len(ids), np.int64)
        return ((ids.view(np.uint64) * _GOLDEN) >> np.uint64(64 - self._bits)).astype(np.int64)
