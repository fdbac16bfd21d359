"""The components of the mesh on one machine: which processes, with which settings, at which addresses."""

import hmac
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from recmesh.cli.mesh import servers
from recmesh.cli.mesh.component import PUBLIC_KEY, Component, Probe
from recmesh.cli.mesh.config import MeshConfig
from recmesh.cli.mesh.home import Home
from recmesh.runtime.errors import FailedPrecondition

ASKING = {"RECMESH_GATEWAY_KEYS_FILE", "RECMESH_GATEWAY_JWKS_FILE"}
"""With one of them in [env] gateway asks its callers who they are."""
SERVICES = ("brain", "jobmaster", "forecaster", "shardsvc", "ckptcache", "gateway")


@dataclass(frozen=True, slots=True)
class Table:
    """What a mesh consists of. Tests bring a smaller one of their own."""

    address_names: Callable[[MeshConfig], list[str]]
    """The addresses that need a port."""
    components: Callable[[Home, MeshConfig, Mapping[str, int], Mapping[str, str]], list[Component]]
    """(home, config, ports, secrets) -> what to run; FailedPrecondition when something is missing."""



def address_names(config: MeshConfig) -> list[str]:
    """The addresses that need a port here."""
    names = [] if config.nats.url else ["nats"]
    names += [] if config.valkey.url else ["valkey"]
    return names + [f"{service}.{kind}" for service in SERVICES for kind in ("rpc", "http")]


def components(
    home: Home, config: MeshConfig, ports: Mapping[str, int], secrets: Mapping[str, str]
) -> list[Component]:
    """All that has to run: stores unless they are external, then the six services."""
    stores: list[Component] = []
    if not config.nats.url:
        name = f"recmesh-{home.shm.name.removeprefix('recmesh-')}"
        stores.append(servers.nats(home.root / "nats", port=ports["nats"], token=secrets["nats"], name=name))
    if not config.valkey.url:
        folder, password = home.root / "valkey", secrets["valkey"]
        stores.append(
            servers.valkey(folder, port=ports["valkey"], password=password, fsync=config.valkey.fsync)
        )
    root = services_root()
    common = _common_env(home, config, ports, secrets)
    return stores + [_service(name, home, config, ports, common, secrets, root) for name in SERVICES]


def services_root() -> Path:
    """The folder from which `services` is imported."""
    spec = importlib.util.find_spec("services")
    if spec is None or not spec.submodule_search_locations:
        raise FailedPrecondition(
            "the six services are not importable here: run from a checkout of recmesh, or install it with "
            "`pip install -e .`",
            reason="SERVICES_MISSING",
        )
    return Path(next(iter(spec.submodule_search_locations))).parent


def _common_env(
    home: Home, config: MeshConfig, ports: Mapping[str, int], secrets: Mapping[str, str]
) -> dict[str, str]:
    env = {
        "RECMESH_API_KEY": secrets["mesh"],
        "RECMESH_LOG_LEVEL": config.log_level,
        "RECMESH_OTLP_ENDPOINT": config.otlp_endpoint,
        "RECMESH_STORAGE_URI": config.storage or str(home.storage),
        "RECMESH_SHM_DIR": str(home.shm),
        "RECMESH_NATS_URL": config.nats.url or f"nats://127.0.0.1:{ports['nats']}",
        "RECMESH_VALKEY_URL": config.valkey.url
        or f"redis://:{secrets['valkey']}@127.0.0.1:{ports['valkey']}/0",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",  # two threads per process under contention collapse throughput
    }
    if not config.nats.url:
        env["RECMESH_NATS_DIR"] = str(home.root / "nats")
    token = config.nats.token.get_secret_value() if config.nats.token else ""
    token = token if config.nats.url else secrets["nats"]
    if token:
        env["RECMESH_NATS_TOKEN"] = token
    for service in SERVICES:
        env[f"RECMESH_{service.upper()}_RPC"] = f"127.0.0.1:{ports[f'{service}.rpc']}"
    return env


def _owner_key(mesh_token: str) -> str:
    """For whoever may read the data folder, where callers are asked for keys or tokens (JWT) of files: else not even
    `recmesh down` could have snapshots taken. It follows from the mesh's token, and does not tell it."""
    return hmac.new(mesh_token.encode(), b"gateway: the owner's key", "sha256").hexdigest()


def _service(
    name: str, home: Home, config: MeshConfig, ports: Mapping[str, int], common: Mapping[str, str],
    secrets: Mapping[str, str], root: Path,
) -> Component:
    public = name == "gateway"
    host = config.listen if public else "127.0.0.1"
    bind = f"[{host}]" if ":" in host else host
    seen_at = "127.0.0.1" if host in ("0.0.0.0", "localhost") else "[::1]" if host == "::" else bind
    rpc, http = ports[f"{name}.rpc"], ports[f"{name}.http"]
    env = dict(common) | {
        "RECMESH_SERVICE": name,
        "RECMESH_DATA_DIR": str(home.root),
        "RECMESH_RPC_ADDRESS": f"{bind}:{rpc}",
        "RECMESH_HTTP_ADDRESS": f"{bind}:{http}",
        "RECMESH_DATABASE_URL": (
            config.database.url.get_secret_value() if config.database.url
            else f"sqlite:///{home.root / 'db' / f'{name}.sqlite'}"
        ),
    }  # fmt: skip
    scheme: Literal["http", "https"] = "https" if config.env.get("RECMESH_HTTP_TLS_CERT") else "http"
    if public:
        pages = {service: f"{scheme}://127.0.0.1:{ports[f'{service}.http']}" for service in SERVICES}
        env["RECMESH_DASHBOARDS"] = json.dumps(pages)
    if public and (config.key or not ASKING.isdisjoint(config.env)):
        env[PUBLIC_KEY] = config.key or _owner_key(secrets["mesh"])
    return Component(
        name=name, stage=1, command=(sys.executable, "-m", f"services.{name}"), cwd=str(root),
        env=env | config.env,
        probe=Probe(scheme, f"{seen_at}:{http}"),
        addresses={"http": f"{scheme}://{seen_at}:{http}", "rpc": f"{seen_at}:{rpc}"},
    )  # fmt: skip


SERVICE_MESH = Table(address_names, components)
"""The real one."""
