"""config.toml of a mesh, checked; every field has a default, so that no file is a valid configuration."""

import ipaddress
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Violation
from recmesh.spec.base import Spec

Port = int


class Nats(Spec):
    """An external NATS with JetStream; without `url` the mesh starts its own."""

    url: str = ""
    """`nats://host:4222`; several with commas."""
    token: SecretStr | None = None


class Valkey(Spec):
    """An external Valkey or Redis; without `url` the mesh starts its own."""

    url: str = ""
    """`redis://user:password@host:6379/0`."""
    fsync: Literal["everysec", "always"] = "everysec"
    """Of the own one: queue state is derived from ledgers, so that a lost second costs time, not truth."""


class Database(Spec):
    """PostgreSQL for brain and forecaster; without `url` each has a SQLite file."""

    url: SecretStr | None = None
    """`postgresql://user:password@host:5432/recmesh`."""


class Ports(Spec):
    """Fixed ports; what is left out is chosen once and kept."""

    nats: Port | None = Field(default=None, gt=0, lt=65536)
    valkey: Port | None = Field(default=None, gt=0, lt=65536)
    services: dict[str, Port] = Field(default_factory=dict)
    """By address: `gateway.http`, `gateway.rpc`, `brain.http`, ..."""

    def fixed(self) -> dict[str, int]:
        """By address name, such as `nats` or `gateway.http`."""
        own = {"nats": self.nats, "valkey": self.valkey} | self.services
        return {name: port for name, port in own.items() if port is not None}


class MeshConfig(Spec):
    """What a user may set for `recmesh up`."""

    listen: str = "127.0.0.1"
    """Where gateway's API listens. Everything else stays on loopback."""
    api_key: SecretStr | None = None
    """What callers of gateway must show; needed beyond loopback. Or $RECMESH_API_KEY."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    restart_delay_s: float = Field(default=30.0, gt=0)
    """The longest wait before a component that keeps dying is started again."""
    otlp_endpoint: str = ""
    storage: str = ""
    """Where checkpoints, models and code go: an fsspec URI; empty: the data folder."""
    nats: Nats = Nats()
    valkey: Valkey = Valkey()
    database: Database = Database()
    ports: Ports = Ports()
    env: dict[str, str] = Field(default_factory=dict)
    """Given to every service: any of its own settings."""

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str) -> str:
        try:
            ipaddress.ip_address(value)
        except ValueError:
            if value != "localhost":
                raise ValueError("must be an IP address of this machine, such as 0.0.0.0") from None
        return value

    @property
    def key(self) -> str:
        """The API key in the clear; empty when there is none."""
        return self.api_key.get_secret_value() if self.api_key else ""

    @property
    def beyond_loopback(self) -> bool:
        """True when other machines can reach the API."""
        return self.listen != "localhost" and not ipaddress.ip_address(self.listen).is_loopback


def read(path: Path) -> dict[str, Any]:
    """The file's values, not yet checked; none when there is no file."""
    try:
        return tomllib.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError) as error:
        violation = Violation("(file)", str(error))
        raise InvalidArgument(f"{path} cannot be read", violations=[violation]) from error


def check(values: Mapping[str, Any], path: Path) -> MeshConfig:
    """The configuration; InvalidArgument names each wrong field, FailedPrecondition a missing API key."""
    config = MeshConfig.parse(dict(values))
    if config.beyond_loopback and not config.key:
        raise FailedPrecondition(
            f"refused to listen on {config.listen} without an API key: whoever reaches the API can run code "
            f"here; set RECMESH_API_KEY, or api_key in {path}",
            reason="API_KEY_REQUIRED",
        )
    return config
