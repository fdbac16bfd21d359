"""One trace across HTTP, NATS and gRPC: W3C `traceparent` in, spans, `traceparent` out."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from recmesh.runtime.errors import CallerError

Attribute = str | int | float | bool

_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("recmesh")   # a proxy: it finds the provider that `setup` installs later


def extract(headers: Mapping[str, str]) -> Context:
    """The caller's trace context from lower-case headers; an empty context where there is none."""
    return _propagator.extract(headers)


def inject(headers: MutableMapping[str, str]) -> None:
    """Add `traceparent` (and `tracestate`) of the current span, if there is one."""
    _propagator.inject(headers)


def current_traceparent() -> str:
    """The W3C header of the current span, or ''."""
    headers: dict[str, str] = {}
    inject(headers)
    return headers.get("traceparent", "")


def trace_ids() -> tuple[str, str]:
    """(trace id, span id) of the current span in hex, or two empty strings."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return "", ""
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


@contextmanager
def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: Context | None = None,
    attributes: Mapping[str, Attribute] | None = None,
) -> Iterator[Span]:
    """A span around the block; an error that leaves the block marks it, unless the caller is at fault."""
    with _tracer.start_as_current_span(
        name, context=parent, kind=kind, attributes=attributes,
        record_exception=False, set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except CallerError as error:
            current.set_attribute("recmesh.reason", error.reason)
            raise
        except Exception as error:
            current.set_status(Status(StatusCode.ERROR, type(error).__name__))
            current.record_exception(error)
            raise
