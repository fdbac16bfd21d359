"""Telemetry of a process, switched on once at its start."""

import logging
import sys
from typing import Protocol

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.telemetry.logs import JsonFormatter, get_logger, recent_logs
from recmesh.runtime.telemetry.traces import record


class TelemetrySettings(Protocol):
    """The part of `ServiceSettings` that telemetry reads."""

    @property
    def log_level(self) -> str:
        """debug, info, warning or error."""
        ...

    @property
    def otlp_endpoint(self) -> str:
        """host:port of a collector, or ''."""
        ...


_provider: TracerProvider | None = None
_QUIET = ("grpc", "asyncio", "uvicorn", "httpx", "httpcore", "nats", "opentelemetry")


def setup(service: str, settings: TelemetrySettings) -> None:
    """JSON logs to stderr, and spans, exported when a collector is configured. Calling again replaces."""
    root = logging.getLogger()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service))
    for old in [item for item in root.handlers if isinstance(item.formatter, JsonFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    if recent_logs not in root.handlers:
        root.addHandler(recent_logs)
    root.setLevel(settings.log_level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel("WARNING")
    logging.captureWarnings(True)
    _trace(service, settings.otlp_endpoint)


def shutdown() -> None:
    """Send what is left of the spans; returns within seconds even when the collector is gone."""
    if _provider is not None:
        _provider.shutdown()


def _trace(service: str, endpoint: str) -> None:
    global _provider
    record(bool(endpoint))
    if _provider is None:
        _provider = TracerProvider(
            resource=Resource.create({"service.name": service, "service.namespace": "recmesh"}),
            shutdown_on_exit=False,
        )
        trace.set_tracer_provider(_provider)
        if endpoint:
            _provider.add_span_processor(_exporter(endpoint))


def _exporter(endpoint: str) -> BatchSpanProcessor:
    # Imported here: a training image has no exporter, and most processes export nothing.
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    except ImportError:
        reason = "needs opentelemetry-exporter-otlp-proto-grpc, which is not installed"
        raise InvalidArgument(
            f"otlp_endpoint {reason}", violations=[Violation("otlp_endpoint", reason)]
        ) from None
    get_logger(__name__).info("spans go to %s", endpoint)
    return BatchSpanProcessor(
        OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https"), timeout=5),
        max_queue_size=4096, schedule_delay_millis=1000, export_timeout_millis=5000,
    )
