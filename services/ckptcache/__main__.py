"""Composition root: the only place where ckptcache's parts are chosen and joined."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from recmesh.runtime.bus import Bus
from recmesh.runtime.clock import system_clock
from recmesh.runtime.lifecycle import Component, main
from recmesh.runtime.priority import step_back
from recmesh.runtime.readiness import Readiness
from recmesh.runtime.rpc import RpcServer, channel
from recmesh.runtime.telemetry import Metrics
from services.ckptcache import ops, rpc
from services.ckptcache.app.checkpoints import Checkpoints
from services.ckptcache.app.entry import Entries
from services.ckptcache.app.figures import Figures
from services.ckptcache.app.flush import NICE, Flusher
from services.ckptcache.app.life import CacheLife
from services.ckptcache.app.ports import Policy
from services.ckptcache.app.recover import Recovery
from services.ckptcache.app.replicas import Replicas
from services.ckptcache.app.replicate import Replicator
from services.ckptcache.app.restore import Restore
from services.ckptcache.config import CkptcacheSettings
from services.ckptcache.events import BusAnnouncements
from services.ckptcache.peers import GrpcPeers
from services.ckptcache.store.catalogue import Catalogue
from services.ckptcache.store.files import SnapshotFiles
from services.ckptcache.store.memory import MemoryTier
from services.ckptcache.store.remote import open_storage
from services.ckptcache.store.replicas import ReplicaShelf

BUCKET = "recmesh_checkpoints"


async def build(env: Mapping[str, str]) -> Sequence[Component]:
    """The components in start order."""
    settings = CkptcacheSettings.from_env(env, "RECMESH_")
    bus = Bus.of(settings, "ckptcache")
    policy = Policy(
        node=settings.node,
        memory_budget_bytes=settings.checkpoint_memory_bytes,
        memory_snapshots=settings.checkpoint_memory_snapshots,
        keep=settings.checkpoint_keep,
        max_age_s=settings.checkpoint_max_age_s,
        replica_budget_bytes=settings.checkpoint_replica_memory_bytes,
        replica_bytes_per_s=settings.checkpoint_replica_bytes_per_s,
    )
    files = SnapshotFiles(open_storage(settings.storage))
    memory = MemoryTier(settings.shared_memory)
    shelf = ReplicaShelf(settings.shared_memory)
    catalogue = Catalogue(bus.kv(BUCKET))
    announce = BusAnnouncements(bus)
    figures = Figures(Metrics("ckptcache"), clock=system_clock)
    threads = settings.checkpoint_flush_threads
    pool = ThreadPoolExecutor(threads, thread_name_prefix="flush", initializer=step_back, initargs=(NICE,))
    entries = Entries()
    peers = GrpcPeers(
        settings.checkpoint_peers, lambda address: channel(address, tls=settings.tls, token=settings.token),
        node=settings.node, clock=system_clock,
    )  # fmt: skip
    replicator = Replicator(peers, memory=memory, policy=policy, meter=figures, clock=system_clock)
    replicas = Replicas(shelf, policy=policy, clock=system_clock)
    flusher = Flusher(
        files=files,
        memory=memory,
        pool=pool,
        policy=policy,
        replicator=replicator,
        announce=announce,
        meter=figures,
        clock=system_clock,
    )
    checkpoints = Checkpoints(
        files=files, memory=memory, catalogue=catalogue, flusher=flusher, entries=entries, announce=announce,
        meter=figures, clock=system_clock, policy=policy,
    )  # fmt: skip
    restore = Restore(
        files=files,
        memory=memory,
        flusher=flusher,
        entries=entries,
        checkpoints=checkpoints,
        shelf=shelf,
        replicator=replicator,
        clock=system_clock,
    )
    servicer = rpc.CheckpointsServicer(
        checkpoints, restore, flusher, files, replicas=replicas, replicator=replicator
    )
    view = ops.View(
        checkpoints, flusher, figures, files,
        replicas=replicas, replicator=replicator, policy=policy, clock=system_clock,
    )  # fmt: skip
    life = CacheLife(
        lambda: Recovery(
            files=files, memory=memory, catalogue=catalogue, flusher=flusher, entries=entries,
            announce=announce, policy=policy, clock=system_clock,
        ),
        entries=entries, flusher=flusher, memory=memory, shelf=shelf, replicas=replicas, replicator=replicator,
        peers=peers, clock=system_clock, pool=pool,
        drain_s=settings.drain_s / 2,
    )  # fmt: skip
    server = RpcServer(
        "rpc", settings.rpc_address, [rpc.register(servicer)],
        tls=settings.tls, token=settings.token, service_names=[rpc.SERVICE_NAME],
    )
    ready = Readiness({}, known=bus.objection, followers=[server])
    return [
        ops.server(settings, view, ready),
        bus,
        life,
        server,
        view.recorder,
        bus.service("ckptcache", ops.release(), "Snapshots in memory and on storage", view.figures),
        ready,
    ]  # fmt: skip


if __name__ == "__main__":
    main("ckptcache", build)
