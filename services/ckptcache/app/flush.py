"""Parts on their way from memory to storage, and the memory copies that stay behind."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError
from recmesh.runtime.gates import gate
from services.ckptcache.app.entry import Entry, in_background
from services.ckptcache.app.ports import Announcements, Meter, Policy
from services.ckptcache.app.replicate import Replicator
from services.ckptcache.domain.parts import Part
from services.ckptcache.domain.retention import Copy, to_evict
from services.ckptcache.domain.snapshot import State, failed, with_stored
from services.ckptcache.store.files import Cancelled, SnapshotFiles
from services.ckptcache.store.memory import MemoryTier, read_range

log = logging.getLogger(__name__)


NICE = 10
"""Of the threads that write to storage: nobody waits for them, and training needs the processor."""


class Flusher:
    """Writes parts in threads, so that nobody waits for storage."""

    def __init__(
        self,
        *,
        files: SnapshotFiles,
        memory: MemoryTier,
        pool: ThreadPoolExecutor,
        policy: Policy,
        replicator: Replicator,
        announce: Announcements,
        meter: Meter,
        clock: Clock,
    ) -> None:
        self._replicator = replicator
        self._files, self._memory, self._pool, self._policy = files, memory, pool, policy
        self._announce, self._meter, self._clock = announce, meter, clock
        self._copies: dict[tuple[str, int, int], Copy] = {}
        self._layouts: dict[tuple[str, int, int], Part] = {}
        self._cleaning: set[asyncio.Task[None]] = set()

    @property
    def copies(self) -> tuple[Copy, ...]:
        """What lies in memory now."""
        return tuple(self._copies.values())

    def layout(self, job_id: str, number: int, ps: int) -> Part | None:
        """Where the files of a part lie in its memory copy; None when there is none."""
        return self._layouts.get((job_id, number, ps))

    def adopt(self, job_id: str, number: int, part: Part, *, memory_bytes: int, flushed: bool) -> None:
        """Account for a copy that lies in memory under the part's name."""
        key = (job_id, number, part.ps)
        self._copies[key] = Copy(job_id, number, part.ps, memory_bytes, flushed, part.base)
        self._layouts[key] = part
        self._meter.memory(sum(copy.size_bytes for copy in self._copies.values()))

    def start(self, entry: Entry, part: Part) -> None:
        """Begin to write a part whose copy was adopted."""
        entry.writing[part.ps] = in_background(self._write(entry, part), name=f"flush {entry.key} {part.ps}")
        self._replicator.offer(*entry.key, gen=entry.snapshot.gen, part=part)

    async def _write(self, entry: Entry, part: Part) -> None:
        snapshot = entry.snapshot
        path = self._memory.path(snapshot.job_id, snapshot.number, part.ps)
        started = self._clock.monotonic()
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._pool,
                lambda: self._files.write_part(
                    snapshot,
                    part,
                    lambda file: read_range(path, file.offset, file.size_bytes),
                    entry.cancelled,
                    progress=self._meter.written,
                ),
            )
        except Cancelled:
            return
        except MeshError as error:
            self.fail(entry, f"part of ps {part.ps}: {error}")
            return
        except Exception as error:
            log.exception("writing part %d of snapshot %s", part.ps, entry.key)
            self.fail(entry, f"part of ps {part.ps}: {type(error).__name__}: {error}")
            return
        finally:
            entry.writing.pop(part.ps, None)
        if entry.snapshot.state is not State.COLLECTING:
            return
        gate("ckptcache.stored", f"{snapshot.name}, part {part.ps}")
        self._meter.flushed(seconds=self._clock.monotonic() - started, size_bytes=part.size_bytes)
        key = (snapshot.job_id, snapshot.number, part.ps)
        if key in self._copies:
            self._copies[key] = replace(self._copies[key], flushed=True)
        entry.become(with_stored(entry.snapshot, part))
        if not entry.snapshot.missing:
            self._meter.ended("stored")
            self._announce.stored(entry.snapshot, took_s=self._clock.now() - entry.snapshot.created)
        self.evict()

    def fail(self, entry: Entry, reason: str) -> "asyncio.Task[None] | None":
        """The snapshot does not exist any more; the task removes its remains behind the caller's back."""
        if entry.snapshot.state in (State.FAILED, State.COMMITTED, State.DAMAGED):
            return None
        log.warning("snapshot %d of job %s failed: %s", entry.snapshot.number, entry.snapshot.job_id, reason)
        entry.cancelled.set()
        entry.become(failed(entry.snapshot, reason))
        self._meter.ended("failed")
        task = in_background(self.discard(entry), name=f"discard {entry.key}")
        self._cleaning.add(task)
        task.add_done_callback(self._cleaned)
        return task

    def _cleaned(self, task: "asyncio.Task[None]") -> None:
        self._cleaning.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("cannot remove the remains of a snapshot: %s", error)

    async def discard(self, entry: Entry) -> None:
        """Remove everything of a snapshot, after its writers have stopped."""
        entry.cancelled.set()
        writers = [task for task in entry.writing.values() if task is not asyncio.current_task()]
        if writers:
            await asyncio.wait(writers)
        job_id, number = entry.key
        self.forget(lambda copy: (copy.job_id, copy.number) == (job_id, number))
        self._replicator.forget(job_id, number)
        await asyncio.to_thread(self._files.delete, job_id, number)

    async def settled(self) -> None:
        """Wait until what failed is cleaned up."""
        while self._cleaning:
            await asyncio.wait(set(self._cleaning))

    def forget(self, which: Callable[[Copy], bool]) -> None:
        """Drop copies from memory."""
        for key, copy in list(self._copies.items()):
            if which(copy):
                del self._copies[key]
                self._layouts.pop(key, None)
                self._memory.drop(copy.job_id, copy.number, copy.ps)
        self._meter.memory(sum(copy.size_bytes for copy in self._copies.values()))

    def evict(self) -> None:
        """Keep each job's newest snapshots in memory, and all within the budget."""
        gone = to_evict(
            self.copies, budget_bytes=self._policy.memory_budget_bytes, newest=self._policy.memory_snapshots
        )
        if gone:
            self.forget(lambda copy: copy in gone)
