"""Composition root of gateway: the only place where its parts are chosen and joined."""

import asyncio
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from recmesh.runtime import lifecycle, telemetry
from recmesh.runtime.bus import Bus
from recmesh.runtime.clock import system_clock
from recmesh.runtime.lifecycle import Component, Loop
from recmesh.runtime.room import Room
from services.gateway.app.access import Access
from services.gateway.app.inference import Inference
from services.gateway.app.models import Models
from services.gateway.app.observation import Observation
from services.gateway.app.serving import Serving, ServingLimits
from services.gateway.config import PEERS, PREFIX, Config, child_environment
from services.gateway.domain.access import is_loopback
from services.gateway.events.facts import Facts
from services.gateway.events.history import JobHistory
from services.gateway.ops.page import OpsFace
from services.gateway.ops.view import View
from services.gateway.peers.data import DataPeer, PlanningPeer
from services.gateway.peers.jobs import JobsPeer
from services.gateway.peers.mesh import Mesh
from services.gateway.rest import api
from services.gateway.rest.guard import BodyLimits
from services.gateway.rest.inference import InferLimits
from services.gateway.rest.server import PublicServer
from services.gateway.rpc import server as rpc
from services.gateway.runtimes.pool import Runtimes
from services.gateway.runtimes.process import Limits
from services.gateway.store.code import CodeStore
from services.gateway.store.credentials import Credentials, Sources
from services.gateway.store.folders import ModelFolders
from services.gateway.store.registry import BUCKET, Registry
from services.gateway.store.shared_memory import SharedRegions
from services.gateway.store.traffic import BUCKET as TRAFFIC_BUCKET
from services.gateway.store.traffic import TrafficRules

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
    runtimes = Runtimes(
        environment=child_environment(env), limits=Limits(queue=config.infer_queue), log=_log.warning
    )
    serving = Serving(runtimes, observation, clock=system_clock, limits=limits)
    models = Models(
        Registry(bus.kv(BUCKET)), TrafficRules(bus.kv(TRAFFIC_BUCKET)), ModelFolders(config.storage_root),
        runtimes, serving, observation,
        tell=facts.model, clock=system_clock, limits=limits,
    )  # fmt: skip
    inference = Inference(models, observation, version=release)
    regions = SharedRegions()
    mesh = Mesh({name: getattr(config, name) for name in PEERS}, token=config.token, tls=config.tls)
    credentials = Credentials(
        Sources(config.access_key, config.keys_file, config.jwks_file, config.jwt_issuer, config.jwt_audience)
    )
    credentials.check_files()
    access = Access(credentials, clock=system_clock)
    closing = asyncio.Event()
    view = View(models, observation, runtimes, mesh, dashboards=config.dashboards)
    face = OpsFace(view, version=release)
    parts = api.Parts(
        models, inference, regions, _code(config), JobsPeer(mesh), DataPeer(mesh), PlanningPeer(mesh), mesh,
        JobHistory(bus), config.dashboards, release,
    )  # fmt: skip
    app = api.create(
        parts, ops=face.routes(), access=access,
        loopback=is_loopback(config.http_address), closing=closing, room=Room(config.data_dir),
        limits=BodyLimits(config.max_body_bytes, config.max_infer_bytes, config.max_code_bytes),
        infer=InferLimits(config.max_infer_bytes, config.max_infer_timeout_s, config.shared_memory),
    )  # fmt: skip
    return [
        bus, mesh, runtimes, models,
        Loop("rates", observation.tell),
        Loop("resting models", serving.rest_idle),
        Loop("ops view", view.refresh),
        bus.service("gateway", release, DESCRIPTION, view.summary),
        rpc.server(
            config.rpc_address, models, inference, regions, shared=config.shared_memory,
            token=config.token, access=access, tls=config.tls,
        ),
        PublicServer(config.http_address, app, probes=face, closing=[closing, face.live.closing]),
    ]  # fmt: skip


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
