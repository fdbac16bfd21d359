"""Everything the environment may set, prefix `RECMESH_`."""

from typing import Annotated

from pydantic import Field, SecretStr

from recmesh.runtime.settings import ServiceSettings


class Config(ServiceSettings):
    """What all services read, and the queue's store."""

    service: str = "shardsvc"
    valkey_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """`redis://`, `rediss://` or `unix://`, with the password where one is needed."""
    valkey_connections: Annotated[int, Field(ge=1, le=1024)] = 8
    sweep_s: Annotated[float, Field(gt=0, le=60)] = 0.5
    """How often leases that are over are looked for; workers that ask find them too."""
