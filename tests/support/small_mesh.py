"""A mesh of tiny HTTP services in place of the six; `small_service.py` says how they misbehave."""

import sys
from collections.abc import Mapping
from pathlib import Path

from recmesh.cli.mesh import servers
from recmesh.cli.mesh.component import Component, Probe
from recmesh.cli.mesh.config import MeshConfig
from recmesh.cli.mesh.home import Home
from recmesh.cli.mesh.table import Table

NAMES = ("one", "two")
_SERVICE = Path(__file__).with_name("small_service.py")


def address_names(config: MeshConfig) -> list[str]:
    return [*([] if config.valkey.url else ["valkey"]), *(f"{name}.http" for name in NAMES)]


def components(
    home: Home, config: MeshConfig, ports: Mapping[str, int], secrets: Mapping[str, str]
) -> list[Component]:
    """A real Valkey below, two tiny services above."""
    services = [_service(name, home, ports[f"{name}.http"], config) for name in NAMES]
    if config.valkey.url:
        return services
    folder, password = home.root / "valkey", secrets["valkey"]
    return [servers.valkey(folder, port=ports["valkey"], password=password, fsync="always"), *services]


def _service(name: str, home: Home, port: int, config: MeshConfig) -> Component:
    return Component(
        name=name, stage=1,
        command=(sys.executable, "-S", "-E", str(_SERVICE), str(port), str(home.root / "behave" / name)),
        probe=Probe("http", f"127.0.0.1:{port}"), addresses={"http": f"http://127.0.0.1:{port}"},
        env={"LOG_LEVEL": config.log_level},
    )  # fmt: skip


SMALL_MESH = Table(address_names, components)
