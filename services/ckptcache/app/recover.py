"""After a start: what the files say becomes what this process knows."""

import asyncio
import logging
from dataclasses import dataclass, replace

from recmesh.runtime.clock import Clock
from services.ckptcache.app.entry import Entries, Entry
from services.ckptcache.app.flush import Flusher
from services.ckptcache.app.ports import Announcements, Policy
from services.ckptcache.domain.snapshot import Snapshot, State, damaged, failed
from services.ckptcache.store.catalogue import Catalogue
from services.ckptcache.store.files import SnapshotFiles
from services.ckptcache.store.memory import MemoryTier

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found."""

    snapshots: int
    unfinished: int
    removed: int
    copies_in_memory: int


class Recovery:
    """Runs once, before any call is answered."""

    def __init__(
        self,
        *,
        files: SnapshotFiles,
        memory: MemoryTier,
        catalogue: Catalogue,
        flusher: Flusher,
        entries: Entries,
        announce: Announcements,
        policy: Policy,
        clock: Clock,
    ) -> None:
        self._files, self._memory, self._catalogue, self._flusher = files, memory, catalogue, flusher
        self._entries, self._announce, self._policy, self._clock = entries, announce, policy, clock

    async def run(self) -> Recovered:
        """Rebuild entries and catalogue from storage, and remove what counts for nothing.

        A snapshot that was being collected here has failed: parts that were handed over and not
        written are gone. One that is collected by another node is left alone.
        """
        found, unfinished, removed = 0, 0, 0
        seen: set[tuple[str, int]] = set()
        for job_id in await asyncio.to_thread(self._files.jobs):
            for number in await asyncio.to_thread(self._files.numbers, job_id):
                snapshot = await asyncio.to_thread(self._files.load, job_id, number)
                if snapshot is None:
                    await asyncio.to_thread(self._files.delete, job_id, number)
                    removed += 1
                    continue
                if snapshot.state is State.COLLECTING:
                    unfinished += await self._give_up(snapshot)
                    continue
                await self._take_up(snapshot)
                seen.add((job_id, number))
                found += 1
        await self._check_chains()
        for known in await self._catalogue.of_job(""):
            if (known.job_id, known.number) not in seen:
                log.warning("snapshot %d of job %s is not on storage any more", known.number, known.job_id)
                await self._catalogue.delete(known.job_id, known.number)
        copies = self._adopt_memory()
        return Recovered(found, unfinished, removed, copies)

    async def _give_up(self, snapshot: Snapshot) -> int:
        age_s = self._clock.now() - snapshot.created
        if snapshot.node != self._policy.node and age_s < self._policy.abandoned_after_s:
            return 0
        await asyncio.to_thread(self._files.delete, snapshot.job_id, snapshot.number)
        self._entries.put(Entry(failed(snapshot, "ckptcache was restarted while the snapshot was collected")))
        return 1

    async def _take_up(self, snapshot: Snapshot) -> None:
        if snapshot.node in ("", self._policy.node):
            await asyncio.to_thread(self._files.sweep, snapshot)
        self._entries.put(Entry(snapshot, taken=dict(snapshot.stored or {})))
        if snapshot.state not in (State.COMMITTED, State.DAMAGED):
            return
        known = await self._catalogue.get(snapshot.job_id, snapshot.number)
        if known is not None and known.state is State.DAMAGED and snapshot.state is State.COMMITTED:
            # Its marker is whole; that some file is not was found earlier, by hashing.
            entry = self._entries.get(snapshot.job_id, snapshot.number)
            if entry is not None:
                entry.become(replace(snapshot, state=State.DAMAGED, reason=known.reason))
            return
        if snapshot.state is State.DAMAGED and (known is None or known.state is not State.DAMAGED):
            self._announce.damaged(snapshot, snapshot.reason)
        if known is None or known.state is not snapshot.state:
            await self._catalogue.put(snapshot)

    async def _check_chains(self) -> None:
        """What builds on a snapshot that cannot be read cannot be read either."""
        for entry in self._entries.of_job(""):
            snapshot = entry.snapshot
            for number in snapshot.bases:
                base = self._entries.get(snapshot.job_id, number)
                if snapshot.state is State.COMMITTED and (base is None or not base.snapshot.usable):
                    reason = f"it builds on snapshot {number}, which is {base.snapshot.state if base else 'gone'}"
                    entry.become(damaged(snapshot, reason))
                    self._announce.damaged(entry.snapshot, reason)
                    await self._catalogue.put(replace(entry.snapshot, stored=None))
                    break

    def _adopt_memory(self) -> int:
        """Keep copies of parts that count; drop the others."""
        adopted = 0
        for job_id, number, ps, size_bytes in self._memory.present():
            entry = self._entries.get(job_id, number)
            part = (entry.snapshot.stored or {}).get(ps) if entry and entry.snapshot.usable else None
            if part is None or any(file.offset + file.size_bytes > size_bytes for file in part.files):
                self._memory.drop(job_id, number, ps)
                continue
            self._flusher.adopt(job_id, number, part, memory_bytes=size_bytes, flushed=True)
            adopted += 1
        self._flusher.evict()
        return adopted
