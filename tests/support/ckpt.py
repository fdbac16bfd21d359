"""A ckptcache without its wires, and parts to hand to it."""

import asyncio
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from recmesh.runtime.clock import Clock, system_clock
from services.ckptcache.app.checkpoints import Checkpoints
from services.ckptcache.app.entry import Entries
from services.ckptcache.app.flush import Flusher
from services.ckptcache.app.ports import Peer, Peers, Policy
from services.ckptcache.app.recover import Recovered, Recovery
from services.ckptcache.app.replicas import Replicas
from services.ckptcache.app.replicate import Replicator
from services.ckptcache.app.restore import Restore
from services.ckptcache.domain.parts import Part, PartFile
from services.ckptcache.domain.snapshot import Snapshot, State
from services.ckptcache.store.catalogue import Catalogue
from services.ckptcache.store.files import SnapshotFiles
from services.ckptcache.store.local import LocalStorage
from services.ckptcache.store.memory import MemoryTier
from services.ckptcache.store.replicas import ReplicaShelf
from services.ckptcache.store.storage import Storage

_names = itertools.count()


@dataclass(frozen=True)
class KvEntry:
    value: bytes
    revision: int = 1


class FakeKv:
    """KV in a dict."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    async def get(self, key: str) -> KvEntry | None:
        value = self.held.get(key)
        return None if value is None else KvEntry(value)

    async def put(self, key: str, value: bytes) -> int:
        self.held[key] = value
        return 1

    async def delete(self, key: str) -> None:
        self.held.pop(key, None)

    async def entries(self, prefix: str = "") -> list[KvEntry]:
        return [KvEntry(self.held[key]) for key in sorted(self.held) if key.startswith(prefix)]


@dataclass
class Told:
    """What was announced and measured."""

    stored_numbers: list[int] = field(default_factory=list)
    damaged_numbers: list[int] = field(default_factory=list)
    bytes_written: int = 0
    memory_bytes: int = 0
    bytes_replicated: int = 0

    def stored(self, snapshot: Snapshot, *, took_s: float) -> None:
        self.stored_numbers.append(snapshot.number)

    def damaged(self, snapshot: Snapshot, reason: str) -> None:
        self.damaged_numbers.append(snapshot.number)

    def written(self, size_bytes: int) -> None:
        self.bytes_written += size_bytes

    def flushed(self, *, seconds: float, size_bytes: int) -> None:
        del seconds, size_bytes

    def memory(self, size_bytes: int) -> None:
        self.memory_bytes = size_bytes

    def replicated(self, size_bytes: int) -> None:
        self.bytes_replicated += size_bytes

    def ended(self, state: str) -> None:
        del state


class NoPeers:
    """A node alone."""

    configured: Sequence[str] = ()

    async def all(self) -> Sequence[Peer]:
        return []

    async def close(self) -> None:
        """Nothing is open."""


def part(ps: int, contents: dict[str, bytes]) -> tuple[Part, bytes]:
    """A part with these files, and its bytes in memory (with a gap between files, as a PS may leave)."""
    files, blob = [], b""
    for name, data in contents.items():
        blob += b"\xee" * 3
        files.append(PartFile(name, len(blob), len(data), hashlib.sha256(data).hexdigest()))
        blob += data
    return Part(ps, tuple(files), json.dumps({"ps": ps})), blob


class Node:
    """One machine's ckptcache over a folder; `again()` is what is left after a kill -9."""

    def __init__(
        self,
        folder: Path,
        *,
        storage: Storage | None = None,
        kv: FakeKv | None = None,
        clock: Clock = system_clock,
        memory_budget_bytes: int = 1 << 30,
        memory_snapshots: int = 2,
        keep: int = 3,
        name: str = "node",
        peers: Peers | None = None,
        replica_budget_bytes: int = 1 << 30,
    ) -> None:
        self.folder, self.kv, self.clock, self.told = folder, kv or FakeKv(), clock, Told()
        self.shm = folder / "shm"
        self.shm.mkdir(exist_ok=True)
        self.policy = Policy(
            node=name,
            memory_budget_bytes=memory_budget_bytes,
            memory_snapshots=memory_snapshots,
            keep=keep,
            restore_grace_s=0.0,
            replica_budget_bytes=replica_budget_bytes,
        )
        self.storage = storage or LocalStorage(folder / "storage")
        self.files = SnapshotFiles(self.storage)
        self.memory = MemoryTier(self.shm)
        self.catalogue = Catalogue(self.kv)
        self.entries = Entries()
        self.pool = ThreadPoolExecutor(2)
        self.shelf = ReplicaShelf(self.shm)
        self.peers = peers or NoPeers()
        self.replicator = Replicator(self.peers, memory=self.memory, policy=self.policy, meter=self.told, clock=clock)
        self.replicas = Replicas(self.shelf, policy=self.policy, clock=clock)
        self.flusher = Flusher(
            files=self.files,
            memory=self.memory,
            pool=self.pool,
            policy=self.policy,
            replicator=self.replicator,
            announce=self.told,
            meter=self.told,
            clock=clock,
        )
        self.app = Checkpoints(
            files=self.files,
            memory=self.memory,
            catalogue=self.catalogue,
            flusher=self.flusher,
            entries=self.entries,
            announce=self.told,
            meter=self.told,
            clock=clock,
            policy=self.policy,
        )
        self.restore = Restore(
            files=self.files,
            memory=self.memory,
            flusher=self.flusher,
            entries=self.entries,
            checkpoints=self.app,
            shelf=self.shelf,
            replicator=self.replicator,
            clock=clock,
        )

    def again(self, *, memory_budget_bytes: int = 1 << 30, memory_snapshots: int = 2) -> "Node":
        """A new process over the same folder and catalogue."""
        return Node(
            self.folder, storage=self.storage, kv=self.kv, clock=self.clock, name=self.policy.node,
            peers=self.peers, memory_budget_bytes=memory_budget_bytes, memory_snapshots=memory_snapshots,
        )  # fmt: skip

    async def recover(self) -> Recovered:
        return await Recovery(
            files=self.files,
            memory=self.memory,
            catalogue=self.catalogue,
            flusher=self.flusher,
            entries=self.entries,
            announce=self.told,
            policy=self.policy,
            clock=self.clock,
        ).run()

    def put_in_shm(self, blob: bytes) -> str:
        """What a PS does before it calls StorePart."""
        path = self.shm / f"part-{next(_names)}"
        path.write_bytes(blob)
        return str(path)

    async def store(self, job_id: str, number: int, what: tuple[Part, bytes], *, gen: int = 1) -> None:
        value, blob = what
        await self.app.store_part(
            job_id, number, gen=gen, part=value, shm_path=self.put_in_shm(blob), size_bytes=len(blob)
        )

    async def stored(self, job_id: str, number: int, *parts: tuple[Part, bytes], gen: int = 1) -> Snapshot:
        """Begin, hand over, and wait until it is on storage."""
        await self.app.begin(job_id, number, gen=gen, ps=[value.ps for value, _ in parts])
        for each in parts:
            await self.store(job_id, number, each, gen=gen)
        found = await self.app.wait(job_id, number, wait_s=30)
        assert found is not None
        return found

    async def committed(
        self, job_id: str, number: int, *parts: tuple[Part, bytes], keep: int = 0
    ) -> Snapshot:
        await self.stored(job_id, number, *parts)
        found, _ = await self.app.commit(job_id, number, gen=1, manifest_json="{}", keep=keep)
        await self.quiet()
        assert found.state is State.COMMITTED
        return found

    async def quiet(self) -> None:
        """Until retention and cleaning have nothing left to do."""
        while self.app._retiring:
            await asyncio.wait(set(self.app._retiring))
        await self.flusher.settled()


class GatedStorage(LocalStorage):
    """Holds, or breaks, each write whose path contains a word."""

    def __init__(self, root: Path, *, word: str, before: Callable[[], None]) -> None:
        super().__init__(root)
        self._word, self._before = word, before

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        if self._word in path:
            self._before()
        super().write(path, chunks)
