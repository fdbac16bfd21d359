"""The ops face of a service: its page, live, and what probes and Prometheus read."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from inspect import isawaitable
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from recmesh.runtime.authorization import shows
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.loopback import is_loopback
from recmesh.runtime.net import split
from recmesh.runtime.ops.http import HttpServer
from recmesh.runtime.ops.panels import Choice, Page
from recmesh.runtime.ops.render import HERE, Fragment, Renderer
from recmesh.runtime.telemetry import Metrics
from recmesh.runtime.tls import Tls

MAX_VIEWERS = 64
"""Live pages at once; more are told to come back later."""
MAX_CHOICE = 128
"""Characters of what a viewer may choose."""
_SILENCE_S = 10.0
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Readiness = Callable[[], "str | Awaitable[str]"]
"""Why the service is not ready, or ''."""


class Live:
    """A page and its viewers; one rendering serves all who look at the same moment and chose the same."""

    def __init__(self, service: str, page: Page, *, version: str = "") -> None:
        self._service = service
        self._version = version
        self._renderer = Renderer(page)
        self._refresh_s = page.refresh_s
        self._started = time.time()
        self._viewers = 0
        self._rendered: dict[tuple[tuple[str, str], ...], tuple[float, list[Fragment]]] = {}
        """By what was chosen: when, and what it looked like."""
        self._rendering = asyncio.Lock()
        self.closing = asyncio.Event()

    async def page(self, request: Request) -> Response:
        """GET /"""
        html = await self._renderer.document(
            self._choice(request), service=self._service, version=self._version, started=self._started
        )
        return HTMLResponse(html, headers=_HEADERS)

    async def data(self, request: Request) -> Response:
        """GET /data: what the panels show, as JSON by their titles."""
        found = await self._renderer.data(self._choice(request))
        return Response(
            orjson.dumps(found, default=str), media_type="application/json", headers={"Cache-Control": "no-store"}
        )

    async def events(self, request: Request) -> Response:
        """GET /events: first all panels, then those that changed, until the viewer or the service leaves."""
        if self._viewers >= MAX_VIEWERS:
            return PlainTextResponse("too many viewers", status_code=503, headers={"Retry-After": "10"})
        return StreamingResponse(
            self._stream(self._choice(request)), media_type="text/event-stream",
            headers=_HEADERS | {"X-Accel-Buffering": "no"},
        )

    def _choice(self, request: Request) -> Choice:
        names = self._renderer.page.choices
        return {name: request.query_params[name][:MAX_CHOICE] for name in names if name in request.query_params}

    async def _stream(self, choice: Choice) -> AsyncIterator[bytes]:
        self._viewers += 1
        shown: list[Fragment] = []
        spoke_at = time.monotonic()
        try:
            hello = {"shape": self._renderer.shape_id, "started": self._started}
            yield b"retry: 1000\n\n" + _event("hello", hello)
            while not self.closing.is_set():
                fragments = await self._current(choice)
                changed = {
                    str(index): {"html": item.html, "chart": item.chart}
                    for index, item in enumerate(fragments) if not shown or shown[index] != item
                }
                shown = fragments
                if changed:
                    spoke_at = time.monotonic()
                    yield _event("panels", changed)
                elif time.monotonic() - spoke_at > _SILENCE_S:
                    spoke_at = time.monotonic()
                    yield b": still here\n\n"
                await self._pause()
        finally:
            self._viewers -= 1

    async def _current(self, choice: Choice) -> list[Fragment]:
        key = tuple(sorted(choice.items()))
        async with self._rendering:
            fresh = time.monotonic() - self._refresh_s * 0.9
            self._rendered = {each: found for each, found in self._rendered.items() if found[0] >= fresh}
            if key not in self._rendered:
                fragments = await self._renderer.fragments(choice)
                self._rendered[key] = time.monotonic(), fragments
            return self._rendered[key][1]

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._refresh_s):
                await self.closing.wait()
        except TimeoutError:
            return


def router(service: str, page: Page, *, version: str = "", live: Live | None = None) -> Router:
    """The page alone, to mount into another application: `app.mount("/ops", router("gateway", page))`."""
    shown = live or Live(service, page, version=version)
    return Router([
        Route("/", shown.page),
        Route("/events", shown.events),
        Route("/data", shown.data),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ])


class OpsServer:
    """HTTP on its own port: / (page), /events, /data, /healthz, /readyz, /metrics. First to start, last to stop.

    Beyond loopback only probes are answered without `token` (bearer, or as the password of any user), without which
    there is no such server; metrics also to `metrics_token`.

    /readyz is 200 only while the whole process is ready and `readiness` has no objection. On loopback
    it answers only requests that name a loopback host, which keeps foreign web pages out.
    `grafana`: its address, for a link to the service's dashboard.
    """

    def __init__(
        self, service: str, address: str, page: Page, *, readiness: Readiness | None = None,
        metrics: CollectorRegistry = REGISTRY, token: str | None = None, version: str = "",
        grafana: str = "", tls: Tls | None = None, metrics_token: str | None = None,
    ) -> None:
        """`tls`: https, and nothing else. InvalidArgument: others could reach it, and there is no token."""
        self.name = "ops"
        self._ready = False
        self._readiness = readiness
        self._registry = metrics
        self._live = Live(service, linked(page, grafana, service), version=version)
        routes = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
            Mount("/", router(service, page, live=self._live)),
        ]
        loopback = is_loopback(address)
        split(address, what=f"{service} ops", setting="http_address")
        if not loopback and token is None:
            reason = f"{address} can be reached from other machines: the mesh's token, RECMESH_API_KEY, must be set"
            raise InvalidArgument(f"{service}: {reason}", violations=[Violation("http_address", reason)])
        app: Any = Starlette(routes=routes)
        app = _Guard(app, loopback_only=loopback, token=None if loopback else token, metrics_token=metrics_token)
        self._server = HttpServer(f"{service} ops", address, app, grace_s=2.0, tls=tls)

    @property
    def address(self) -> str:
        """http(s)://host:port once started."""
        return self._server.address

    @property
    def port(self) -> int:
        """Once started."""
        return self._server.port

    async def start(self) -> None:
        """Listen; not ready yet."""
        await self._server.start()

    async def stop(self) -> None:
        """Viewers are let go, then the port is freed."""
        self._live.closing.set()
        await self._server.stop()

    async def wait(self) -> None:
        """Returns or raises when the server has ended."""
        await self._server.wait()

    def set_ready(self, ready: bool) -> None:
        """Told by the lifecycle."""
        self._ready = ready

    async def _healthz(self, request: Request) -> Response:
        return PlainTextResponse("ok")

    async def _objection(self) -> str:
        if not self._ready:
            return "starting or stopping"
        if self._readiness is None:
            return ""
        asked = self._readiness()
        return await asked if isawaitable(asked) else asked

    async def _readyz(self, request: Request) -> Response:
        reason = await self._objection()
        return JSONResponse({"ready": not reason, "reason": reason}, status_code=503 if reason else 200)

    async def _metrics(self, request: Request) -> Response:
        tell_ready(not await self._objection(), registry=self._registry)
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


def tell_ready(ready: bool, *, registry: CollectorRegistry = REGISTRY) -> None:
    """For Prometheus, which does not ask /readyz."""
    Metrics("", registry=registry).gauge("ready", "1 while the service takes work, as /readyz says").set(ready)


def linked(page: Page, grafana: str, service: str) -> Page:
    """The page with a link to its service's dashboard in Grafana (infra/monitoring), where there is one."""
    if not grafana:
        return page
    return replace(page, links={**page.links, "Grafana": f"{grafana.rstrip('/')}/d/recmesh-{service}"})


class _Guard:
    """Refuses foreign hosts on loopback, and viewers without the token beyond it."""

    OPEN = ("/healthz", "/readyz")

    def __init__(self, app: Any, *, loopback_only: bool, token: str | None, metrics_token: str | None) -> None:
        self._app = app
        self._loopback_only = loopback_only
        self._token = token
        self._of_metrics = [each for each in (token, metrics_token) if each]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope.get("headers", ())}
        refusal: Response | None = None
        if self._loopback_only and not _is_local(headers.get("host", "")):
            refusal = PlainTextResponse("this server answers on loopback only", status_code=421)
        elif self._token is not None and scope.get("path") not in self.OPEN:
            tokens = self._of_metrics if scope.get("path") == "/metrics" else [self._token]
            if not any(shows(each, headers.get("authorization", "")) for each in tokens):
                refusal = PlainTextResponse("the ops page needs the API key", status_code=401,
                                            headers={"WWW-Authenticate": 'Basic realm="recmesh"'})
        await (refusal or self._app)(scope, receive, send)


def _is_local(host: str) -> bool:
    return is_loopback(host if host.rpartition(":")[2].isdigit() else f"{host}:80")


def _event(name: str, data: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"
