"""A service of two components, for tests of the lifecycle as a process sees it."""

from collections.abc import Mapping, Sequence

from recmesh.runtime.bus import Bus
from recmesh.runtime.lifecycle import Component, main
from recmesh.runtime.ops import OpsServer, Page
from recmesh.runtime.rpc import RpcServer
from recmesh.runtime.settings import ServiceSettings


async def build(env: Mapping[str, str]) -> Sequence[Component]:
    """An ops server, then the bus, then gRPC."""
    settings = ServiceSettings.from_env(env, "RECMESH_")
    bus = Bus(settings.nats_url, "small", connect_timeout_s=1.0)
    return [
        OpsServer("small", settings.http_address, Page("small", []), readiness=lambda: ""),
        bus, RpcServer("rpc", settings.rpc_address, []),
    ]


if __name__ == "__main__":
    main("small", build)
