"""Composition root: the only place where forecaster's parts are chosen and joined."""

import asyncio
from collections.abc import Mapping, Sequence

from recmesh.runtime.bus import Bus
from recmesh.runtime.clock import system_clock
from recmesh.runtime.lifecycle import Component, Loop, main
from recmesh.runtime.readiness import Readiness
from recmesh.runtime.rpc import RpcServer
from services.forecaster import events, ops, rpc
from services.forecaster.app import App
from services.forecaster.config import ForecasterSettings
from services.forecaster.domain.tiers import tiers_of
from services.forecaster.rpc import keda
from services.forecaster.runtimes.pool import ModelPool
from services.forecaster.scaling import Scaler
from services.forecaster.store import SqlStore

FORGET_EVERY_S = 600.0
REFINE_EVERY_S = 10.0


class Database:
    """The store's life."""

    name = "database"

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    async def start(self) -> None:
        """Bring the schema up to date."""
        await asyncio.to_thread(self._store.open)

    async def ping(self) -> None:
        """Returns when it answers; raises what it says otherwise."""
        await asyncio.to_thread(self._store.ping)

    async def stop(self) -> None:
        """Let go of all connections."""
        await asyncio.to_thread(self._store.close)


async def build(env: Mapping[str, str]) -> Sequence[Component]:
    """The components in start order."""
    settings = ForecasterSettings.from_env(env, "RECMESH_")
    bus = Bus.of(settings, "forecaster")
    store = SqlStore(settings.database, max_series=settings.rate_series)
    tiers = tiers_of(settings.rate_tiers, setting="RECMESH_RATE_TIERS")
    models = ModelPool(processes=settings.forecast_processes, wanted=settings.forecast_models)
    app = App(store, models, clock=system_clock, updated=events.Updates(bus), shown_s=settings.forecast_shown_s,
              season_s=settings.rate_season_s)
    scaler = Scaler(app, clock=system_clock, cache_s=settings.keda_cache_s, max_streams=settings.keda_streams)
    view = ops.View(app, scaler, clock=system_clock)

    async def forget() -> float:
        await app.forget(
            older_than_s=settings.rate_days * 86_400, points_per_series=settings.rate_points,
            idle_s=settings.rate_idle_days * 86_400, tiers=tiers,
        )
        return FORGET_EVERY_S

    async def watch() -> float:
        await app.watch(settings.forecast_watch, horizon=settings.forecast_horizon)
        return settings.forecast_every_s

    async def refine() -> float:
        spent_s = await app.refine()
        return max(REFINE_EVERY_S, spent_s * (1 / settings.forecast_dear_share - 1))

    scales = keda.register(keda.KedaServicer(scaler))
    server = RpcServer(
        "rpc", settings.rpc_address, [rpc.register(rpc.ForecasterServicer(app)), scales],
        tls=settings.tls, token=settings.token, service_names=[rpc.SERVICE_NAME, keda.SERVICE_NAME],
    )
    keda_tls = settings.keda_tls
    for_keda = RpcServer(       # without the mesh's token, which KEDA cannot send; certificates let it in
        "keda", settings.keda_address, [scales], tls=keda_tls, service_names=[keda.SERVICE_NAME],
    )
    servers = [server, for_keda] if settings.keda_address else [server]
    database = Database(store)
    ready = Readiness({"the database": database.ping}, known=bus.objection, followers=servers)
    return [
        ops.server(settings, view, ready),
        bus,
        database,
        *([Loop("refine", refine)] if settings.forecast_dear_share else []),  # stops after the models: a trial is long
        models,
        *servers,
        events.rates(bus, app),
        scaler,
        Loop("forget", forget),
        Loop("watch", watch),
        bus.service("forecaster", ops.release(), "Traffic rates and what they will be", view.figures),
        ready,
    ]  # fmt: skip


if __name__ == "__main__":
    main("forecaster", build)
