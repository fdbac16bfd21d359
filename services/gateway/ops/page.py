"""Health, metrics and the page itself, as routes of the gateway's own HTTP port."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import JSONResponse, RedirectResponse, Response

from services.gateway.ops.view import View


def router(view: View) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.get("/")
    async def page() -> Response:
        return RedirectResponse("/docs")

    @routes.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @routes.get("/readyz")
    async def readyz() -> Response:
        return JSONResponse({"ready": view.ready}, status_code=200 if view.ready else 503)

    @routes.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return routes
