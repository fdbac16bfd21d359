"""Composition root of jobmaster: the only place where its parts are chosen and joined."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import Mapping, Sequence

import grpc

from recmesh.data.topics import NATS_TOKEN, NATS_URL
from recmesh.runtime.bus import Bus
from recmesh.runtime.clock import system_clock
from recmesh.runtime.lifecycle import Component, Loop, main
from recmesh.runtime.readiness import Readiness
from recmesh.runtime.rpc import RpcServer, channel
from recmesh.spec.dataset import TOPIC_VARIABLES
from services.jobmaster import events, ops, rpc
from services.jobmaster.app.context import Addresses, Context
from services.jobmaster.app.jobs import Jobs
from services.jobmaster.app.leader import Leadership
from services.jobmaster.app.roles import Roles
from services.jobmaster.cluster.accelerators import accelerators
from services.jobmaster.cluster.local import LocalController
from services.jobmaster.config import JobmasterSettings
from services.jobmaster.peers import Peers
from services.jobmaster.peers.brain import GrpcBrain
from services.jobmaster.peers.mesh import GrpcCheckpoints, GrpcModels, GrpcServers, GrpcShards
from services.jobmaster.store import BUCKET, LEADER_BUCKET, JobStore

KEPT_VARIABLES = ("RECMESH_TLS_", "RECMESH_OTLP_", "RECMESH_LOG_", "RECMESH_CHAOS")
"""Of the mesh's own variables, roles get only these; the others hold secrets and addresses of services."""


def role_environment(env: Mapping[str, str], settings: JobmasterSettings) -> dict[str, str]:
    """What every role's process inherits: the machine's environment without the mesh's own settings."""
    kept = {
        name: value for name, value in env.items()
        if not name.startswith("RECMESH_") or name.startswith(KEPT_VARIABLES)
    }
    if settings.token:
        kept["RECMESH_TOKEN"] = settings.token
    if settings.shm_dir is not None:
        kept["RECMESH_SHM_DIR"] = str(settings.shm_dir)
    return kept


class Cluster:
    """The local controller's life: finds processes at the start, leaves them running at the end."""

    name = "cluster"

    def __init__(self, controller: LocalController) -> None:
        self._controller = controller

    async def start(self) -> None:
        """Finds what earlier jobmasters left."""
        await self._controller.find_again()

    async def stop(self) -> None:
        """Stops looking."""
        await self._controller.stop_watching()


class Leading:
    """The leadership's loop; its start waits a moment, so that a single jobmaster is ready when it leads."""

    name = "leadership"

    def __init__(self, leadership: Leadership, jobs: Jobs) -> None:
        self._leadership, self._jobs = leadership, jobs
        self._loop = Loop("leadership", leadership.step)

    async def start(self) -> None:
        """Begins to try."""
        await self._loop.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self._jobs.led.wait()

    async def stop(self) -> None:
        """Lets go of the jobs, whose processes go on, and of the lease."""
        await self._loop.stop()
        await self._leadership.resign()


class Channels:
    """Closes what calls go out by."""

    name = "channels"

    def __init__(self, channels: Sequence[grpc.aio.Channel], servers: GrpcServers) -> None:
        self._channels, self._servers = channels, servers

    async def start(self) -> None:
        """Channels connect when they are first used."""

    async def stop(self) -> None:
        """Closes them all."""
        await self._servers.close()
        for item in self._channels:
            await item.close(grace=None)


async def build(env: Mapping[str, str]) -> Sequence[Component]:
    """The components in start order."""
    settings = JobmasterSettings.from_env(env, "RECMESH_")
    bus = Bus.of(settings, "jobmaster")

    def connect(address: str) -> grpc.aio.Channel:
        return channel(address, tls=settings.tls, token=settings.token)

    shardsvc, ckptcache, brain, gateway = map(
        connect, (settings.shardsvc, settings.ckptcache, settings.brain, settings.gateway)
    )
    servers = GrpcServers(connect, ckptcache=settings.ckptcache)
    controller = LocalController(
        settings.data_dir.absolute(), cores=settings.cores, gpus=settings.accelerators or accelerators()
    )
    context = Context(
        store=JobStore(bus.kv(BUCKET)),
        peers=Peers(
            GrpcShards(shardsvc), GrpcCheckpoints(ckptcache), servers, GrpcBrain(brain), GrpcModels(gateway)
        ),
        cluster=controller,
        clock=system_clock,
        rng=random.Random(),
        publish=bus.publish,
        addresses=Addresses(
            lambda: settings.jobmaster or server.address, settings.shardsvc, settings.ckptcache
        ),
        storage_uri=settings.storage,
        limits=settings.limits,
        role_env=role_environment(env, settings),
        topics_env={name: value for name, value in env.items() if name.startswith(TOPIC_VARIABLES)},
        mesh_topics_env={name: env[name] for name in (NATS_URL, NATS_TOKEN) if env.get(name)},
        lease_ttl_s=settings.lease_ttl_s,
        max_live_jobs=settings.max_live_jobs,
    )
    jobs = Jobs(context)
    leases = bus.kv(LEADER_BUCKET, ttl_s=settings.leader_ttl_s)
    leadership = Leadership(
        jobs, leases, clock=system_clock, ttl_s=settings.leader_ttl_s, identity=uuid.uuid4().hex
    )
    server = RpcServer(
        "rpc", settings.rpc_address,
        rpc.registrations(
            rpc.JobsServicer(jobs), rpc.RunsServicer(Roles(jobs), now=system_clock.now)
        ),
        tls=settings.tls, token=settings.token, service_names=rpc.SERVICE_NAMES,
    )
    micro = bus.service("jobmaster", ops.release(), "The life of training jobs", lambda: ops.figures(jobs))
    charts = ops.recorder(jobs)
    ready = Readiness({}, known=bus.objection, followers=[server])
    return [
        bus,
        Channels([shardsvc, ckptcache, brain, gateway], servers),
        Cluster(controller),
        server,
        Leading(leadership, jobs),
        events.consumer(bus, jobs),
        micro,
        charts,
        ops.server(settings, jobs, bus, charts),
        ready,
    ]


if __name__ == "__main__":
    main("jobmaster", build)
