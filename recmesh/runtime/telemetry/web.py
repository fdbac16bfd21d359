"""Spans and latencies of HTTP requests, for any ASGI application."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

from opentelemetry.trace import Span, SpanKind
from prometheus_client import Histogram

from recmesh.runtime.telemetry.metrics import Metrics
from recmesh.runtime.telemetry.traces import TRACE_HEADERS, extract, span

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_seconds = Metrics("").histogram(
    "http_server_seconds", "Time to answer HTTP requests", labels=("service", "method", "route", "status")
)


class TraceMiddleware:
    """Continues the caller's trace, names the span by route, and measures.

    The label is the route's template, never the path: paths hold ids, and ids would be endless labels.
    """

    def __init__(self, app: App, *, service: str, paths: tuple[str, ...] = ("/",)) -> None:
        """Only requests below `paths` have spans: probes and browsers' own requests would hide the others."""
        self._app = app
        self._paths = paths
        self._service = service
        self._found: dict[tuple[str, str, int], Histogram] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        started = perf_counter()

        async def observe(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method = str(scope["method"])
        with self._span(scope, method) as current:
            try:
                await self._app(scope, receive, observe)
            finally:
                route = getattr(scope.get("route"), "path", "(no route)")
                if current is not None:
                    current.update_name(f"{method} {route}")
                    current.set_attribute("http.request.method", method)
                    current.set_attribute("http.route", route)
                    current.set_attribute("http.response.status_code", status)
                self._series(method, route, status).observe(perf_counter() - started)

    def _series(self, method: str, route: str, status: int) -> Histogram:
        """Kept: to find it by its labels takes longer than to count."""
        key = (method, route, status)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _seconds.labels(self._service, method, route, str(status))
        return found

    def _span(self, scope: Scope, method: str) -> AbstractContextManager[Span | None]:
        if not str(scope["path"]).startswith(self._paths):
            return nullcontext()
        return span(f"{method} (no route)", kind=SpanKind.SERVER, parent=extract(_carried(scope["headers"])))


def _carried(headers: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Of the headers those that carry a trace."""
    return {name.decode(): value.decode("latin-1") for name, value in headers if name in TRACE_HEADERS}
