"""What CN and HN tell of themselves as Prometheus metrics, on a port of its own (`--metrics`)."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from recmesh.runtime import net
from recmesh.runtime.errors import InvalidArgument

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


class Told(Collector):
    """The state (docs/reference/serving.md), asked for anew at each scrape."""

    def __init__(self, state: Callable[[], Mapping[str, Any]]) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """`recmesh_hn_…` or `recmesh_cn_…`, by the state's role."""
        state = self._state()
        prefix = f"recmesh_{state['role']}"
        for name, about in (
            ("queued", "Requests that wait for the model"), ("running", "Requests in the batch that is run"),
        ):  # fmt: skip
            yield from _by_model(f"{prefix}_{name}", about, GaugeMetricFamily, state, name)
        for name, about in (
            ("calls", "Requests for which HNs were asked"), ("hedges", "Requests for which a second HN was asked"),
        ):  # fmt: skip
            yield from _by_model(f"{prefix}_{name}", about, CounterMetricFamily, state, name)
        if "requests" in state:
            yield GaugeMetricFamily(f"{prefix}_requests", "Requests in the process", value=state["requests"])
        if admission := state.get("admission"):
            for name, about in _GAUGES.items():
                yield GaugeMetricFamily(f"{prefix}_admission_{name}", about, value=admission[name])
            for name, about in _COUNTERS.items():
                yield CounterMetricFamily(f"{prefix}_admission_{name}", about, value=admission[name])
            refused = CounterMetricFamily(f"{prefix}_admission_refused", "Requests refused", labels=["reason"])
            for reason, count in admission["refused"].items():
                refused.add_metric([reason], count)
            yield refused


def serve(address: str, state: Callable[[], Mapping[str, Any]]) -> str:
    """Answer scrapes at `host:port` (0: a free one) from a thread; where. InvalidArgument, PortTaken."""
    host, port = net.split(address, what="metrics", setting="--metrics")
    if port:
        net.check_free(address, what="metrics", setting="--metrics")
    registry = CollectorRegistry()
    registry.register(Told(state))
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise InvalidArgument(f"metrics cannot be served at {address}: {error.strerror or error}") from None
    return f"{host}:{server.server_port}"


def _by_model(
    name: str, about: str, kind: type[GaugeMetricFamily] | type[CounterMetricFamily], state: Mapping[str, Any], key: str
) -> Iterable[Metric]:
    values = {model: told[key] for model, told in state["models"].items() if key in told}
    if values:
        made = kind(name, about, labels=["model"])
        for model, value in values.items():
            made.add_metric([model], value)
        yield made
