"""What the API server refuses, in recmesh's own tree of errors (api-conventions, "Response Status Kind")."""

from typing import Any

import orjson

from recmesh.runtime.errors import (
    Aborted,
    AlreadyExists,
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

EXPIRED = "Expired"
"""Reason of an error that says: list anew, the version is no longer kept (410)."""


def error_of(code: int, body: bytes, *, doing: str) -> MeshError:
    """The error of an answer that is none of 2xx. `doing`: `create pods ads/worker-0-1`."""
    status = _status(body)
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    if not message:
        message = body[:500].decode(errors="replace").strip() or f"HTTP {code}"
    kind = _kind(code, reason, message)
    return kind(
        f"Kubernetes: {doing}: {message}", reason=EXPIRED if code == 410 else reason,
        violations=_violations(status), metadata={"http_status": str(code)},
    )


def _kind(code: int, reason: str, message: str) -> type[MeshError]:
    if code == 403 and "exceeded quota" in message:
        return ResourceExhausted
    if code == 409:
        return AlreadyExists if reason == "AlreadyExists" else Aborted
    if code in (500, 502, 503, 504, 429):
        return Unavailable          # a webhook, etcd or the server itself; 429: too many calls, or a disruption budget
    by_code: dict[int, type[MeshError]] = {
        400: InvalidArgument, 401: Unauthenticated, 403: PermissionDenied, 404: NotFound, 410: Aborted,
        413: InvalidArgument, 415: Internal, 422: InvalidArgument,
    }
    return by_code.get(code, FailedPrecondition if code < 500 else Unavailable)


def _status(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _violations(status: dict[str, Any]) -> list[Violation]:
    causes = (status.get("details") or {}).get("causes") or []
    return [
        Violation(str(cause.get("field") or "(root)"), str(cause.get("message") or cause.get("reason") or ""))
        for cause in causes if isinstance(cause, dict)
    ]
