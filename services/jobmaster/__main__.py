"""Composition root of jobmaster: the only place where its parts are chosen and joined."""

import asyncio
import contextlib
import random
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from recmesh.data.topics import NATS_TOKEN, NATS_URL
from recmesh.runtime.bus import Bus
from recmesh.runtime.clock import lease_clock, system_clock
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.lifecycle import Component, Loop, main
from recmesh.runtime.readiness import Readiness
from recmesh.runtime.rpc import RpcServer, channel
from recmesh.runtime.variables import PREFIX, complaint, unknown
from recmesh.spec.dataset import TOPIC_VARIABLES
from services.jobmaster import events, ops, rpc
from services.jobmaster.app.context import Addresses, Context
from services.jobmaster.app.fence import Fence
from services.jobmaster.app.jobs import Jobs
from services.jobmaster.app.roles import Roles
from services.jobmaster.app.sharing import Sharing
from services.jobmaster.app.tracking import Tracking
from services.jobmaster.cluster import Controller
from services.jobmaster.cluster.accelerators import accelerators
from services.jobmaster.cluster.fenced import FencedController
from services.jobmaster.cluster.local import FORK_COMMAND, LocalController
from services.jobmaster.cluster.plugged import Place, options, plugged
from services.jobmaster.cluster.several import Member, SeveralClusters
from services.jobmaster.config import JobmasterSettings
from services.jobmaster.peers import Peers
from services.jobmaster.peers.brain import GrpcBrain
from services.jobmaster.peers.mesh import GrpcCheckpoints, GrpcModels, GrpcServers, GrpcShards
from services.jobmaster.peers.tracking import Tracker
from services.jobmaster.store import BUCKET, LEADER_BUCKET, JobStore

if TYPE_CHECKING:
    from recmesh.runtime.kube import KubeClient
    from recmesh.runtime.yarn.client import YarnClient

KEPT_VARIABLES = ("RECMESH_TLS_", "RECMESH_OTLP_", "RECMESH_LOG_", "RECMESH_CHAOS")
"""Of the mesh's own variables, roles get only these; the others hold secrets and addresses of services."""


def role_environment(env: Mapping[str, str], settings: JobmasterSettings) -> dict[str, str]:
    """What every role's process inherits: the machine's environment (elsewhere: that of the image or node), without the
    mesh's own settings."""
    elsewhere = settings.jobmaster_cluster != "local"
    kept = {
        name: value for name, value in env.items()
        if name.startswith(KEPT_VARIABLES) or not (elsewhere or name.startswith("RECMESH_"))
    }
    if not elsewhere:       # roles have folders of their own, from which relative paths lead elsewhere
        kept |= {
            name: str(Path(env[name]).absolute())
            for name in ("RECMESH_TLS_CERT", "RECMESH_TLS_KEY", "RECMESH_TLS_CA") if env.get(name)
        }
    if settings.token:
        kept["RECMESH_TOKEN"] = settings.token
    if settings.shm_dir is not None and not elsewhere:
        kept["RECMESH_SHM_DIR"] = str(settings.shm_dir)
    return kept


TRIM_LOGS_EVERY_S = 60.0
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Cluster:
    """The controller's life: finds processes at the start, leaves them running at the end."""

    name = "cluster"

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def start(self) -> None:
        """Finds what earlier jobmasters left."""
        await self._controller.find_again()

    async def stop(self) -> None:
        """Stops looking."""
        await self._controller.stop_watching()


class ApiServer:
    """Ends the connections to a cluster's API."""

    name = "api server"

    def __init__(self, client: "KubeClient | YarnClient") -> None:
        self._client = client

    async def start(self) -> None:
        """Connections are made when they are first used."""

    async def stop(self) -> None:
        """Closes them all."""
        await self._client.close()


def own_namespace() -> str:
    """The one that this pod runs in."""
    return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else "default"


async def namespace_of_objects(settings: JobmasterSettings) -> str:
    """The mesh's own; empty where jobs are no objects."""
    if settings.jobmaster_objects == "store":
        return ""
    return settings.kube_namespace or await asyncio.to_thread(own_namespace)


# Kubernetes' client takes a second to import, so that it is imported only where it is used.


async def kubernetes(settings: JobmasterSettings) -> "KubeClient | None":
    """The API server, where pods or objects are in it."""
    if "kubernetes" not in (settings.jobmaster_cluster, settings.jobmaster_objects):
        return None
    from recmesh.runtime.kube import Access, connect

    return await connect(
        Access(settings.kube_config, settings.kube_context), field_manager="recmesh-jobmaster",
        calls_per_s=settings.kube_calls_per_s, burst=max(1.0, 2 * settings.kube_calls_per_s),
    )


async def cluster(
    settings: JobmasterSettings, kube: "KubeClient | None", yarn: "YarnClient | None", own: Mapping[str, str]
) -> Controller:
    """Where roles run."""
    if settings.jobmaster_cluster == "local":
        gpus = settings.accelerators or accelerators()
        return LocalController(
            settings.data_dir.absolute(), cores=settings.cores, gpus=gpus, fork_command=FORK_COMMAND
        )
    if yarn is not None:
        return await yarn_cluster(settings, yarn)
    if settings.jobmaster_cluster != "kubernetes" or kube is None:
        return plugged(settings.jobmaster_cluster, Place(settings.data_dir.absolute(), settings.storage, own))
    from services.jobmaster.cluster.kubernetes import KubernetesController, PodSettings
    from services.jobmaster.cluster.kubernetes.groups import SCHEDULERS

    return KubernetesController(kube, PodSettings(
        namespace=settings.kube_namespace or await asyncio.to_thread(own_namespace), image=settings.kube_image,
        images={str(role): image for role, image in settings.kube_images.items()},
        service_account=settings.kube_service_account, user=settings.kube_user, grace_s=settings.kube_grace_s,
        gpus=settings.kube_gpus, resize_wait_s=settings.kube_resize_s, scheduler=settings.kube_scheduler,
        schedulers={**SCHEDULERS, **settings.kube_gang_schedulers},
        storage_claim=settings.kube_storage_claim, storage_path=settings.storage if settings.kube_storage_claim else "",
        tls_secret=settings.kube_tls_secret,
    ))  # fmt: skip


def yarn_client(settings: JobmasterSettings) -> "YarnClient | None":
    """YARN, where containers of it are used."""
    if settings.jobmaster_cluster != "yarn":
        return None
    from recmesh.runtime.yarn.client import YarnClient

    rate = settings.yarn_calls_per_s
    urls = [url.strip() for url in settings.yarn_url.split(",") if url.strip()]
    return YarnClient(urls, user=settings.yarn_user, calls_per_s=rate, burst=max(1.0, 2 * rate))


async def yarn_cluster(settings: JobmasterSettings, client: "YarnClient") -> Controller:
    """Roles in YARN's containers."""
    from recmesh.runtime.yarn.board import Board
    from services.jobmaster.cluster.yarn import YarnController, YarnSettings

    board = await asyncio.to_thread(Board, settings.yarn_folder or f"{settings.storage.rstrip('/')}/yarn")
    return YarnController(client, board, YarnSettings(
        prefix=settings.yarn_prefix, queue=settings.yarn_queue, python=settings.yarn_python, cpus=settings.yarn_cpus,
        memory_bytes=settings.yarn_memory_bytes, gpus=settings.yarn_gpus, properties=settings.yarn_properties,
        look_s=settings.yarn_look_s,
    ))  # fmt: skip


async def several(settings: JobmasterSettings, env: Mapping[str, str]) -> tuple[Controller, list[Component]]:
    """All clusters, made one, and what ends their connections. InvalidArgument names the cluster that cannot be had."""
    members, clients = [], []
    for entry in settings.clusters:
        own = {
            **env, **{f"RECMESH_{name}": value for name, value in entry.settings.items()}, "RECMESH_CLUSTERS": "",
            "RECMESH_JOBMASTER_CLUSTER": entry.kind, "RECMESH_JOBMASTER_OBJECTS": "store",
        }
        try:
            each = JobmasterSettings.from_env(own, "RECMESH_")
            check(each)
            kube, yarn = await kubernetes(each), yarn_client(each)
            controller = await cluster(each, kube, yarn, options(own))
        except InvalidArgument as error:
            raise InvalidArgument(
                f"cluster {entry.name}: {error.message}", reason=error.reason, violations=error.violations
            ) from error
        clients += [client for client in (kube, yarn) if client is not None]
        here = role_environment(own, each) if entry.kind == "local" else {}
        members.append(Member(entry.name, controller, entry.labels, here))
    return SeveralClusters(members), [ApiServer(client) for client in clients]


def check(settings: JobmasterSettings) -> None:
    """InvalidArgument names what roles elsewhere cannot do without."""
    address = ("JOBMASTER_RPC", settings.jobmaster, "is not set: roles reach this jobmaster by it")
    needed = {
        "kubernetes": (("KUBE_IMAGE", settings.kube_image, "is not set: it is the image of role pods"), address),
        "yarn": (("YARN_URL", settings.yarn_url, "is not set: it is the address of YARN's ResourceManager"), address),
    }
    wrong = [
        Violation(f"RECMESH_{name}", reason)
        for name, value, reason in needed.get(settings.jobmaster_cluster, ()) if not value
    ]
    if settings.kube_storage_claim and not settings.storage_uri.startswith("/"):
        reason = "must be the path at which pods mount the claim RECMESH_KUBE_STORAGE_CLAIM"
        wrong.append(Violation("RECMESH_STORAGE_URI", reason))
    if settings.jobmaster_cluster == "several":
        names = [entry.name for entry in settings.clusters]
        if not names or len(set(names)) < len(names):
            violation = Violation("RECMESH_CLUSTERS", f"must name clusters, each once; it names: {names}")
            raise InvalidArgument("there are no several clusters", reason="BAD_CONFIG", violations=[violation])
        for entry in settings.clusters:
            if entry.kind == "several":
                wrong.append(Violation(f"RECMESH_CLUSTERS.{entry.name}.kind", "several clusters hold no others"))
            wrong += [
                Violation(f"RECMESH_CLUSTERS.{entry.name}.settings.{name.removeprefix(PREFIX)}", complaint(name, near))
                for name, near in unknown(PREFIX + each for each in entry.settings).items()
            ]
    if wrong:
        where = {"kubernetes": "as pods", "yarn": "in YARN's containers"}.get(settings.jobmaster_cluster, "there")
        raise InvalidArgument(f"roles cannot run {where}", reason="BAD_CONFIG", violations=wrong)


class Part:
    """This jobmaster's part of the jobs; its start waits a moment, so that it is ready when it holds it."""

    name = "shards"

    def __init__(self, sharing: Sharing, address: Callable[[], str]) -> None:
        self._sharing, self._address = sharing, address
        self._loops = Loop("session", sharing.renew), Loop("shards", sharing.balance)

    async def start(self) -> None:
        """Begins to take buckets."""
        self._sharing.address = self._address()
        for loop in self._loops:
            await loop.start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self._sharing.joined.wait()

    async def stop(self) -> None:
        """Hands the jobs over, whose processes go on."""
        for loop in self._loops:
            await loop.stop()
        await self._sharing.resign()


def reachable(address: str) -> str:
    """An address of this machine for others, where a server listens at all of them."""
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in ("0.0.0.0", "[::]", "") else address


async def jobs_of(
    settings: JobmasterSettings, context: Context, kube: "KubeClient | None"
) -> tuple[Jobs, list[Component]]:
    """Users' use cases, and what works on them beside calls."""
    if settings.jobmaster_objects == "store" or kube is None:
        return Jobs(context), []
    from services.jobmaster.app.datasets import DatasetObjects
    from services.jobmaster.app.jobmetrics import JobMetrics
    from services.jobmaster.app.objects import ObjectJobs
    from services.jobmaster.app.reconciler import Reconciler
    from services.jobmaster.peers.objects import KubernetesMetrics, KubernetesObjects, datasets

    namespace = context.namespace
    objects = KubernetesObjects(kube, namespace="" if settings.objects_all_namespaces else namespace)
    jobs = ObjectJobs(
        context, objects, namespace=namespace, everywhere=settings.objects_all_namespaces
    )
    reconciler = Reconciler(jobs, clock=context.clock)
    of_datasets = DatasetObjects(
        jobs, datasets(kube, namespace="" if settings.objects_all_namespaces else namespace), namespace=namespace,
        clock=context.clock, of_jobs=reconciler.known_objects, changed=reconciler.dataset_changed,
    )
    following: list[Component] = [reconciler, of_datasets]
    if settings.job_metrics_s:
        metrics = JobMetrics(
            KubernetesMetrics(kube), jobs.runs, clock=context.clock, every_s=settings.job_metrics_s,
            may_write=context.may_write,
        )
        following.append(Loop("job metrics", metrics.look))
    return jobs, following


class Channels:
    """Closes what calls go out by."""

    name = "channels"

    def __init__(self, channels: Sequence[grpc.aio.Channel], servers: GrpcServers, front: rpc.Front) -> None:
        self._channels, self._servers, self._front = channels, servers, front

    async def start(self) -> None:
        """Channels connect when they are first used."""

    async def stop(self) -> None:
        """Closes them all."""
        await self._servers.close()
        await self._front.close()
        for item in self._channels:
            await item.close(grace=None)


def role_logs(settings: JobmasterSettings, controller: Controller) -> list[Component]:
    """Keeps logs of processes bounded; those of pods are the cluster's."""
    if not isinstance(controller, LocalController):
        return []

    async def trim() -> float:
        before = system_clock.now() - settings.role_log_days * 86_400
        await controller.trim_logs(max_bytes=settings.role_log_bytes, before=before)
        return TRIM_LOGS_EVERY_S

    return [Loop("role logs", trim)]


async def build(env: Mapping[str, str]) -> Sequence[Component]:
    """The components in start order."""
    settings = JobmasterSettings.from_env(env, "RECMESH_")
    bus = Bus.of(settings, "jobmaster")

    def connect(address: str) -> grpc.aio.Channel:
        return channel(address, tls=settings.tls, token=settings.token)

    def connect_role(address: str) -> grpc.aio.Channel:
        return channel(address, tls=settings.role_tls, token=settings.token)

    shardsvc, ckptcache, brain, gateway = map(
        connect, (settings.shardsvc, settings.ckptcache, settings.brain, settings.gateway)
    )
    servers = GrpcServers(connect_role, ckptcache=settings.ckptcache)
    check(settings)
    kube, yarn = await kubernetes(settings), yarn_client(settings)
    servers_of_clusters: list[Component] = [ApiServer(client) for client in (kube, yarn) if client is not None]
    if settings.jobmaster_cluster == "several":
        controller, more = await several(settings, env)
        servers_of_clusters += more
    else:
        controller = await cluster(settings, kube, yarn, options(env))
    tracker = Tracker(
        tensorboard=settings.tensorboard_uri or str(settings.data_dir.absolute() / "tensorboard"),
        mlflow=settings.mlflow_uri,
    )
    fence, documents = Fence(lease_clock), bus.kv(BUCKET)
    context = Context(
        store=JobStore(documents, fence=fence.check),
        peers=Peers(
            GrpcShards(shardsvc), GrpcCheckpoints(ckptcache), servers, GrpcBrain(brain), GrpcModels(gateway)
        ),
        cluster=FencedController(controller, fence.check),
        clock=system_clock,
        rng=random.Random(),
        publish=bus.publish,
        addresses=Addresses(
            lambda: settings.jobmaster or server.address, settings.shardsvc, settings.ckptcache
        ),
        storage_uri=settings.storage,
        namespace=await namespace_of_objects(settings),
        limits=settings.limits,
        role_env=role_environment(env, settings),
        topics_env={name: value for name, value in env.items() if name.startswith(TOPIC_VARIABLES)},
        mesh_topics_env={name: env[name] for name in (NATS_URL, NATS_TOKEN) if env.get(name)},
        may_write=fence.check,
        lease_ttl_s=settings.lease_ttl_s,
        max_live_jobs=settings.max_live_jobs,
        untracked=tracker.refusals,
    )
    jobs, reconcilers = await jobs_of(settings, context, kube)
    sharing = Sharing(
        jobs, bus.kv(LEADER_BUCKET, ttl_s=settings.leader_ttl_s), documents, fence, clock=lease_clock,
        ttl_s=settings.leader_ttl_s, name=uuid.uuid4().hex,
    )
    front = rpc.Front(sharing, connect, clock=system_clock)
    routed = rpc.RoutedJobs(front, rpc.JobsServicer(jobs))
    server = RpcServer(
        "rpc", settings.rpc_address,
        rpc.registrations(routed, rpc.RoutedRuns(front, rpc.RunsServicer(Roles(jobs), now=system_clock.now))),
        tls=settings.tls, token=settings.token, service_names=rpc.SERVICE_NAMES,
    )
    micro = bus.service("jobmaster", ops.release(), "The life of training jobs", lambda: ops.figures(jobs, sharing))
    charts = ops.recorder(jobs)
    tracking = Tracking(lambda: jobs.runs().values(), tracker.tell, clock=system_clock)
    ready = Readiness({}, known=bus.objection, followers=[server])
    return [
        bus,
        Channels([shardsvc, ckptcache, brain, gateway], servers, front),
        *servers_of_clusters,       # their connections end after the watches by them
        Cluster(controller),
        *role_logs(settings, controller),
        server,
        Part(sharing, lambda: settings.jobmaster_peer or reachable(server.address)),
        *reconcilers,
        *events.consumers(bus, rpc.Desk(routed)),
        micro,
        charts,
        tracker,
        Loop("tracking", tracking.look),
        ops.server(settings, jobs, bus, charts, sharing),
        ready,
    ]


if __name__ == "__main__":
    main("jobmaster", build)
