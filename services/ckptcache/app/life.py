"""The cache's own start and stop."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from recmesh.runtime.clock import Clock
from recmesh.runtime.lifecycle import Loop
from services.ckptcache.app.entry import Entries
from services.ckptcache.app.flush import Flusher
from services.ckptcache.app.ports import Peers
from services.ckptcache.app.recover import Recovered, Recovery
from services.ckptcache.app.replicas import Replicas
from services.ckptcache.app.replicate import Replicator
from services.ckptcache.store.memory import MemoryTier
from services.ckptcache.store.replicas import ReplicaShelf

SWEEP_EVERY_S = 20.0

log = logging.getLogger(__name__)


class CacheLife:
    """Recovers before any call is answered; lets parts under way reach storage before the end."""

    name = "snapshots"

    def __init__(
        self,
        recovery: Callable[[], Recovery],
        *,
        entries: Entries,
        flusher: Flusher,
        memory: MemoryTier,
        shelf: ReplicaShelf,
        replicas: Replicas,
        replicator: Replicator,
        peers: Peers,
        clock: Clock,
        pool: ThreadPoolExecutor,
        drain_s: float,
    ) -> None:
        self._recovery, self._entries, self._flusher = recovery, entries, flusher
        self._memory, self._clock = memory, clock
        self._shelf, self._replicas, self._replicator, self._peers = shelf, replicas, replicator, peers
        self._sweeping = Loop("sweep", self._sweep, clock=clock)
        self._pool, self._drain_s = pool, drain_s
        self.recovered: Recovered | None = None

    async def start(self) -> None:
        """Rebuild entries and catalogue from storage."""
        self.recovered = await self._recovery().run()
        held = await asyncio.to_thread(self._shelf.recover)
        if held:
            log.info("%d copies of other nodes' parts are here", held)
        log.info("recovered: %s", self.recovered)
        await self._sweeping.start()

    async def _sweep(self) -> float:
        removed = await asyncio.to_thread(self._memory.sweep, now=self._clock.now())
        if removed:
            log.warning("removed %d parts whose parameter servers ended before they were handed over", removed)
        self._replicas.sweep()
        return SWEEP_EVERY_S

    async def stop(self) -> None:
        """Wait for parts that are being written, at most `drain_s`; then give their snapshots up."""
        await self._sweeping.stop()
        await self._replicator.stop()
        await self._peers.close()
        writing = {task for entry in self._entries.of_job("") for task in entry.writing.values()}
        if writing:
            await asyncio.wait(writing, timeout=self._drain_s)
        for entry in self._entries.of_job(""):
            if entry.writing:
                entry.cancelled.set()
        await self._flusher.settled()
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)
