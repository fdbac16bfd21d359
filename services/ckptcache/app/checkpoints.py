"""Collecting, committing and forgetting snapshots."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    MeshError,
    NotFound,
    ResourceExhausted,
    Violation,
)
from recmesh.runtime.gates import gate
from services.ckptcache.app.entry import Entries, Entry, in_background
from services.ckptcache.app.flush import Flusher
from services.ckptcache.app.ports import Announcements, Meter, Policy
from services.ckptcache.domain import manifest
from services.ckptcache.domain.parts import Part, job_violations, part_violations
from services.ckptcache.domain.retention import Retention
from services.ckptcache.domain.snapshot import Snapshot, State, check_generation, committed, damaged
from services.ckptcache.store.catalogue import Catalogue
from services.ckptcache.store.files import SnapshotFiles
from services.ckptcache.store.memory import MemoryTier, append, room

log = logging.getLogger(__name__)

FAILED_REMEMBERED = 100
"""Failed snapshots whose reason is kept for those who still wait for them."""


class Checkpoints:
    """The use cases. One instance per process; every method is safe to call at the same time as others."""

    def __init__(
        self,
        *,
        files: SnapshotFiles,
        memory: MemoryTier,
        catalogue: Catalogue,
        flusher: Flusher,
        entries: Entries,
        announce: Announcements,
        meter: Meter,
        clock: Clock,
        policy: Policy,
    ) -> None:
        self._files, self._memory, self._catalogue, self._flusher = files, memory, catalogue, flusher
        self._entries, self._announce, self._meter = entries, announce, meter
        self._clock, self._policy = clock, policy
        self._retiring: set[asyncio.Task[None]] = set()

    async def begin(self, job_id: str, number: int, *, gen: int, ps: Sequence[int], label: str = "") -> None:
        """Parts of these parameter servers are expected. The same call again changes nothing."""
        violations = job_violations(job_id)
        if number < 1 or number > 99_999_999:
            violations.append(Violation("snapshot", f"{number} is not in 1..99999999"))
        if not ps or len(set(ps)) != len(ps):
            violations.append(Violation("ps", "names no parameter server, or one twice"))
        if violations:
            raise InvalidArgument("the snapshot cannot begin", violations=violations)
        expected = tuple(sorted(ps))
        async with self._entries.lock(job_id):
            entry = self._entries.get(job_id, number)
            if entry is not None:
                old = entry.snapshot
                if old.state in (State.COLLECTING, State.STORED) and (old.gen, old.expected) == (
                    gen,
                    expected,
                ):
                    return
                if old.state in (State.COMMITTED, State.DAMAGED):
                    raise AlreadyExists(f"snapshot {number} of job {job_id} is {old.state}")
                if old.state is not State.FAILED and gen <= old.gen:
                    check_generation(old, gen)
                    raise AlreadyExists(f"{old.name} was begun with parts {old.expected}")
                await self._flusher.discard(entry)
                self._entries.remove(entry)
            elif await self._catalogue.get(job_id, number) is not None:
                raise AlreadyExists(f"snapshot {number} of job {job_id} is committed")
            snapshot = Snapshot(
                job_id,
                number,
                gen=gen,
                expected=expected,
                created=self._clock.now(),
                label=label,
                node=self._policy.node,
            )
            await asyncio.to_thread(self._files.begin, snapshot)
            self._entries.put(Entry(snapshot))

    async def store_part(
        self, job_id: str, number: int, *, gen: int, part: Part, shm_path: str, size_bytes: int
    ) -> None:
        """Take over a part that lies in shared memory, and write it behind the caller's back."""
        await self._settled(job_id, number, part.ps)
        entry = self._expecting(job_id, number, gen=gen, part=part, size_bytes=size_bytes)
        if entry is None:
            return
        entry.taken[part.ps] = part
        task = in_background(
            self._take(entry, part, shm_path=shm_path, size_bytes=size_bytes), name=f"take {job_id} {part.ps}"
        )
        entry.taking[part.ps] = task
        task.add_done_callback(lambda _: entry.taking.pop(part.ps, None))
        await asyncio.shield(task)  # a caller that gives up leaves no half of it behind

    async def _take(self, entry: Entry, part: Part, *, shm_path: str, size_bytes: int) -> None:
        job_id, number = entry.key
        try:
            await asyncio.to_thread(
                self._memory.take, shm_path, job_id=job_id, number=number, ps=part.ps, size_bytes=size_bytes
            )
        except BaseException:
            entry.taken.pop(part.ps, None)
            raise
        self._taken_over(entry, part, memory_bytes=size_bytes)
        gate("ckptcache.part", f"{entry.snapshot.name}, part {part.ps}")

    async def _settled(self, job_id: str, number: int, ps: int) -> None:
        """Nobody is taking over the part: it was handed over, or is still expected."""
        while (task := self._known(job_id, number).taking.get(ps)) is not None:
            await asyncio.wait({task})

    async def receive_part(
        self, job_id: str, number: int, *, gen: int, part: Part, size_bytes: int, data: AsyncIterator[bytes]
    ) -> None:
        """Take a part's bytes from a stream, then as `store_part`."""
        await self._settled(job_id, number, part.ps)
        entry = self._expecting(job_id, number, gen=gen, part=part, size_bytes=size_bytes)
        if entry is None:
            async for _ in data:
                pass
            return
        incoming = self._memory.incoming()
        received = 0
        try:
            room(incoming.parent, size_bytes)
            await asyncio.to_thread(incoming.touch, 0o600)
            async for chunk in data:
                received += len(chunk)
                if received > size_bytes:
                    break
                await asyncio.to_thread(append, incoming, chunk)
            if received != size_bytes:
                reason = f"{received} bytes arrived, {size_bytes} were announced"
                raise InvalidArgument("the part is not whole", violations=[Violation("data", reason)])
            await self._settled(job_id, number, part.ps)
            again = self._expecting(job_id, number, gen=gen, part=part, size_bytes=size_bytes)
            if again is None:
                return
            entry = again
            self._memory.accept(incoming, job_id=job_id, number=number, ps=part.ps)
            entry.taken[part.ps] = part
        finally:
            incoming.unlink(missing_ok=True)
        self._taken_over(entry, part, memory_bytes=size_bytes)

    def _expecting(self, job_id: str, number: int, *, gen: int, part: Part, size_bytes: int) -> Entry | None:
        """The entry that waits for the part; None when it has it already."""
        entry = self._known(job_id, number)
        check_generation(entry.snapshot, gen)
        if part.ps not in entry.snapshot.expected:
            raise FailedPrecondition(
                f"snapshot {number} of job {job_id} expects no part of ps {part.ps}", reason="NOT_EXPECTED"
            )
        before = entry.taken.get(part.ps)
        if before is not None and entry.snapshot.state is not State.FAILED:
            if before.files != part.files:
                raise AlreadyExists(f"ps {part.ps} has handed over another part of {entry.snapshot.name}")
            return None
        if entry.snapshot.state is not State.COLLECTING:
            raise FailedPrecondition(
                f"snapshot {number} of job {job_id} is {entry.snapshot.state}: {entry.snapshot.reason}",
                reason="WRONG_STATE",
            )
        violations = part_violations(part, memory_bytes=size_bytes)
        if violations:
            raise InvalidArgument(f"the part of ps {part.ps} is refused", violations=violations)
        if size_bytes > self._policy.part_limit_bytes:
            raise ResourceExhausted(f"a part of {size_bytes} bytes is above {self._policy.part_limit_bytes}")
        return entry

    def _taken_over(self, entry: Entry, part: Part, *, memory_bytes: int) -> None:
        if entry.snapshot.state is not State.COLLECTING:  # aborted meanwhile
            self._memory.drop(*entry.key, part.ps)
            raise FailedPrecondition(f"{entry.snapshot.name} is {entry.snapshot.state}", reason="WRONG_STATE")
        self._flusher.adopt(*entry.key, part, memory_bytes=memory_bytes, flushed=False)
        self._flusher.start(entry, part)
        self._flusher.evict()

    async def wait(self, job_id: str, number: int, *, wait_s: float) -> Snapshot | None:
        """The snapshot as soon as it no longer collects, at the latest after `wait_s`; None: unknown."""
        until = self._clock.monotonic() + wait_s
        while True:
            entry = self._entries.get(job_id, number)
            if entry is None:
                return await self._catalogue.get(job_id, number)
            left = until - self._clock.monotonic()
            if entry.snapshot.state is not State.COLLECTING or left <= 0:
                return entry.snapshot
            await entry.change(left)

    async def commit(
        self, job_id: str, number: int, *, gen: int, manifest_json: str, keep: int = 0
    ) -> tuple[Snapshot, str]:
        """The job's record names the snapshot: make it last, and let older ones go.

        Idempotent: a repeated commit of the same generation answers what the first one wrote.
        Returns the snapshot and its manifest. One that builds on what cannot be read is damaged at once.
        """
        async with self._entries.lock(job_id):
            entry = self._known(job_id, number)
            check_generation(entry.snapshot, gen)
            if entry.snapshot.state is State.DAMAGED:
                return entry.snapshot, ""
            if entry.snapshot.state is State.COMMITTED:
                text = await asyncio.to_thread(self._files.manifest, job_id, number)
                await self._catalogue.put(entry.snapshot)
                return entry.snapshot, text
            given = manifest.parse(manifest_json)
            done = committed(
                entry.snapshot,
                now=self._clock.now(),
                rows=manifest.count(given, "rows"),
                samples=manifest.count(given, "samples"),
                chain=manifest.chain(given),
            )
            gate("ckptcache.commit", entry.snapshot.name)
            text = await asyncio.to_thread(self._files.commit, done, manifest.merged(given, done))
            entry.become(done)
            self._meter.ended("committed")
            await self._catalogue.put(done)
            await self._check_bases(done)
        task = in_background(self._retire(job_id, keep or self._policy.keep), name=f"retire {job_id}")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
        return entry.snapshot, text

    async def _check_bases(self, snapshot: Snapshot) -> None:
        try:
            for number in reversed(snapshot.bases):
                await self._check_base(snapshot, number, verify=False)
        except DataLoss as error:
            log.warning("%s cannot be read: %s", snapshot.name, error)
            await self.mark_damaged(snapshot, str(error))

    async def _retire(self, job_id: str, keep: int) -> None:
        """Delete what the retention lets go."""
        retention = Retention(keep=keep, max_age_s=self._policy.max_age_s)
        try:
            async with self._entries.lock(job_id):
                now = self._clock.now()
                entries = {entry.snapshot.number: entry for entry in self._entries.of_job(job_id)}
                in_use = {n for n, e in entries.items() if now - e.last_read < self._policy.restore_grace_s}
                known = await self.snapshots(job_id)       # what another replica committed may be a base, too
                for number in retention.expired(known, now=now, in_use=in_use):
                    if number in entries:
                        await self._delete(entries[number])
        except MeshError as error:
            log.warning("retention of job %s: %s", job_id, error)

    async def _delete(self, entry: Entry) -> None:
        await self._catalogue.delete(*entry.key)
        await self._flusher.discard(entry)
        self._entries.remove(entry)

    async def abort(self, job_id: str, number: int, *, reason: str) -> None:
        """Give a snapshot up; of one that is unknown or has failed nothing is left to do."""
        async with self._entries.lock(job_id):
            entry = self._entries.get(job_id, number)
            if entry is None or entry.snapshot.state is State.FAILED:
                return
            if entry.snapshot.state in (State.COMMITTED, State.DAMAGED):
                raise FailedPrecondition(f"{entry.snapshot.name} is committed", reason="WRONG_STATE")
            cleaning = self._flusher.fail(entry, f"aborted: {reason or 'no reason given'}")
            self._bound_failed()
        if cleaning is not None:
            await asyncio.wait({cleaning})

    def _bound_failed(self) -> None:
        failed = [entry for entry in self._entries.of_job("") if entry.snapshot.state is State.FAILED]
        for entry in sorted(failed, key=lambda entry: entry.snapshot.created)[:-FAILED_REMEMBERED]:
            self._entries.remove(entry)

    def local(self) -> list[Snapshot]:
        """What this process knows, by job and number."""
        return [entry.snapshot for entry in self._entries.of_job("")]

    async def snapshots(self, job_id: str = "") -> list[Snapshot]:
        """This replica's snapshots, and those that others committed; by job and number."""
        if job_id and (violations := job_violations(job_id)):
            raise InvalidArgument("cannot list snapshots", violations=violations)
        found = {(s.job_id, s.number): s for s in await self._catalogue.of_job(job_id)}
        for entry in self._entries.of_job(job_id):
            told = found.get(entry.key)
            if entry.snapshot.state is State.COMMITTED and told is not None and told.state is State.DAMAGED:
                entry.become(damaged(entry.snapshot, told.reason))      # another replica found it
            found[entry.key] = entry.snapshot
        return [found[key] for key in sorted(found)]

    async def get(self, job_id: str, number: int, *, verify: bool = False) -> tuple[Snapshot, str]:
        """A snapshot and its manifest; number 0 is the newest committed one.

        With `verify` all bytes are hashed again: damage is DataLoss, and for number 0 the one before
        is tried.
        """
        if number:
            snapshot = await self._find(job_id, number)
            return await self._opened(snapshot, verify=verify)
        newest_first = [s for s in reversed(await self.snapshots(job_id)) if s.state is State.COMMITTED]
        for snapshot in newest_first:
            try:
                return await self._opened(snapshot, verify=verify)
            except DataLoss as error:
                log.warning("snapshot %d of job %s is passed over: %s", snapshot.number, job_id, error)
        if newest_first:
            raise DataLoss(f"all {len(newest_first)} committed snapshots of job {job_id} are damaged")
        raise NotFound(f"job {job_id} has no committed snapshot")

    async def known(self, job_id: str, number: int) -> Snapshot | None:
        """As this replica knows it, or another that committed it."""
        if (entry := self._entries.get(job_id, number)) is not None:
            return entry.snapshot
        return await self._catalogue.get(job_id, number)

    async def _find(self, job_id: str, number: int) -> Snapshot:
        found = await self.known(job_id, number)
        if found is None:
            raise NotFound(f"job {job_id} has no snapshot {number}")
        return found

    async def _opened(self, snapshot: Snapshot, *, verify: bool) -> tuple[Snapshot, str]:
        if snapshot.state is State.DAMAGED:
            raise DataLoss(f"{snapshot.name} is damaged: {snapshot.reason}")
        if snapshot.state is not State.COMMITTED:
            return snapshot, ""
        try:
            text = await asyncio.to_thread(self._files.manifest, snapshot.job_id, snapshot.number)
            for number in reversed(snapshot.bases):
                await self._check_base(snapshot, number, verify=verify)
            if verify:
                await self._verify(snapshot)
        except DataLoss as error:
            await self.mark_damaged(snapshot, str(error))
            raise
        return snapshot, text

    async def _verify(self, snapshot: Snapshot) -> None:
        whole = snapshot if snapshot.stored else await self._loaded(snapshot)
        await asyncio.to_thread(self._files.verify, whole)

    async def _check_base(self, snapshot: Snapshot, number: int, *, verify: bool) -> None:
        """What the snapshot builds on; DataLoss when that cannot be read any more."""
        try:
            base = await self._find(snapshot.job_id, number)
        except NotFound:
            raise DataLoss(f"it builds on snapshot {number}, which is gone") from None
        if not base.usable:
            raise DataLoss(f"it builds on snapshot {number}, which is {base.state}: {base.reason}")
        try:
            if verify:
                await self._verify(base)
        except DataLoss as error:
            await self.mark_damaged(base, str(error))
            raise DataLoss(f"it builds on snapshot {number}: {error}") from error

    async def _loaded(self, snapshot: Snapshot) -> Snapshot:
        loaded = await asyncio.to_thread(self._files.load, snapshot.job_id, snapshot.number)
        if loaded is None or not loaded.usable:
            raise DataLoss(loaded.reason if loaded else "its files are gone")
        return loaded

    async def found_damaged(self, job_id: str, number: int, reason: str) -> None:
        """A restore met no good copy. One that is being collected, or was deleted meanwhile, is left alone."""
        snapshot = await self.known(job_id, number)
        if snapshot is not None:
            await self.mark_damaged(snapshot, reason)

    async def mark_damaged(self, snapshot: Snapshot, reason: str) -> None:
        """Nobody shall use it again, nor what builds on it; the one before it is."""
        await self._damage(snapshot, reason)
        for other in await self.snapshots(snapshot.job_id):
            if snapshot.number in other.bases:
                await self._damage(other, f"it builds on snapshot {snapshot.number}: {reason}")

    async def _damage(self, snapshot: Snapshot, reason: str) -> None:
        entry = self._entries.get(snapshot.job_id, snapshot.number)
        if snapshot.state is not State.COMMITTED or (entry and entry.snapshot.state is State.DAMAGED):
            return
        bad = damaged(entry.snapshot if entry else snapshot, reason)
        if entry:
            entry.become(bad)
        self._meter.ended("damaged")
        self._announce.damaged(bad, reason)
        await self._catalogue.put(replace(bad, stored=None))

    async def delete(self, job_id: str, number: int) -> int:
        """Remove a snapshot, or all of the job's for number 0; returns how many.

        The newest committed one, and what others build on, goes only together with all others.
        """
        if violations := job_violations(job_id):
            raise InvalidArgument("cannot delete snapshots", violations=violations)
        async with self._entries.lock(job_id):
            known = await self.snapshots(job_id)
            good = [s.number for s in known if s.state is State.COMMITTED]
            if number and good and number == good[-1]:
                raise FailedPrecondition(
                    f"snapshot {number} is the newest committed one of job {job_id}, which it restores from",
                    reason="LAST_COMMITTED",
                )
            above = [s.number for s in known if number in s.bases and s.state is State.COMMITTED]
            if above:
                raise FailedPrecondition(f"snapshot {above[0]} of job {job_id} builds on snapshot {number}",
                                         reason="BUILT_ON")
            chosen = [s for s in known if number in (0, s.number)]
            for snapshot in chosen:
                await self._delete(self._entries.get(snapshot.job_id, snapshot.number) or Entry(snapshot))
            if not number:
                await asyncio.to_thread(self._files.delete_job, job_id)
        return len(chosen)

    def _known(self, job_id: str, number: int) -> Entry:
        entry = self._entries.get(job_id, number)
        if entry is None:
            raise NotFound(f"snapshot {number} of job {job_id} was not begun here", reason="UNKNOWN_SNAPSHOT")
        return entry
