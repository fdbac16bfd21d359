"""Rows of the series that forecasts are asked of, in memory: of each ask only the newest rows are read."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from services.forecaster.domain.tiers import Rows
from services.forecaster.store.sql import SqlStore

MAX_ROWS = 4_000_000
"""Of all series together, 32 B each."""
REREAD_S = 600.0
"""After so long all is read again: other replicas store late rates, too, and old ones become means."""
LATE_STEPS = 64
"""Newest steps that are read with every ask: rates that come a little late, or again, replace nothing in memory."""
Key = tuple[str, float, float]


@dataclass(frozen=True, slots=True)
class _Entry:
    rows: Rows
    read: float

    @property
    def end(self) -> float:
        return float(self.rows.at[-1] + self.rows.width[-1])


class Recent:
    """Used from many threads."""

    def __init__(self, store: SqlStore, *, max_rows: int = MAX_ROWS, clock: Callable[[], float] = monotonic) -> None:
        self._store, self._max_rows, self._clock = store, max_rows, clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._reading: Counter[str] = Counter()
        self._changed: set[str] = set()
        """Series that older rates came for while they were read."""
        self._rows = 0

    def rows(self, name: str, own_step_s: float, *, within_s: float, limit: int) -> Rows:
        """As `SqlStore.rows` without bounds of time."""
        key = (name, own_step_s, within_s)
        with self._lock:
            entry = self._entries.get(key)
            self._reading[name] += 1
        now = self._clock()
        try:
            if entry is None or now - entry.read > REREAD_S:
                entry = _Entry(self._store.rows(name, own_step_s, limit=limit, within_s=within_s), now)
            else:
                entry = _Entry(self._with_newer(entry, name, own_step_s, within_s, limit), entry.read)
        finally:
            with self._lock:
                self._reading[name] -= 1
                is_good = name not in self._changed
                if not self._reading[name]:
                    del self._reading[name]
                    self._changed.discard(name)
        with self._lock:
            self._drop(key)
            if is_good and len(entry.rows):
                self._entries[key] = entry
                self._rows += len(entry.rows)
            while self._rows > self._max_rows:
                self._drop(next(iter(self._entries)))
        return entry.rows

    def stored(self, name: str, first: float) -> None:
        """Rates from this moment on were stored: where it is long past, all is read again."""
        with self._lock:
            known = [key for key in self._entries if key[0] == name]
            late = [key for key in known if first < self._entries[key].end - LATE_STEPS * key[1]]
            for key in late:
                self._drop(key)
            if self._reading[name] and (late or not known):
                self._changed.add(name)

    def _with_newer(self, entry: _Entry, name: str, own_step_s: float, within_s: float, limit: int) -> Rows:
        since = entry.end - LATE_STEPS * own_step_s
        newer = self._store.rows(name, own_step_s, since=max(since, 0.0), limit=limit)
        if not len(newer):                                              # it was forgotten
            return self._store.rows(name, own_step_s, limit=limit, within_s=within_s)
        kept = entry.rows[(entry.rows.at < newer.at[0]) & (entry.rows.at + entry.rows.width <= max(since, 0.0) + 1e-6)]
        both = kept.then(newer)
        oldest = float(both.at[-1] + both.width[-1]) - within_s
        return both[both.at + both.width > oldest][-limit:]

    def _drop(self, key: Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._rows -= len(entry.rows)
