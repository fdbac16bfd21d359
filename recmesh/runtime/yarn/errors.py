"""What YARN refuses, in recmesh's own tree of errors."""

from typing import Any

import orjson

from recmesh.runtime.errors import (
    AlreadyExists,
    FailedPrecondition,
    MeshError,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)

_KINDS: dict[int, type[MeshError]] = {
    401: Unauthenticated, 403: PermissionDenied, 404: NotFound, 409: AlreadyExists,
}


def error_of(status: int, body: bytes, *, doing: str) -> MeshError:
    """The error of an answer that is none of 2xx. YARN answers with 400 or 500 when a name is taken, and with 400 when
    a service's state forbids what is asked of it."""
    message = _message(body) or f"HTTP {status}"
    kind = _KINDS.get(status, FailedPrecondition if status < 500 and status != 429 else Unavailable)
    if "already exists" in message or "already taken" in message:
        kind = AlreadyExists
    elif status == 400 and "doesn't exist" in message:
        kind = NotFound
    return kind(f"YARN: {doing}: {message[:500]}", metadata={"http_status": str(status)})


def _message(body: bytes) -> str:
    """Services answer with `diagnostics`, ResourceManager and NodeManagers with a `RemoteException`."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:500].decode(errors="replace").strip()
    if not isinstance(found, dict):
        return str(found)
    remote = found.get("RemoteException")
    inner = remote if isinstance(remote, dict) else found
    return str(inner.get("message") or inner.get("diagnostics") or "")
