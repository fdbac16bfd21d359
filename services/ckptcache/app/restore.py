"""Handing stored parts out: where one is nearest, or its bytes."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass, replace

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, Violation
from services.ckptcache.app.checkpoints import Checkpoints
from services.ckptcache.app.entry import Entries
from services.ckptcache.app.flush import Flusher
from services.ckptcache.app.ports import Peer
from services.ckptcache.app.replicate import Replicator
from services.ckptcache.domain.parts import (
    RECEIPT,
    Part,
    PartFile,
    packed,
    parse_part_path,
    part_folder,
    snapshot_folder,
)
from services.ckptcache.domain.snapshot import State
from services.ckptcache.store.files import SnapshotFiles, verified
from services.ckptcache.store.memory import MemoryTier, read_range
from services.ckptcache.store.replicas import Key, ReplicaShelf
from services.ckptcache.store.storage import path_of

log = logging.getLogger(__name__)

MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Located:
    """The nearest copy of a part.

    tier "memory": `path` is one file that holds all, each at its offset. tier "peer": another node's
    memory has it (use FetchPart). tier "storage": `path` is a folder with a file for each, at offset 0;
    empty when it is not on this machine (use FetchPart).
    """

    tier: str
    path: str
    part: Part


class Restore:
    """Reads; it changes nothing but what it finds damaged."""

    def __init__(
        self,
        *,
        files: SnapshotFiles,
        memory: MemoryTier,
        flusher: Flusher,
        entries: Entries,
        checkpoints: Checkpoints,
        shelf: ReplicaShelf,
        replicator: Replicator,
        clock: Clock,
    ) -> None:
        self._shelf, self._replicator = shelf, replicator
        self._files, self._memory, self._flusher, self._entries = files, memory, flusher, entries
        self._checkpoints, self._clock = checkpoints, clock

    async def locate(self, part_uri: str) -> Located:
        """Memory of this node first, then a peer's, then storage."""
        job_id, number, ps = self.parsed(part_uri)
        self._check_usable(job_id, number)
        held = await self._in_memory((job_id, number, ps))
        if held is not None:
            return held
        found = await self._replicator.find(part_uri)
        if found is not None:
            return Located("peer", "", replace(found[1], files=_flat(found[1].files)))
        part = await self._stored(job_id, number, ps)
        folder = self._files.storage.local_path(f"{snapshot_folder(job_id, number)}/{part_folder(ps)}")
        return Located("storage", str(folder or ""), replace(part, files=_flat(part.files)))

    async def fetch(
        self, part_uri: str, file_name: str = "", *, storage_only: bool = False
    ) -> tuple[Part, AsyncIterator[bytes]]:
        """A part's layout as it is sent, and its bytes: of one file, or of all, one behind the other.

        A peer's bytes pass through as they are: who gets them has their checksums, and may ask again for
        those on storage only.
        """
        job_id, number, ps = self.parsed(part_uri)
        self._check_usable(job_id, number)
        held = await self._in_memory((job_id, number, ps))
        found = None if held or storage_only else await self._replicator.find(part_uri)
        part = held.part if held else found[1] if found else await self._stored(job_id, number, ps)
        chosen = part.files
        if file_name:
            file = part.file(file_name)
            if file is None:
                raise NotFound(f"{part_uri} has no file {file_name!r}")
            chosen = (file,)
        layout = packed(replace(part, files=chosen))
        if found is not None:
            return layout, _of_peer(found[0], part_uri, chosen)
        return layout, self._bytes(job_id, number, ps, chosen)

    async def _in_memory(self, key: Key) -> Located | None:
        """This node's copy, when what it is can be told."""
        layout, path, held = self._flusher.layout(*key), self._memory.path(*key), self._shelf.get(key)
        if layout is not None and path.exists():
            if layout.document:
                return Located("memory", str(path), layout)
            try:
                document = await asyncio.to_thread(self._files.part_document, *key)
                return Located("memory", str(path), replace(layout, document=document))
            except DataLoss as error:
                log.warning("the copy of %s in memory is not used: %s", path.name, error)
        if held is not None and held.path.exists():
            return Located("memory", str(held.path), held.part)
        return None

    async def _bytes(self, job_id: str, number: int, ps: int, files: tuple[PartFile, ...]) -> AsyncIterator[bytes]:
        for file in files:
            chunks = await asyncio.to_thread(self._source, job_id, number, ps, file)
            try:
                while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                    for start in range(0, len(chunk), MESSAGE_BYTES):
                        yield chunk[start : start + MESSAGE_BYTES]
            except DataLoss as error:
                await self._checkpoints.found_damaged(job_id, number, str(error))
                raise
            finally:
                with contextlib.suppress(ValueError):  # a thread is still in it when the call was cancelled
                    chunks.close()

    def _source(self, job_id: str, number: int, ps: int, file: PartFile) -> Generator[bytes]:
        """Memory if its bytes are still what was handed over, else storage, hashed on the way."""
        shelved = self._shelf.get((job_id, number, ps))
        layout = self._flusher.layout(job_id, number, ps) or (shelved.part if shelved else None)
        held = layout.file(file.name) if layout is not None else None
        if held is not None:
            own = self._memory.path(job_id, number, ps)
            path = shelved.path if shelved and not own.exists() else own
            try:
                for _ in verified(held, read_range(path, held.offset, held.size_bytes)):
                    pass
                return read_range(path, held.offset, held.size_bytes)
            except (DataLoss, NotFound) as error:
                log.warning("the copy of %s in memory is not used: %s", file.name, error)
        return self._files.read_file(job_id, number, ps, file)

    async def _stored(self, job_id: str, number: int, ps: int) -> Part:
        """What storage has, the last place to look: a snapshot that lacks it is damaged. NotFound: no such part."""
        try:
            part = await asyncio.to_thread(self._files.receipt, job_id, number, ps)
            if part is None:
                known = await self._checkpoints.known(job_id, number)
                if known is None or known.state is not State.COMMITTED or ps not in known.expected:
                    raise NotFound(f"snapshot {number} of job {job_id} has no complete part of ps {ps}")
                folder = f"{snapshot_folder(job_id, number)}/{part_folder(ps)}"
                raise DataLoss(f"{folder}/{RECEIPT} is gone or damaged")
            document = await asyncio.to_thread(self._files.part_document, job_id, number, ps)
        except DataLoss as error:
            await self._checkpoints.found_damaged(job_id, number, str(error))
            raise
        return replace(part, document=document)

    def _check_usable(self, job_id: str, number: int) -> None:
        entry = self._entries.get(job_id, number)
        if entry is None:
            return  # another replica's; its receipts speak for it
        if entry.snapshot.state is State.DAMAGED:
            raise DataLoss(f"{entry.snapshot.name} is damaged: {entry.snapshot.reason}")
        if not entry.snapshot.usable:
            raise FailedPrecondition(f"{entry.snapshot.name} is {entry.snapshot.state}", reason="WRONG_STATE")
        entry.last_read = self._clock.now()

    def parsed(self, part_uri: str) -> Key:
        """(job, snapshot, ps); InvalidArgument when it is no part below the storage's root."""
        path = path_of(self._files.storage, part_uri)
        found = parse_part_path(path) if path else None
        if found is None:
            reason = f"{part_uri!r} is not a part below {self._files.storage.uri}/checkpoints"
            raise InvalidArgument("cannot find the part", violations=[Violation("part_uri", reason)])
        return found


def _flat(files: tuple[PartFile, ...]) -> tuple[PartFile, ...]:
    """Each at the start of a file of its own."""
    return tuple(replace(file, offset=0) for file in files)


async def _of_peer(peer: Peer, part_uri: str, files: tuple[PartFile, ...]) -> AsyncIterator[bytes]:
    for file in files:
        async for chunk in peer.fetch(part_uri, file.name):
            yield chunk
