"""What ckptcache tells the mesh."""

import re

from recmesh.runtime.bus import Bus
from recmesh.runtime.events import Event, catalog
from services.ckptcache.domain.snapshot import Snapshot

_PART = re.compile(r"ps-\d{3,}")


class BusAnnouncements:
    """Offers events to the bus, which delivers them behind the caller's back."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def stored(self, snapshot: Snapshot, *, took_s: float) -> None:
        """snapshot.stored"""
        data = catalog.SnapshotStored(
            snapshot=snapshot.number,
            parts=len(snapshot.expected),
            size_bytes=snapshot.size_bytes,
            duration_s=max(0.0, took_s),
        )
        identity = f"stored-{snapshot.job_id}-{snapshot.number}-{snapshot.gen}"
        self._bus.offer(Event(catalog.SNAPSHOT_STORED, snapshot.job_id, data, id=identity))

    def damaged(self, snapshot: Snapshot, reason: str) -> None:
        """snapshot.damaged"""
        found = _PART.search(reason)
        data = catalog.SnapshotDamaged(snapshot=snapshot.number, part=found[0] if found else "", reason=reason)
        self._bus.offer(Event(catalog.SNAPSHOT_DAMAGED, snapshot.job_id, data))
