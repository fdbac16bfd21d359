"""Composition root: the only place where brain's parts are chosen and joined."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import grpc

from recmesh.plugins.planning import GROUP, INTERVAL_S, Planner, Resources
from recmesh.plugins.registry import BrokenPlugin, UnknownPlugin, load
from recmesh.runtime.bus import Bus
from recmesh.runtime.clock import system_clock
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.lifecycle import Component, Loop, main
from recmesh.runtime.readiness import Readiness
from recmesh.runtime.rpc import RpcServer, channel
from services.brain import ops, rpc
from services.brain.app.book import Book
from services.brain.app.deciding import Deciding, Policy
from services.brain.app.feeding import Feeding
from services.brain.app.jobs import Jobs
from services.brain.app.lending import Lending
from services.brain.app.scheduling import Scheduling
from services.brain.app.serving import Serving
from services.brain.config import BrainSettings
from services.brain.domain.executors.horizontal import Rule
from services.brain.domain.loans.interference import Tolerance
from services.brain.domain.loans.planning import Rules
from services.brain.domain.loans.pool import Pool
from services.brain.domain.planning.built_in import PLANNERS
from services.brain.domain.views import Sizes
from services.brain.domain.warmstart import WarmStart
from services.brain.events import Ledger, Proposals
from services.brain.peers.forecaster import GrpcForecaster
from services.brain.store import SqlStore

if TYPE_CHECKING:
    from services.brain.app.placing import Placing

FORGET_EVERY_S = 600.0


class Database:
    """The store's life."""

    name = "database"

    def __init__(self, store: SqlStore, *, opened: Callable[[], Awaitable[None]]) -> None:
        self._store, self._opened = store, opened

    async def start(self) -> None:
        """Bring the schema up to date, and read what must be known before the first call."""
        await asyncio.to_thread(self._store.open)
        await self._opened()

    async def ping(self) -> None:
        """Returns when it answers; raises what it says otherwise."""
        await asyncio.to_thread(self._store.ping)

    async def stop(self) -> None:
        """Let go of all connections."""
        await asyncio.to_thread(self._store.close)


class Peers:
    """Closes what calls go out by."""

    name = "peers"

    def __init__(self, *channels: grpc.aio.Channel) -> None:
        self._channels = channels

    async def start(self) -> None:
        """Channels connect when they are first used."""

    async def stop(self) -> None:
        """Closes them all."""
        for item in self._channels:
            await item.close(grace=None)


def policy(settings: BrainSettings) -> Policy:
    """What planning is bounded by."""
    return Policy(
        interval_s=settings.plan_interval_s or INTERVAL_S, horizon_s=settings.plan_horizon_s, rho=settings.plan_rho,
        epsilon=settings.plan_epsilon, resize_window_s=settings.resize_window_s,
        sizes=Sizes(settings.cpu_min, settings.cpu_max),
    )  # fmt: skip


def quotas(settings: BrainSettings) -> dict[str, Resources]:
    """By owner: what all their jobs may hold together."""
    return {
        owner: Resources(quota.cpu, quota.memory_gib * (1 << 30), quota.gpus)
        for owner, quota in settings.quotas.items()
    }


def pool(settings: BrainSettings) -> Pool | None:
    """What may be lent; None: nothing."""
    chosen = settings.loans
    if chosen is None:
        return None
    names = ("own", "most", "most_draining", "drain_s", "start_s", "return_s", "hold_s", "notice_s", "slack_s")
    unit = Resources(chosen.unit.cpu, chosen.unit.memory_gib * (1 << 30), chosen.unit.gpus)
    tolerance = Tolerance(
        chosen.latency_ms / 1e3, chosen.evict_after_s, chosen.evict_settle_s, clear_s=chosen.admit_after_s
    )
    return Pool(Rules(**{name: getattr(chosen, name) for name in names}), unit, chosen.step_s, tolerance)


def planner(settings: BrainSettings) -> Planner:
    """The one that the settings name. InvalidArgument when there is none of that name, or it cannot be loaded."""
    try:
        found: type[Planner] = load(GROUP, settings.planner, PLANNERS)
    except (UnknownPlugin, BrokenPlugin) as error:
        violation = Violation("RECMESH_PLANNER", str(error))
        raise InvalidArgument("the planner cannot be had", reason="BAD_CONFIG", violations=[violation]) from error
    return found()


async def placement(settings: BrainSettings) -> tuple["Placing | None", Sequence[Component]]:
    """The scheduler extender and what it watches, where its address is set; only there Kubernetes' client is imported,
    which takes a second."""
    tls = settings.placement_tls
    if not settings.placement_address:
        return None, []
    from recmesh.runtime.kube import Access, connect
    from recmesh.runtime.ops import HttpServer
    from services.brain.app.placing import Placing
    from services.brain.peers.cluster import ClusterWatch, LivingPods
    from services.brain.rest.extender import Extender

    client = await connect(Access(settings.kube_config, settings.kube_context), field_manager="recmesh-brain")
    rules = settings.placement_rules
    app = Placing(rules, clock=system_clock, living=LivingPods(client, rules.app_labels))
    server = HttpServer("placement", settings.placement_address, Extender(app).routes(), tls=tls)
    return app, [ClusterWatch(client, app), server]


async def build(env: Mapping[str, str]) -> Sequence[Component]:
    """The components in start order."""
    settings = BrainSettings.from_env(env, "RECMESH_")
    bus = Bus.of(settings, "brain")
    store = SqlStore(settings.database)
    rule = WarmStart(k=settings.warm_start_jobs, mu=settings.warm_start_weight, s_min=settings.warm_start_likeness)
    bounds = policy(settings)
    book = Book(quotas(settings), clock=system_clock, interval_s=bounds.interval_s)
    app = Jobs(store, book, rule=rule, clock=system_clock, told=Proposals(bus))
    deciding = Deciding(
        store, planner(settings), bounds, book, rule=rule, seed=settings.seed,
        clock=system_clock, told=Proposals(bus),
    )
    feeding = Feeding(
        Rule(
            low=settings.executors_low, high=settings.executors_high, cooldown_s=settings.executors_cooldown_s,
            grow_after_s=settings.executors_grow_after_s,
        ),
        book, clock=system_clock,
    )
    forecaster = channel(settings.forecaster, tls=settings.tls, token=settings.token)
    scheduling = Scheduling(
        store, GrpcForecaster(forecaster), book, clock=system_clock, seed=settings.seed, told=Proposals(bus)
    )
    lending = Lending(store, pool(settings), book, clock=system_clock, told=Ledger(bus))
    serving = Serving(GrpcForecaster(forecaster), lending, clock=system_clock)
    placing, extender = await placement(settings)
    view = ops.View(app, serving, lending, placing, clock=system_clock)

    async def forget() -> float:
        await app.forget(
            older_than_s=settings.profile_days * 86_400, profiles_per_job=settings.profiles_per_job,
            histories_older_than_s=settings.history_days * 86_400,
        )
        return FORGET_EVERY_S

    async def restore() -> None:
        await app.restore()
        await lending.restore()

    servicer = rpc.BrainServicer(app, deciding, feeding, scheduling, serving, lending)
    server = RpcServer(
        "rpc", settings.rpc_address, [rpc.register(servicer)],
        tls=settings.tls, token=settings.token, service_names=[rpc.SERVICE_NAME],
    )
    database = Database(store, opened=restore)
    ready = Readiness({"the database": database.ping}, known=bus.objection, followers=[server])
    return [
        ops.server(settings, view, ready),
        bus,
        Peers(forecaster),
        database,
        server,
        *extender,
        Loop("forget", forget),
        Loop("loans", lending.step),
        bus.service("brain", ops.release(), "What resources each job should have", view.figures),
        ready,
    ]  # fmt: skip


if __name__ == "__main__":
    main("brain", build)
