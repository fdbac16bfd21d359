"""Where the verbs about topics find their servers: `clicks`, `nats://host:4222/clicks`, `kafka://host:9092/clicks`."""

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recmesh.cli.options import home_of
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Unavailable, Violation

if TYPE_CHECKING:
    from recmesh.runtime.bus import Link


@dataclass(frozen=True, slots=True)
class Server:
    """A NATS or Kafka server."""

    url: str
    """`nats://...`, several with commas; of Kafka `host:9092`, likewise."""
    token: str | None = field(default=None, repr=False)
    is_kafka: bool = False


def server_and_topic(target: str, home: str | None, *, option: str = "to") -> tuple[Server, str]:
    """What a target means; without a server it is the mesh's own NATS."""
    if "://" not in target:
        return mesh_nats(home), target
    scheme, _, rest = target.partition("://")
    servers, _, topic = rest.partition("/")
    if scheme not in ("nats", "tls", "kafka") or not servers or not topic:
        reason = f"{target!r} is neither a topic nor nats://host:4222/topic nor kafka://host:9092/topic"
        raise InvalidArgument(reason, violations=[Violation(option, reason)])
    if scheme == "kafka":
        return Server(servers, is_kafka=True), topic
    return Server(f"{scheme}://{servers}", os.environ.get("RECMESH_NATS_TOKEN")), topic


def mesh_nats(home: str | None) -> Server:
    """$RECMESH_NATS_URL, else the NATS of the mesh of --home, $RECMESH_HOME or `.recmesh`; Unavailable without one."""
    url = os.environ.get("RECMESH_NATS_URL")
    if url and not home:
        return Server(url, os.environ.get("RECMESH_NATS_TOKEN"))
    from recmesh.cli.mesh import rounds
    from recmesh.cli.mesh.config import MeshConfig

    folder = home_of(home)
    last = rounds.load(folder)
    if last is None:
        raise Unavailable(f"there is no mesh in {folder.root}: start one with `recmesh up`, or name a server")
    config = MeshConfig.parse(last.config)
    if config.nats.url:
        return Server(config.nats.url, config.nats.token.get_secret_value() if config.nats.token else None)
    return Server(f"nats://127.0.0.1:{last.ports['nats']}", folder.secrets()["nats"])


def link_to(server: Server, name: str) -> "Link":
    """The way to a NATS server, not yet opened. FailedPrecondition without its client library."""
    try:
        from recmesh.runtime.bus import Link
    except ImportError:
        raise FailedPrecondition(
            "NATS needs nats-py: pip install 'recmesh[service]'", reason="PACKAGE_MISSING"
        ) from None
    return Link(server.url, name=name, token=server.token)
