"""Everything the environment may set."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from recmesh.runtime.settings import Env, ServiceSettings
from services.gateway.domain.access import is_loopback

PREFIX = "RECMESH_"
PEERS = ("jobmaster", "shardsvc", "ckptcache", "brain", "forecaster")
CHILD_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR", "CUDA_VISIBLE_DEVICES")

Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(gt=0)]


class Config(ServiceSettings):
    """gateway's settings; the service's own variables begin with RECMESH_GATEWAY_."""

    storage_uri: str = ""
    """Root of models, code and checkpoints; empty: `storage/` in the data folder."""
    public_api_key: Annotated[SecretStr | None, Env("PUBLIC_API_KEY")] = None
    """What callers of the public API must show; without it the API is open, on loopback only."""
    keys_file: Annotated[Path | None, Env("GATEWAY_KEYS_FILE")] = None
    """API keys with scopes, models, namespaces and rates (YAML)."""
    jwks_file: Annotated[Path | None, Env("GATEWAY_JWKS_FILE")] = None
    """Keys that tokens (JWT) are signed with."""
    jwt_issuer: Annotated[str, Env("GATEWAY_JWT_ISSUER")] = ""
    jwt_audience: Annotated[str, Env("GATEWAY_JWT_AUDIENCE")] = ""
    dashboards: dict[str, str] = Field(default_factory=dict)
    """Address of each service's ops page, for links."""
    max_body_bytes: Annotated[Count, Env("GATEWAY_MAX_BODY_BYTES")] = 4 << 20
    max_infer_bytes: Annotated[Count, Env("GATEWAY_MAX_INFER_BYTES")] = 256 << 20
    max_code_bytes: Annotated[Count, Env("GATEWAY_MAX_CODE_BYTES")] = 100 << 20
    max_code_unpacked_bytes: Annotated[Count, Env("GATEWAY_MAX_CODE_UNPACKED_BYTES")] = 512 << 20
    max_code_members: Annotated[Count, Env("GATEWAY_MAX_CODE_MEMBERS")] = 20_000
    infer_timeout_s: Annotated[Seconds, Env("GATEWAY_INFER_TIMEOUT_S")] = 30.0
    max_infer_timeout_s: Annotated[Seconds, Env("GATEWAY_MAX_INFER_TIMEOUT_S")] = 300.0
    load_timeout_s: Annotated[Seconds, Env("GATEWAY_LOAD_TIMEOUT_S")] = 300.0
    infer_queue: Annotated[Count, Env("GATEWAY_INFER_QUEUE")] = 256
    shared_memory: Annotated[Literal["off", "loopback", "any"], Env("GATEWAY_SHARED_MEMORY")] = "loopback"
    """Who may have tensors read from and written to /dev/shm."""
    rate_step_s: Annotated[Seconds, Env("GATEWAY_RATE_STEP_S")] = 10.0

    @model_validator(mode="after")
    def _key_beyond_loopback(self) -> Self:
        for address in (self.http_address, self.rpc_address):
            if not is_loopback(address) and not (self.public_api_key or self.keys_file or self.jwks_file):
                raise ValueError(
                    f"{address} can be reached from other machines: RECMESH_PUBLIC_API_KEY must be set, "
                    "or RECMESH_GATEWAY_KEYS_FILE, or RECMESH_GATEWAY_JWKS_FILE"
                )
        if not is_loopback(self.rpc_address) and self.token is None:
            raise ValueError(
                f"{self.rpc_address} can be reached from other machines, and registers models for the mesh's services: "
                "their token, RECMESH_API_KEY, must be set"
            )
        return self

    @property
    def access_key(self) -> str | None:
        """The key that callers must show, in clear; never log it."""
        return self.public_api_key.get_secret_value() if self.public_api_key else None

    @property
    def storage_root(self) -> Path:
        """The storage folder."""
        return (
            Path(self.storage_uri.removeprefix("file://")) if self.storage_uri else self.data_dir / "storage"
        )


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """What a model server's process sees: no secrets, one thread, a quiet TensorFlow."""
    kept = {name: env[name] for name in CHILD_VARIABLES if name in env}
    return {
        **kept, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0",
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
