"""Settings come from the environment, once, in `__main__`; everything else gets them as values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.loopback import is_loopback
from recmesh.runtime.tls import Tls


@dataclass(frozen=True, slots=True)
class Env:
    """Annotation of a field whose variable is not `prefix + FIELD`: `Annotated[str, Env("BRAIN_RPC")]`."""

    name: str


class Settings(BaseModel):
    """Base of every configuration: immutable, and each wrong value is named by its variable."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def from_env(cls, env: Mapping[str, str], prefix: str) -> Self:
        """Read `prefix + FIELD` for each field; lists and mappings are JSON.

        An empty value means "not set", except for a plain string. Variables that are no field are
        left alone. InvalidArgument names each variable whose value is missing or wrong.
        """
        variables = {name: prefix + _env_name(name, field) for name, field in cls.model_fields.items()}
        violations: list[Violation] = []
        values: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            raw = env.get(variables[name])
            if raw is None or (raw == "" and field.annotation is not str):
                continue
            try:
                values[name] = orjson.loads(raw) if _is_json(field) else raw
            except orjson.JSONDecodeError as error:
                violations.append(Violation(variables[name], f"is not JSON: {error}"))
        if not violations:
            try:
                return cls.model_validate(values)
            except ValidationError as error:
                violations = [_violation(variables, item) for item in error.errors(include_input=False)]
        names = ", ".join(sorted({item.path.split(".")[0] for item in violations}))
        raise InvalidArgument(
            f"the environment has wrong settings: {names}", reason="BAD_CONFIG", violations=violations
        )


class ServiceSettings(Settings):
    """What all six services read, with prefix `RECMESH_`; each service's own config adds to it."""

    service: str = ""
    data_dir: Path = Path(".recmesh")
    rpc_address: str = "127.0.0.1:0"
    http_address: str = "127.0.0.1:0"
    nats_url: str = "nats://127.0.0.1:4222"
    nats_token: SecretStr | None = None
    nats_replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Servers of a NATS cluster that keep each stream: of those that are made, not of those that are there."""
    event_days: Annotated[float, Field(ge=1 / 24, le=3650)] = 7.0
    """Events are kept in NATS for so long, ..."""
    event_bytes: Annotated[int, Field(ge=16 << 20)] = 1 << 30
    """... and this many bytes of them, the newest; all services are to have the same."""
    dead_event_days: Annotated[float, Field(ge=1 / 24, le=3650)] = 30.0
    """Events that could not be handled, in a quarter of the bytes."""
    nats_dir: Path | None = None
    """Folder of a NATS server on this machine: while its disk is full, writes are refused at once."""
    grafana_url: Annotated[str, Field(pattern=r"^(https?://\S+)?$")] = ""
    """Where Grafana has the dashboards of infra/monitoring: ops pages link to their own. Empty: no links."""
    otlp_endpoint: str = ""
    """host:port of an OpenTelemetry collector (gRPC); empty: spans are not exported."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    api_key: SecretStr | None = None
    """The token that the mesh's own calls carry, and that servers ask for when it is set."""
    metrics_key: SecretStr | None = None
    """What lets Prometheus read `/metrics` beyond loopback, and nothing else; `api_key` does, too."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    tls_server_name: str = ""
    tls_role_name: str = ""
    """What certificates of jobs' roles are issued for, where that is not what those of services are."""
    http_tls_cert: Path | None = None
    """With its key: the HTTP port (pages, metrics, probes; of gateway the API) speaks TLS, and nothing else."""
    http_tls_key: Path | None = None
    drain_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    brain: Annotated[str, Env("BRAIN_RPC")] = ""
    jobmaster: Annotated[str, Env("JOBMASTER_RPC")] = ""
    forecaster: Annotated[str, Env("FORECASTER_RPC")] = ""
    shardsvc: Annotated[str, Env("SHARDSVC_RPC")] = ""
    ckptcache: Annotated[str, Env("CKPTCACHE_RPC")] = ""
    gateway: Annotated[str, Env("GATEWAY_RPC")] = ""

    @model_validator(mode="after")
    def _token_beyond_loopback(self) -> Self:
        is_open = not self.rpc_address.startswith("unix:") and not is_loopback(self.rpc_address)
        if is_open and self.rpc_address.rpartition(":")[0] and self.api_key is None:
            raise ValueError(
                f"{self.rpc_address} (RECMESH_RPC_ADDRESS) can be reached from other machines: the token of the mesh's "
                "services, RECMESH_API_KEY, must be set"
            )
        return self

    @property
    def metrics_token(self) -> str | None:
        """The key of metrics in clear; never log it."""
        return self.metrics_key.get_secret_value() if self.metrics_key else None

    @property
    def tls(self) -> Tls | None:
        """Certificates, when any are configured."""
        if self.tls_cert is None and self.tls_key is None and self.tls_ca is None:
            return None
        return Tls(cert=self.tls_cert, key=self.tls_key, ca=self.tls_ca, server_name=self.tls_server_name)

    @property
    def role_tls(self) -> Tls | None:
        """The same, for calls to roles of jobs."""
        return self.tls.expecting(self.tls_role_name) if self.tls else None

    @property
    def http_tls(self) -> Tls | None:
        """The certificate of the HTTP port; its clients show none, but keys."""
        if self.http_tls_cert is None and self.http_tls_key is None:
            return None
        return Tls(cert=self.http_tls_cert, key=self.http_tls_key, prefix="http_tls")

    @property
    def token(self) -> str | None:
        """The mesh token in clear, for servers and channels; never log it."""
        return self.api_key.get_secret_value() if self.api_key else None


def _env_name(name: str, field: FieldInfo) -> str:
    named = [item.name for item in field.metadata if isinstance(item, Env)]
    return named[0] if named else name.upper()


def _is_json(field: FieldInfo) -> bool:
    kinds = [field.annotation, *get_args(field.annotation)]
    found = [get_origin(kind) or kind for kind in kinds]
    return any(
        kind in (list, tuple, dict, set, frozenset) or (isinstance(kind, type) and issubclass(kind, BaseModel))
        for kind in found
    )


def _violation(variables: Mapping[str, str], item: Any) -> Violation:
    head, *rest = (str(part) for part in item["loc"]) if item["loc"] else ("(all)",)
    reason = "is not set, and has no default" if item["type"] == "missing" else str(item["msg"])
    return Violation(".".join([variables.get(head, head), *rest]), reason.removeprefix("Value error, "))
