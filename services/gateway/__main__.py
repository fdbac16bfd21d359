"""Composition root of gateway: the only place where its parts are chosen and joined."""

import asyncio
import gc
import random
import secrets
import socket
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from recmesh.runtime import lifecycle, telemetry
from recmesh.runtime.bus import Bus
from recmesh.runtime.clock import lease_clock, system_clock
from recmesh.runtime.lifecycle import Component, Loop
from recmesh.runtime.room import Room
from services.gateway.app.access import Access
from services.gateway.app.audit import Audit
from services.gateway.app.deliveries import Deliveries
from services.gateway.app.following import Following
from services.gateway.app.freshness import Freshness
from services.gateway.app.inference import Inference
from services.gateway.app.labels import Labels
from services.gateway.app.loading import Loading
from services.gateway.app.models import Models
from services.gateway.app.observation import Observation
from services.gateway.app.replicas import Replicas
from services.gateway.app.scaling import Scaling
from services.gateway.app.serving import Serving, ServingLimits
from services.gateway.app.webhooks import Webhooks
from services.gateway.config import PEERS, PREFIX, Config, child_environment, mesh_environment
from services.gateway.domain.access import is_loopback
from services.gateway.domain.addresses import networks
from services.gateway.domain.webhooks import Patience
from services.gateway.events import registrations, trail
from services.gateway.events import topics as topic_events
from services.gateway.events.facts import Facts
from services.gateway.events.history import JobHistory
from services.gateway.events.topics import LabelSender, PredictionSender, Retention, Topics
from services.gateway.events.webhooks import DeadLetters
from services.gateway.ops.page import OpsFace
from services.gateway.ops.view import View
from services.gateway.peers.data import DataPeer, PlanningPeer
from services.gateway.peers.jobs import JobsPeer
from services.gateway.peers.mesh import Mesh
from services.gateway.peers.webhooks import Poster, trust
from services.gateway.rest import api
from services.gateway.rest.guard import BodyLimits
from services.gateway.rest.inference import InferLimits
from services.gateway.rest.server import PublicServer
from services.gateway.rpc import server as rpc
from services.gateway.runtimes.features import AT_ONCE, Features
from services.gateway.runtimes.inspection import Inspection
from services.gateway.runtimes.pool import Runtimes
from services.gateway.runtimes.process import Limits
from services.gateway.store.code import CodeStore
from services.gateway.store.credentials import Credentials, Sources
from services.gateway.store.folders import ModelFolders
from services.gateway.store.registry import BUCKET, Registry
from services.gateway.store.shared_memory import SharedRegions
from services.gateway.store.traffic import BUCKET as TRAFFIC_BUCKET
from services.gateway.store.traffic import TrafficRules
from services.gateway.store.webhooks import BUCKET as WEBHOOKS_BUCKET
from services.gateway.store.webhooks import LEASE_BUCKET, LEASE_TTL_S, OBJECTS, Lease, WebhookStore

if TYPE_CHECKING:
    from services.gateway.runtimes.pods import ServingPods

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DESCRIPTION = "The public API: jobs, models, inference"

_log = telemetry.get_logger(__name__)


async def build(env: Mapping[str, str]) -> Sequence[Component]:
    """Gateway's components, in start order."""
    config = Config.from_env(env, PREFIX)
    release = _version()
    bus = Bus.of(config, "gateway")
    facts = Facts(bus)
    limits = ServingLimits(config.infer_timeout_s, config.max_infer_timeout_s, config.load_timeout_s)
    observation = Observation(clock=system_clock, rate_step_s=config.rate_step_s, tell_rates=facts.rates)
    pods = await _pods(config)
    runtimes = Runtimes(
        environment=child_environment(env), limits=Limits(queue=config.infer_queue), log=_log.warning,
        hns=config.hn_addresses, mesh_environment=mesh_environment(env), secrets=env, pods=pods,
    )  # fmt: skip
    features = Features(
        environment=child_environment(env), limits=Limits(queue=config.infer_queue, in_flight=AT_ONCE),
        functions=config.functions, log=_log.warning,
    )  # fmt: skip
    topics = Topics(
        bus.link, Retention(config.log_partitions, config.log_max_age_s, config.log_max_bytes)
    )
    predictions = PredictionSender(bus, topics)
    labels = Labels(LabelSender(bus, topics).post, clock=system_clock)
    serving = Serving(
        runtimes, features, observation, clock=system_clock, limits=limits, log_prediction=predictions.offer
    )
    registry, traffic = Registry(bus.kv(BUCKET)), TrafficRules(bus.kv(TRAFFIC_BUCKET))
    folders = ModelFolders(config.storage_root)
    loading = Loading(
        registry, folders, runtimes, serving, observation, tell=facts.model, clock=system_clock, limits=limits
    )
    models = Models(
        registry, traffic, folders, loading, clock=system_clock,
        inspect=Inspection(child_environment(env), timeout_s=config.inspect_timeout_s).inspect,
    )  # fmt: skip
    following = Following(
        loading, registry, traffic, clock=system_clock, load_timeout_s=config.load_timeout_s
    )
    freshness = Freshness(registry, serving, runtimes, limits=limits, why_not_serving=models.why_not_serving)
    mesh = Mesh(
        {name: getattr(config, name) for name in PEERS}, token=config.token, tls=config.tls,
        present_s=config.peer_wait_s,
    )  # fmt: skip
    planning = PlanningPeer(
        mesh, rate_step_s=config.rate_step_s, node=socket.gethostname() if config.runtime == "local" else "",
        pods=config.runtime == "kubernetes",
    )  # fmt: skip
    scaling = Scaling(
        runtimes, observation, planned=planning.processes, tell=facts.scaling, clock=system_clock,
        step_s=config.scaling_step_s,
    )  # fmt: skip
    inference = Inference(models, observation, version=release)
    regions = SharedRegions()
    credentials = Credentials(
        Sources(config.access_key, config.keys_file, config.jwks_file, config.jwt_issuer, config.jwt_audience)
    )
    credentials.check_files()
    access = Access(credentials, clock=system_clock)
    closing = asyncio.Event()
    jobs = JobsPeer(mesh)
    hooks = WebhookStore(bus.kv(WEBHOOKS_BUCKET))
    poster = Poster(
        allowed=networks(config.webhook_networks), tls=trust(str(config.webhook_ca) if config.webhook_ca else "")
    )
    deliveries = Deliveries(
        bus, hooks, poster,
        Lease(bus.kv(LEASE_BUCKET, ttl_s=LEASE_TTL_S), identity=uuid.uuid4().hex, clock=lease_clock),
        job=jobs.get, clock=system_clock, patience=Patience(give_up_s=config.webhook_give_up_s), luck=random.random,
    )  # fmt: skip
    webhooks = Webhooks(
        hooks, poster, clock=system_clock, random_bytes=secrets.token_bytes, newest=bus.last_sequence,
        records=deliveries.records, dead=DeadLetters(bus).newest, changed=deliveries.wake,
    )  # fmt: skip
    objects = await _objects(config, bus, models)
    audit = Audit(lambda event: bus.publish(event, timeout_s=trail.PUBLISH_S), clock=system_clock)
    view = View(models, observation, runtimes, mesh, scaling, deliveries, dashboards=config.dashboards)
    ready_from = system_clock.monotonic() + config.ready_s

    def waits_for() -> str:
        waits = not loading.restored.is_set() and system_clock.monotonic() < ready_from
        return "models that served before are being loaded" if waits else ""

    face = OpsFace(
        view, version=release, grafana=config.grafana_url, waits_for=waits_for, relays=config.runtime == "local"
    )
    parts = api.Parts(
        models, freshness, inference, labels, regions, _code(config), jobs, DataPeer(mesh), planning,
        mesh, JobHistory(bus), config.dashboards, release, scaling, webhooks, audit,
    )  # fmt: skip
    app = api.create(
        parts, ops=face.routes(), access=access,
        loopback=is_loopback(config.http_address), closing=closing, room=Room(config.data_dir),
        limits=BodyLimits(config.max_body_bytes, config.max_infer_bytes, config.max_code_bytes),
        infer=InferLimits(config.max_infer_bytes, config.max_infer_timeout_s, config.shared_memory),
        metrics_token=config.metrics_token,
    )  # fmt: skip
    gc.collect()
    gc.freeze()     # what is here stays, and the collector's looks through it were requests' longest waits
    return [
        bus, trail.Trail(bus, days=config.audit_days), mesh, *([pods] if pods else []), runtimes, features,
        predictions, models,
        Replicas(following, registry, traffic, clock=system_clock), scaling,
        topic_events.consumer(bus, labels),
        registrations.consumer(bus, models, audit),
        deliveries,
        *objects,
        Loop("rates", observation.tell),
        Loop("waiting ensembles", loading.load_ensembles),
        Loop("resting models", serving.rest_idle),
        Loop("scaling", scaling.look),
        Loop("ops view", view.refresh),
        Loop("freshness", freshness.measure),
        bus.service("gateway", release, DESCRIPTION, view.summary),
        rpc.server(
            config.rpc_address, models, inference, regions, shared=config.shared_memory,
            token=config.token, access=access, tls=config.tls, audit=audit,
        ),
        PublicServer(
            config.http_address, app, probes=face, closing=[closing, face.live.closing, face.serving.closing],
            linger_s=config.linger_s, tls=config.http_tls,
        ),
    ]  # fmt: skip


async def _pods(config: Config) -> "ServingPods | None":
    """None where CNs and HNs are processes of this machine."""
    if config.runtime == "local" or config.token is None:
        return None
    from recmesh.runtime.kube import Access, Resource, connect
    from services.gateway.runtimes.pods import PodSettings, ServingPods

    client = await connect(Access(config.kube_config, config.kube_context), field_manager="recmesh-gateway")
    namespace = config.kube_namespace or await asyncio.to_thread(NAMESPACE_FILE.read_text)
    owner = None
    if config.pod_owner:
        deployments = Resource("apps", "v1", "deployments", "Deployment")
        found = await client.get(deployments, config.pod_owner, namespace=namespace)
        owner = {
            "apiVersion": "apps/v1", "kind": "Deployment", "name": config.pod_owner, "uid": found["metadata"]["uid"],
            "controller": True, "blockOwnerDeletion": False,
        }  # fmt: skip
    settings = PodSettings(
        namespace=namespace, holder=socket.gethostname(), owner=owner, secret=config.pod_secret,
        images={"cn": config.cn_image, "hn": config.hn_image, "hn-cuda": config.hn_cuda_image or config.hn_image},
        storage_claim=config.kube_storage_claim, storage_path=str(config.storage_root),
        service_account=config.kube_service_account, user=config.kube_user, grace_s=config.kube_grace_s,
        resources={"cn": config.cn_resources, "hn": config.hn_resources},
        tls_secret=config.pod_tls_secret, tls_name=config.pod_tls.server_name if config.pod_tls else "",
    )  # fmt: skip
    return ServingPods(client, settings, token=config.token, tls=config.pod_tls)


async def _objects(config: Config, bus: Bus, models: Models) -> list[Component]:
    """What follows ModelService objects; nothing where nobody asked for it."""
    if config.objects == "off":
        return []
    from recmesh.crd.kinds import MODEL_FINALIZER
    from recmesh.crd.things import ApiServer, KubernetesThings
    from recmesh.runtime.kube import Access, connect, recmesh_resource
    from services.gateway.app.objects import ModelObjects
    from services.gateway.store.presence import Presence

    client = await connect(Access(config.kube_config, config.kube_context), field_manager="recmesh-gateway-objects")
    own = config.kube_namespace or await asyncio.to_thread(_own_namespace)
    things = KubernetesThings(
        client, recmesh_resource("modelservices", "ModelService"), controller="recmesh.dev/gateway",
        namespace="" if config.objects_all_namespaces else own, finalizer=MODEL_FINALIZER,
    )
    identity, leases = uuid.uuid4().hex, bus.kv(LEASE_BUCKET, ttl_s=LEASE_TTL_S)
    following = ModelObjects(
        things, models, Lease(leases, identity=identity, clock=lease_clock, key=OBJECTS),
        Presence(leases, identity=identity), namespace=own, clock=system_clock,
    )  # fmt: skip
    return [ApiServer(client), following, Loop("objects", following.beat)]


def _own_namespace() -> str:
    return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else "default"


def _code(config: Config) -> CodeStore:
    return CodeStore(
        config.storage_root, max_bytes=config.max_code_bytes,
        max_unpacked_bytes=config.max_code_unpacked_bytes, max_members=config.max_code_members,
    )  # fmt: skip


def _version() -> str:
    try:
        return version("recmesh")
    except PackageNotFoundError:
        return "0"


if __name__ == "__main__":
    lifecycle.main("gateway", build)
