"""Composition root of shardsvc: the only place where its parts are chosen and joined."""

from collections.abc import Mapping, Sequence

from recmesh.runtime import lifecycle
from recmesh.runtime.bus import Bus
from recmesh.runtime.clock import system_clock
from recmesh.runtime.lifecycle import Component, Loop
from recmesh.runtime.readiness import Readiness
from recmesh.runtime.rpc import RpcServer
from services.shardsvc import ops, rpc
from services.shardsvc.app import Datasets, Indexer, Lags, Offsets, Runs, Streams, TaskLog
from services.shardsvc.config import Config
from services.shardsvc.events import teller
from services.shardsvc.store.durable import Durable
from services.shardsvc.store.valkey import ValkeyQueue, connect

DESCRIPTION = "Datasets, data tasks and shard leases"


async def build(env: Mapping[str, str]) -> Sequence[Component]:
    """The components of one replica, in start order."""
    config = Config.from_env(env, "RECMESH_")
    bus = Bus.of(config, "shardsvc")
    queue = ValkeyQueue(
        connect(config.valkey_url.get_secret_value(), connections=config.valkey_connections)
    )
    durable, indexer, emit = Durable.on(bus), Indexer(), teller(bus)
    tasks = TaskLog(durable.tasks, indexer)
    runs = Runs(queue, durable.runs, tasks, clock=system_clock, emit=emit)
    streams = Streams(tasks, queue, active=runs.active, clock=system_clock, every_s=config.sweep_s)
    datasets = Datasets(durable.datasets, indexer, clock=system_clock, emit=emit)
    lags = Lags(tasks, runs.latest, clock=system_clock, emit=emit)
    view = ops.View(runs, datasets, lags, clock=system_clock)
    server = RpcServer(
        "rpc", config.rpc_address, [rpc.register(rpc.ShardsServicer(runs, datasets, streams, lags, Offsets(tasks)))],
        tls=config.tls, token=config.token, service_names=[rpc.SERVICE_NAME],
    )  # fmt: skip
    ready = Readiness({"Valkey": queue.ping}, known=bus.objection, followers=[server])
    return [
        ops.server(config, view, ready),
        bus,
        queue,
        server,
        Loop("sweep", runs.sweeper(config.sweep_s)),
        streams,
        lags,
        view.recorder,
        bus.service("shardsvc", ops.release(), DESCRIPTION, view.figures),
        ready,
    ]


if __name__ == "__main__":
    lifecycle.main("shardsvc", build)
