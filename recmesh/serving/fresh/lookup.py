"""Rows of ids through the tiers, and how many each of them answered.

    fresh    rows that changed since the mapped snapshot, in memory: exact, and asked first
    cache    hot rows of the mapped snapshot, in bounded memory
    valkey   the same, shared among processes; where the settings name one
    disk     the mapped snapshot itself
    absent   by the table's miss policy
"""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from recmesh.formats.tables import Ids, Rows
from recmesh.runtime.errors import InvalidArgument, NotFound, Violation
from recmesh.serving.fresh.cache import Cache
from recmesh.serving.fresh.valkey import Valkey
from recmesh.serving.fresh.version import Version
from recmesh.serving.settings import EmbeddingSettings

CONNECT_S = 1.0
TIERS = ("fresh", "cache", "valkey", "disk", "absent")


class Lookup:
    """Of one model's tables; used by one thread, counts are read by others."""

    def __init__(self, settings: EmbeddingSettings, *, dims: Mapping[str, int], name: str) -> None:
        """InvalidArgument: a miss policy is of no table (`dims`: columns of each), or has a value of another size."""
        _check_miss(settings, dims)
        self._settings = settings
        share = settings.cache_bytes // max(1, len(dims))
        self._caches = {table: Cache(share, dim=dim) for table, dim in dims.items()}
        self._base = -1
        self._valkey = Valkey(settings.valkey, prefix=f"rm:{name}") if settings.valkey else None
        self._counts = {table: dict.fromkeys(TIERS, 0) for table in dims}
        self._lock = threading.Lock()
        self._begun = False

    def begin(self) -> None:
        """Warm-up is over: its ids count no more, and ids that are absent may be refused from now on."""
        if self._valkey is not None:
            self._valkey.connected(CONNECT_S)    # so that the first request finds it, if it is there
        with self._lock:
            for counts in self._counts.values():
                counts.update(dict.fromkeys(TIERS, 0))
        self._begun = True

    def rows(self, version: Version, table: str, ids: Ids) -> Rows:
        """float32 [ids, dim] of distinct ids; NotFound where the policy is `fail` and one is absent."""
        if version.base_number != self._base:    # what is cached is of mapped rows that are no more
            for cache in self._caches.values():
                cache.clear()
            self._base = version.base_number
        base, overlay, cache = version.base[table], version.overlays[table], self._caches[table]
        out = np.zeros((len(ids), base.rows.shape[1]), np.float32)
        known, places = overlay.find(ids)
        fresh = known.copy()
        fresh[known] = overlay.there[places[known]]
        out[fresh] = overlay.rows[places[fresh]]
        left = np.flatnonzero(~known)            # what was removed is absent, whatever lies below
        absent = np.flatnonzero(known & ~fresh)
        some, buffer = ids[left], np.zeros((len(left), out.shape[1]), np.float32)
        cached = cache.get(some, buffer)
        shared = np.zeros(len(some), np.bool_)
        if self._valkey is not None and not cached.all():
            asked = np.flatnonzero(~cached)
            from_valkey = np.zeros((len(asked), out.shape[1]), np.float32)
            there = self._valkey.get(table, self._base, some[asked], from_valkey)
            shared[asked] = there
            buffer[asked[there]] = from_valkey[there]
        asked = np.flatnonzero(~cached & ~shared)
        on_disk, at = base.find(some[asked])
        found = asked[on_disk]
        buffer[found] = base.rows[at[on_disk]]
        if self._valkey is not None:
            self._valkey.offer(table, self._base, some[found], buffer[found])
        new = np.flatnonzero(shared)
        new = np.concatenate([new, found])
        cache.offer(some[new], buffer[new])
        out[left] = buffer
        absent = np.concatenate([absent, left[asked[~on_disk]]])
        with self._lock:
            counts = self._counts[table]
            for tier, count in zip(
                TIERS, (int(fresh.sum()), int(cached.sum()), int(shared.sum()), len(found), len(absent)), strict=True
            ):
                counts[tier] += count
        if len(absent):
            self._fill(version, table, ids, absent, out)
        return out

    def status(self) -> dict[str, Any]:
        """By table how many ids each tier answered, and what the cache holds."""
        with self._lock:
            counts = {table: dict(each) for table, each in self._counts.items()}
        found: dict[str, Any] = {
            "tables": {
                table: {
                    **each,
                    "hit_rate": 1 - each["absent"] / total if (total := sum(each.values())) else None,
                    "cached_rows": len(self._caches[table]), "cache_bytes": self._caches[table].size_bytes,
                }
                for table, each in counts.items()
            }
        }
        if self._valkey is not None:
            found["valkey"] = {
                "up": self._valkey.is_up, "errors": self._valkey.errors, "writes_dropped": self._valkey.dropped,
            }
        return found

    def close(self) -> None:
        """End what runs in the background."""
        if self._valkey is not None:
            self._valkey.close()

    def _fill(self, version: Version, table: str, ids: Ids, absent: Any, out: Rows) -> None:
        policy = self._settings.miss_of(table)
        if policy.kind == "fail" and self._begun:
            raise NotFound(
                f"table {table!r} has no row of id {int(ids[absent[0]])} ({len(absent)} such ids in the request)",
                reason="UNKNOWN_ID",
            )
        if policy.kind == "default":
            out[absent] = np.asarray(policy.value, np.float32)
        elif policy.kind == "mean":
            out[absent] = version.means[table]


def _check_miss(settings: EmbeddingSettings, dims: Mapping[str, int]) -> None:
    """Before any request: whether an id is absent is found out by those who ask."""
    path = "serving.embeddings.miss"
    wrong = [
        Violation(f"{path}.{table}", f"the model has no such table; it has {', '.join(sorted(dims))}")
        for table in settings.miss if table != "*" and table not in dims
    ]
    for table, dim in dims.items():
        policy = settings.miss_of(table)
        if policy.kind == "default" and len(policy.value) != dim:
            given = table if table in settings.miss else "*"
            why = f"has {len(policy.value)} numbers, and table {table!r} {dim} columns"
            wrong.append(Violation(f"{path}.{given}.value", why))
    if wrong:
        raise InvalidArgument("serving is wrong", reason="BAD_SERVING_SETTINGS", violations=wrong)
