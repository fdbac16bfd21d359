"""The FastAPI application."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from recmesh.runtime.ops.reference import SECURITY_POLICY, reference
from recmesh.runtime.room import Room
from recmesh.runtime.telemetry import TraceMiddleware
from services.gateway.app.access import Access
from services.gateway.app.audit import Audit
from services.gateway.app.freshness import Freshness
from services.gateway.app.inference import Inference
from services.gateway.app.labels import Labels
from services.gateway.app.models import Models
from services.gateway.app.ports import JobEvents
from services.gateway.app.scaling import Scaling
from services.gateway.app.webhooks import Webhooks
from services.gateway.peers.data import DataPeer, PlanningPeer
from services.gateway.peers.jobs import JobsPeer
from services.gateway.peers.mesh import Mesh
from services.gateway.rest import (
    code,
    datasets,
    inference,
    jobs,
    labels,
    models,
    openapi,
    planning,
    problems,
    scaling,
    serving,
    webhooks,
)
from services.gateway.rest.direct import InferDirect
from services.gateway.rest.guard import Asgi, BodyLimits, Guard
from services.gateway.rest.inference import InferLimits
from services.gateway.store.code import CodeStore
from services.gateway.store.shared_memory import SharedRegions


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes are made of."""

    models: Models
    freshness: Freshness
    inference: Inference
    labels: Labels
    regions: SharedRegions
    code: CodeStore
    jobs: JobsPeer
    data: DataPeer
    planning: PlanningPeer
    mesh: Mesh
    events: JobEvents
    dashboards: Mapping[str, str]
    version: str
    scaling: Scaling
    webhooks: Webhooks
    audit: Audit


def create(
    parts: Parts,
    *,
    ops: Sequence[BaseRoute],
    access: Access,
    loopback: bool,
    limits: BodyLimits,
    closing: asyncio.Event,
    room: Room,
    infer: InferLimits,
    metrics_token: str | None = None,
) -> Asgi:
    """The application behind its middleware."""
    app = FastAPI(
        title="recmesh gateway", version=parts.version, description=openapi.DESCRIPTION,
        openapi_tags=openapi.TAGS, docs_url=None, redoc_url=None, redirect_slashes=False,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )  # fmt: skip
    problems.install(app)
    inferring = inference.router(parts.models, parts.inference, parts.regions, limits=infer)
    for routes in (
        jobs.router(parts.jobs, parts.events, closing=closing),
        code.router(parts.code),
        datasets.router(parts.data, parts.jobs),
        models.router(parts.models, parts.freshness),
        inferring,
        labels.router(parts.labels),
        scaling.router(parts.models, parts.scaling),
        serving.router(parts.models, parts.inference),
        webhooks.router(parts.webhooks),
        planning.router(parts.planning, parts.mesh, parts.jobs, dashboards=parts.dashboards, version=parts.version),
    ):
        app.include_router(routes)
    app.router.routes.extend([Route("/docs", _docs(app)), *ops])
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's own way to extend it
    guarded = Guard(
        InferDirect(app, inferring.routes), access=access, loopback=loopback, limits=limits, room=room,
        audit=parts.audit, metrics_token=metrics_token,
    )  # fmt: skip
    return TraceMiddleware(guarded, service="gateway", paths=("/v1/", "/v2"))


def _docs(app: FastAPI) -> Callable[[Request], Awaitable[Response]]:
    async def docs(request: Request) -> Response:
        return HTMLResponse(reference(app.openapi()), headers={"Content-Security-Policy": SECURITY_POLICY})

    return docs


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes,
            tags=app.openapi_tags, license_info=app.license_info,
        )  # fmt: skip
        schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["apiKey"] = {"type": "http", "scheme": "bearer", "description": "The mesh's API key."}
        schema["security"] = [{"apiKey": []}]
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)  # wrong fields are answered with 400
        for unused in ("HTTPValidationError", "ValidationError"):
            schema["components"].get("schemas", {}).pop(unused, None)
        app.openapi_schema = schema
    return app.openapi_schema
