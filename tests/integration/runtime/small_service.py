"""A service of two components, for tests of the lifecycle as a process sees it."""

import os
import time
from collections.abc import Mapping, Sequence

from recmesh.runtime.bus import Bus
from recmesh.runtime.lifecycle import Component, main
from recmesh.runtime.ops import Chart, Log, OpsServer, Page, Table, Tile, Tiles, state
from recmesh.runtime.rpc import RpcServer
from recmesh.runtime.settings import ServiceSettings


async def build(env: Mapping[str, str]) -> Sequence[Component]:
    """An ops server, then the bus, then gRPC."""
    settings = ServiceSettings.from_env(env, "RECMESH_")
    bus = Bus(settings.nats_url, "small", connect_timeout_s=1.0)
    evil = "<img src=x onerror=document.title='broken-in'>"
    page = Page("small", [
        Tiles("", lambda: [Tile("process", str(os.getpid())), Tile(evil, evil, evil)]),
        Chart("time", lambda: {evil: [(time.time() - back, float(back)) for back in range(60, 0, -1)]}),
        Table("rows", ["name"], lambda: [[evil], [state("Running")]]),
        Table("jobs", ["job", "rows"], lambda: [["ads", 1], ["clicks & more", 2]], chosen_by="job"),
        Chart("once", lambda: {"ads": [(time.time(), 1.0)]}, chosen_by="job"),
        Log("log", lambda: [evil]),
    ], refresh_s=0.1, choices=("job",), links={"all jobs": "./"})
    return [
        OpsServer("small", settings.http_address, page, readiness=lambda: ""),
        bus, RpcServer("rpc", settings.rpc_address, []),
    ]


if __name__ == "__main__":
    main("small", build)
