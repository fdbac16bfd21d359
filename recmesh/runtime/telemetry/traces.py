"""One trace across HTTP, NATS and gRPC: W3C `traceparent` in, spans, `traceparent` out."""

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from recmesh.runtime.errors import CallerError

Attribute = str | int | float | bool
TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})

_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("recmesh")   # a proxy: it finds the provider that `setup` installs later
_ids = RandomIdGenerator()
_is_recorded = True


def record(wanted: bool) -> None:
    """Whether spans are kept to be told. Where nobody is told of them they have ids all the same, for logs and for
    whoever is called, and cost a fraction of those that are."""
    global _is_recorded
    _is_recorded = wanted


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
    if not _is_recorded:
        with trace.use_span(_unrecorded(parent), record_exception=False, set_status_on_exception=False) as current:
            yield current
        return
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


def _unrecorded(parent: Context | None) -> Span:
    """A span's ids; who is called with them continues the trace as if this one were told."""
    above = trace.get_current_span(parent).get_span_context()
    if above.is_valid:
        trace_id, flags, state = above.trace_id, above.trace_flags, above.trace_state
    else:
        trace_id, flags, state = _ids.generate_trace_id(), TraceFlags(TraceFlags.SAMPLED), None
    return NonRecordingSpan(
        SpanContext(trace_id, _ids.generate_span_id(), is_remote=False, trace_flags=flags, trace_state=state)
    )
