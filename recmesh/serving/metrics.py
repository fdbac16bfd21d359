"""What CN and HN tell of themselves as Prometheus metrics: on a port of its own (`--metrics`), or by their gateway."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from recmesh.runtime import net
from recmesh.runtime.authorization import shows
from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.loopback import is_loopback
from recmesh.runtime.tls import Tls, renewing

IDLE_S = 10.0
"""Who asks for nothing for so long is let go."""
_PLAIN = ("Content-Type", "text/plain; charset=utf-8")
_GAUGES = {
    "window_bytes": "Bytes that may be on their way to this HN",
    "in_flight_bytes": "Bytes that are",
    "congestion_level": "How much longer messages take than alone on the link; 1: twice as long",
    "bandwidth_bytes_per_s": "Of the link, as measured",
    "waiting": "Requests that wait for a grant",
    "waiting_bytes": "Their bytes",
}
_COUNTERS = {
    "asked": "Requests that asked", "granted": "Requests that were granted", "arrived": "Granted requests that came",
    "cancelled": "Requests that were taken back", "came_too_late": "Requests that came without a grant",
}  # fmt: skip


_BY_MODEL: Mapping[str, tuple[type[GaugeMetricFamily] | type[CounterMetricFamily], str]] = {
    "queued": (GaugeMetricFamily, "Requests that wait for the model"),
    "running": (GaugeMetricFamily, "Requests in the batch that is run"),
    "answered": (CounterMetricFamily, "Requests that the model answered"),
    "calls": (CounterMetricFamily, "Requests for which HNs were asked"),
    "hedges": (CounterMetricFamily, "Requests for which a second HN was asked"),
}


class Told(Collector):
    """The state (docs/reference/serving.md), asked for anew at each scrape."""

    def __init__(self, state: Callable[[], Mapping[str, Any]]) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """`recmesh_hn_…` or `recmesh_cn_…`, by the state's role."""
        return families([({}, self._state())])


def families(
    states: Iterable[tuple[Mapping[str, str], Mapping[str, Any]]], *, labels: Sequence[str] = ()
) -> Iterable[Metric]:
    """The metrics of processes by their states, each with values for `labels`, which all its series have."""
    made = _Families(labels)
    for of, state in states:
        prefix = f"recmesh_{state['role']}"
        for name, (kind, about) in _BY_MODEL.items():
            for model, told in state["models"].items():
                if name in told:
                    made.add(kind, f"{prefix}_{name}", about, told[name], of, {"model": model})
        if "requests" in state:
            made.add(GaugeMetricFamily, f"{prefix}_requests", "Requests in the process", state["requests"], of, {})
        if admission := state.get("admission"):
            for name, about in _GAUGES.items():
                made.add(GaugeMetricFamily, f"{prefix}_admission_{name}", about, admission[name], of, {})
            for name, about in _COUNTERS.items():
                made.add(CounterMetricFamily, f"{prefix}_admission_{name}", about, admission[name], of, {})
            for reason, count in admission["refused"].items():
                refused = f"{prefix}_admission_refused"
                made.add(CounterMetricFamily, refused, "Requests refused", count, of, {"reason": reason})
    return made.found.values()


class _Families:
    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        self.found: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}

    def add(
        self, kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, about: str, value: float,
        of: Mapping[str, str], own: Mapping[str, str],
    ) -> None:  # fmt: skip
        if name not in self.found:
            self.found[name] = kind(name, about, labels=[*self._labels, *own])
        self.found[name].add_metric([*(of[each] for each in self._labels), *own.values()], value)


def serve(
    address: str, state: Callable[[], Mapping[str, Any]], *, keys: Sequence[str] = (), tls: Tls | None = None
) -> str:
    """Answer scrapes (`/metrics`) and probes (`/healthz`) at `host:port` (0: a free one) from threads; the URL of it.

    With `tls` it is https, and nothing else. Beyond loopback scrapes must show one of `keys` (bearer, or as the
    password of any user); probes need none. InvalidArgument, also beyond loopback without a key, or where certificates
    cannot be used; PortTaken.
    """
    host, port = net.split(address, what="metrics", setting="--metrics")
    is_open = not is_loopback(address)
    if is_open and not any(keys):
        reason = f"{address} can be reached from other machines: RECMESH_METRICS_KEY or RECMESH_API_KEY must be set"
        raise InvalidArgument(f"metrics: {reason}", violations=[Violation("--metrics", reason)])
    if port:
        net.check_free(address, what="metrics", setting="--metrics")
    context = renewing(tls) if tls else None
    registry = CollectorRegistry()
    registry.register(Told(state))
    family = _SixServer if ":" in host else _Server
    app = _guarded(make_wsgi_app(registry), [each for each in keys if each] if is_open else None)
    try:
        server = make_server(host, port, app, server_class=family, handler_class=_Handler)
    except OSError as error:
        raise InvalidArgument(f"metrics cannot be served at {address}: {error.strerror or error}") from None
    server.tls = context
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{server.server_port}"


def _guarded(metrics: WSGIApplication, keys: Sequence[str] | None) -> WSGIApplication:
    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/healthz":
            start_response("200 OK", [_PLAIN])
            return [b"ok"]
        if keys is not None and not any(shows(each, environ.get("HTTP_AUTHORIZATION", "")) for each in keys):
            start_response("401 Unauthorized", [_PLAIN, ("WWW-Authenticate", 'Basic realm="recmesh"')])
            return [b"metrics need the key of metrics, or the mesh's token"]
        if path != "/metrics":
            start_response("404 Not Found", [_PLAIN])
            return [b"there are /metrics and /healthz"]
        return metrics(environ, start_response)

    return app


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the request's own thread: a client that is slow to shake hands holds up no other."""
        if self.tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(IDLE_S)
        try:
            secured = self.tls.wrap_socket(request, server_side=True)
        except OSError:             # it speaks no TLS, trusts another authority, or has gone
            return
        with secured:
            super().finish_request(secured, client_address)
            self.shutdown_request(secured)      # what came in as `request` is no socket any more


class _SixServer(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line."""
