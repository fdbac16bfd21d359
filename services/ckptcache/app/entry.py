"""A snapshot that this process works on."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Coroutine
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from services.ckptcache.domain.parts import Part
from services.ckptcache.domain.snapshot import Snapshot

Key = tuple[str, int]


def in_background(work: Coroutine[Any, Any, None], *, name: str) -> "asyncio.Task[None]":
    """A task that does not inherit the deadline of the call that started it."""
    return asyncio.create_task(work, name=name, context=Context())


@dataclass(eq=False)
class Entry:
    """The snapshot's value, and what goes on around it."""

    snapshot: Snapshot
    taken: dict[int, Part] = field(default_factory=dict)
    """Parts that were handed over, stored or not."""
    taking: dict[int, "asyncio.Task[None]"] = field(default_factory=dict)
    """Parts that are being handed over; whether that works is not known yet."""
    writing: dict[int, "asyncio.Task[None]"] = field(default_factory=dict)
    cancelled: threading.Event = field(default_factory=threading.Event)
    last_read: float = 0.0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> Key:
        """Job and number."""
        return self.snapshot.job_id, self.snapshot.number

    def become(self, snapshot: Snapshot) -> None:
        """Take the new value, and wake who waits for one."""
        self.snapshot = snapshot
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, timeout_s: float) -> None:
        """Return at the next change, or after the timeout."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return


class Entries:
    """Entries by job and number, with one lock for each job's structural changes."""

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def lock(self, job_id: str) -> asyncio.Lock:
        """Held while a job's set of snapshots changes."""
        return self._locks[job_id]

    def get(self, job_id: str, number: int) -> Entry | None:
        """None when this process knows no such snapshot."""
        return self._entries.get((job_id, number))

    def put(self, entry: Entry) -> None:
        """Insert or replace."""
        self._entries[entry.key] = entry

    def remove(self, entry: Entry) -> None:
        """Forget, unless it was replaced."""
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]

    def of_job(self, job_id: str) -> list[Entry]:
        """A job's, ascending; all for an empty id."""
        found = [entry for entry in self._entries.values() if job_id in ("", entry.snapshot.job_id)]
        return sorted(found, key=lambda entry: entry.key)
