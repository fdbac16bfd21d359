"""Problem details (RFC 9457) of gateway back into the errors they were made from."""

from typing import Any

import httpx

from recmesh.runtime.errors import (
    BY_GRPC_CODE,
    Aborted,
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    MeshError,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Violation,
)

_BY_STATUS: dict[int, type[MeshError]] = {
    400: InvalidArgument, 401: Unauthenticated, 403: PermissionDenied, 404: NotFound, 409: FailedPrecondition,
    413: ResourceExhausted, 415: InvalidArgument, 422: InvalidArgument, 429: ResourceExhausted,
    502: Unavailable, 503: Unavailable, 504: DeadlineExceeded,
}  # fmt: skip
_BY_NAME = {kind.__name__: kind for kind in (*BY_GRPC_CODE.values(), Aborted, AlreadyExists)}


def error_of(response: httpx.Response) -> MeshError:
    """The error that an unsuccessful response stands for."""
    try:
        body: Any = response.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        kind = _BY_STATUS.get(response.status_code, Internal)
        return kind(f"{response.request.method} {response.request.url.path}: {response.status_code} "
                    f"{response.text[:200].strip()}".strip())  # fmt: skip
    kind = _kind(body, response.status_code)
    told = body.get("detail") or body.get("error") or body.get("title") or f"status {response.status_code}"
    return kind(str(told), reason=str(body.get("reason", "")), violations=_violations(body))


def _kind(body: dict[str, Any], status: int) -> type[MeshError]:
    """The most exact that the body tells: its gRPC code or class, else what the status allows."""
    for key in ("code", "status_name", "type", "title", "reason"):
        name = str(body.get(key, "")).rpartition("/")[2].rpartition(":")[2]
        found = BY_GRPC_CODE.get(name.upper().replace("-", "_")) or _BY_NAME.get(name)
        if found is not None:
            return found
    return _BY_STATUS.get(status, Internal)


def _violations(body: dict[str, Any]) -> list[Violation]:
    items = body.get("violations") or []
    return [
        Violation(str(item.get("path", "")), str(item.get("reason", "")))
        for item in items
        if isinstance(item, dict)
    ]
