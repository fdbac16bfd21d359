"""Copies of this node's parts in a peer's memory: sent behind everybody's back, and found again."""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError, NotFound
from services.ckptcache.app.entry import in_background
from services.ckptcache.app.ports import Meter, Peer, Peers, Policy
from services.ckptcache.domain.parts import Part, packed
from services.ckptcache.store.memory import MemoryTier, read_range

log = logging.getLogger(__name__)

QUEUED = 64
"""Parts that wait; of more the oldest goes without a copy."""
LEAST_BYTES_PER_S = 4 << 20
GRACE_S = 30.0
ASK_S = 2.0
"""A peer that does not answer by then is passed over: storage is there too."""
MESSAGE_BYTES = 1 << 20


class _Item(NamedTuple):
    job_id: str
    number: int
    gen: int
    part: Part


class Replicator:
    """One part at a time goes to one peer, at a bounded rate. Nothing waits for it, and its failure is a log line."""

    def __init__(
        self, peers: Peers, *, memory: MemoryTier, policy: Policy, meter: Meter, clock: Clock,
    ) -> None:  # fmt: skip
        self._peers, self._memory, self._policy = peers, memory, policy
        self._meter, self._clock = meter, clock
        self._waiting: list[_Item] = []
        self._under_way: _Item | None = None
        """None also once its snapshot is forgotten: then nobody wants the copy."""
        self._sending: asyncio.Task[None] | None = None
        self._dropping: set[asyncio.Task[None]] = set()
        self._where: dict[tuple[str, int], set[str]] = {}

    def offer(self, job_id: str, number: int, *, gen: int, part: Part) -> None:
        """A part lies in memory here."""
        if not self._peers.configured:
            return
        self._waiting.append(_Item(job_id, number, gen, part))
        if len(self._waiting) > QUEUED:
            late = self._waiting.pop(0)
            log.warning("no copy of snapshot %d of job %s at a peer: too many wait", late.number, late.job_id)
        if self._sending is None or self._sending.done():
            self._sending = in_background(self._send_all(), name="replicate")

    def holders(self, job_id: str, number: int) -> Sequence[str]:
        """Peers that are known to have parts of the snapshot."""
        return sorted(self._where.get((job_id, number), ()))

    def forget(self, job_id: str, number: int) -> None:
        """The snapshot is deleted or failed, or all of the job's for number 0: so are its copies."""
        self._waiting = [item for item in self._waiting if (item.job_id, number) != (job_id, number or item.number)]
        sent = self._under_way
        if sent is not None and (sent.job_id, number or sent.number) == (job_id, sent.number):
            self._under_way = None
        keys = [key for key in self._where if key[0] == job_id and number in (0, key[1])]
        where = {address for key in keys for address in self._where.pop(key)}
        if where or (not number and self._peers.configured):
            task = in_background(self._drop(job_id, number, where), name=f"drop copies of {job_id}")
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def find(self, part_uri: str) -> "tuple[Peer, Part] | None":
        """The first peer that answers that it has a copy; None when nobody does in time."""
        if not self._peers.configured:
            return None
        try:
            asked = [asyncio.ensure_future(_ask(peer, part_uri)) for peer in await self._peers.all()]
        except MeshError:
            return None
        try:
            for answer in asyncio.as_completed(asked, timeout=ASK_S):
                found = await answer
                if found is not None:
                    return found
        except TimeoutError:
            log.warning("not every peer has said whether it has %s", part_uri)
        finally:
            for task in asked:
                task.cancel()
        return None

    async def stop(self) -> None:
        """Give up what is under way; copies are a help, not a promise."""
        tasks = [task for task in (self._sending, *self._dropping) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_all(self) -> None:
        while self._waiting:
            item = self._under_way = self._waiting.pop(0)
            try:
                await self._send(item)
            except MeshError as error:
                log.warning("no copy of snapshot %d of job %s at a peer: %s", item.number, item.job_id, error)
            except Exception:
                log.exception("copying snapshot %d of job %s to a peer", item.number, item.job_id)

    async def _send(self, item: _Item) -> None:
        error: MeshError = NotFound("no peer is known")
        for peer in _in_order(await self._peers.all(), item.job_id):
            if self._under_way is not item:
                return
            try:
                timeout_s = GRACE_S + item.part.size_bytes / min(
                    LEAST_BYTES_PER_S, self._policy.replica_bytes_per_s or LEAST_BYTES_PER_S)
                await peer.hold(item.job_id, item.number, item.gen, packed(item.part), self._bytes(item),
                                timeout_s=timeout_s)
            except MeshError as refused:
                error = refused
                continue
            if self._under_way is not item:
                await peer.drop(item.job_id, item.number)
                return
            self._where.setdefault((item.job_id, item.number), set()).add(peer.address)
            self._meter.replicated(item.part.size_bytes)
            return
        raise error

    async def _bytes(self, item: _Item) -> AsyncIterator[bytes]:
        """The part's files from memory, not faster than allowed; NotFound when the copy there is gone."""
        path = self._memory.path(item.job_id, item.number, item.part.ps)
        began, sent = self._clock.monotonic(), 0
        for file in item.part.files:
            chunks = read_range(path, file.offset, file.size_bytes)
            while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                for start in range(0, len(chunk), MESSAGE_BYTES):
                    yield chunk[start : start + MESSAGE_BYTES]
                sent += len(chunk)
                if self._policy.replica_bytes_per_s:
                    due_s = sent / self._policy.replica_bytes_per_s
                    await self._clock.sleep(max(0.0, began + due_s - self._clock.monotonic()))

    async def _drop(self, job_id: str, number: int, where: set[str]) -> None:
        """Of a whole job at every peer: where its copies are is not known any more after a restart."""
        for peer in await self._peers.all():
            if peer.address in where or not number:
                try:
                    await peer.drop(job_id, number)
                except MeshError as error:
                    log.info("%s still holds copies of job %s: %s", peer.address, job_id, error)


async def _ask(peer: Peer, part_uri: str) -> "tuple[Peer, Part] | None":
    try:
        return peer, await peer.locate(part_uri, timeout_s=ASK_S)
    except MeshError:
        return None


def _in_order(peers: Sequence[Peer], job_id: str) -> list[Peer]:
    """Rendezvous hashing: each job has a first peer, another when that is away, and jobs spread over all."""
    return sorted(peers, key=lambda peer: hashlib.sha256(f"{job_id} {peer.address}".encode()).digest())
