"""What a process tells about itself: JSON logs, Prometheus metrics, OpenTelemetry traces."""

from recmesh.runtime.telemetry.logs import LogLine, RecentLogs, get_logger, recent_logs
from recmesh.runtime.telemetry.metrics import SECONDS, Metrics
from recmesh.runtime.telemetry.setup import TelemetrySettings, setup, shutdown
from recmesh.runtime.telemetry.traces import current_traceparent, extract, inject, span, trace_ids
from recmesh.runtime.telemetry.web import TraceMiddleware

__all__ = [
    "SECONDS", "LogLine", "Metrics", "RecentLogs", "TelemetrySettings", "TraceMiddleware", "current_traceparent",
    "extract", "get_logger", "inject", "recent_logs", "setup", "shutdown", "span", "trace_ids",
]
