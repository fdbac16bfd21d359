"""Errors as problem details (RFC 9457), whatever raised them."""

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from recmesh.runtime.errors import Internal, InvalidArgument, MeshError, NotFound, Unauthenticated, Violation

MEDIA_TYPE = "application/problem+json"
PROTOCOL_MEDIA_TYPE = "application/json"
"""Under /v2: KServe's client looks for `error` in nothing else."""


class ViolationModel(BaseModel):
    """One wrong field."""

    path: str = Field(examples=["roles.worker.replicas"])
    reason: str = Field(examples=["Input should be greater than or equal to 0"])


class Problem(BaseModel):
    """Problem details (RFC 9457) of every error of this API."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "urn:recmesh:problem:INVALID_SPEC",
                "title": "Bad Request",
                "status": 400,
                "detail": "the TrainingJob has 1 wrong field(s)",
                "instance": "/v1/jobs",
                "reason": "INVALID_SPEC",
                "code": "INVALID_ARGUMENT",
                "violations": [{"path": "roles.worker.replicas", "reason": "must not be negative"}],
                "request_id": "5f0c1c6e6a2b4d6c",
                "error": "the TrainingJob has 1 wrong field(s)",
            }
        }
    )

    type: str
    title: str
    status: int
    detail: str
    instance: str
    reason: str
    """A stable word that programs may compare."""
    code: str
    """The gRPC code of the same error."""
    violations: list[ViolationModel]
    request_id: str
    """The same as the header X-Request-Id; the service's log has it."""
    error: str
    """All of it in one text, for clients of the inference protocol."""


def status_of(error: MeshError) -> int:
    """The HTTP status of an error."""
    return {"TOO_LARGE": 413, "METHOD_NOT_ALLOWED": 405, "UNSUPPORTED_MEDIA_TYPE": 415}.get(
        error.reason, error.http_status
    )


def problem(
    error: MeshError, *, path: str, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """The response for an error."""
    status = status_of(error)
    body = {
        "type": f"urn:recmesh:problem:{error.reason}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.message,
        "instance": path,
        "reason": error.reason,
        "code": error.grpc_code,
        "violations": [{"path": item.path, "reason": item.reason} for item in error.violations],
        "request_id": request_id,
        "error": str(error),
    }
    kind = PROTOCOL_MEDIA_TYPE if path == "/v2" or path.startswith("/v2/") else MEDIA_TYPE
    extra = dict(headers or {})
    if isinstance(error, Unauthenticated):
        scheme = "Bearer" if path.startswith(("/v1", "/v2")) else "Basic"
        extra["WWW-Authenticate"] = f'{scheme} realm="recmesh"'
    if status in (429, 503):
        wait_s = float(error.metadata.get("retry_after_s", 1))
        extra.setdefault("Retry-After", str(max(1, math.ceil(wait_s))))
    return Response(orjson.dumps(body), status_code=status, media_type=kind, headers=extra)


def install(app: FastAPI) -> None:
    """Answer every error of the app's routes with problem details."""

    @app.exception_handler(MeshError)
    async def on_mesh_error(request: Request, error: MeshError) -> Response:
        return _answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> Response:
        return _answer(request, invalid(error.errors()))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        return _answer(request, _from_http(error, request), error.headers)

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> Response:
        return _answer(request, unexpected(request.scope.get("recmesh.request_id", "")))


def unexpected(request_id: str) -> Internal:
    """What a caller is told of a bug: where to look for it, and nothing else."""
    return Internal(f"internal error; the gateway's log has it as {request_id}", reason="INTERNAL")


def invalid(items: Any) -> InvalidArgument:
    """Pydantic's errors in our words; the place (`query`, `body`) leads the path."""
    violations = [
        Violation(
            ".".join(str(part) for part in item["loc"]) or "body",
            str(item["msg"]).removeprefix("Value error, "),
        )
        for item in items
    ]
    return InvalidArgument(
        f"the request has {len(violations)} wrong field(s)", reason="INVALID_REQUEST", violations=violations
    )


def _from_http(error: HTTPException, request: Request) -> MeshError:
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return NotFound(f"there is no {what}", reason="NO_ROUTE")
    if error.status_code == 405:
        return InvalidArgument(f"{what} is not allowed", reason="METHOD_NOT_ALLOWED")
    if error.status_code < 500:
        return InvalidArgument(str(error.detail), reason="BAD_REQUEST")
    return Internal(str(error.detail))


def _answer(request: Request, error: MeshError, headers: Mapping[str, str] | None = None) -> Response:
    request.scope.get("recmesh.told", {})["reason"] = error.reason       # for the audit
    return problem(
        error, path=request.url.path, request_id=request.scope.get("recmesh.request_id", ""), headers=headers
    )
