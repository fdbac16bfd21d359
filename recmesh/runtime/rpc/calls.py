"""What surrounds every call, asyncio or threads: metadata, token, span, histogram."""

import hmac
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from recmesh.runtime.errors import MeshError, Unauthenticated
from recmesh.runtime.telemetry import Metrics, extract, inject, span

Metadata = Sequence[tuple[str, str | bytes]]

OPEN_METHODS = ("/grpc.health.v1.Health/",)
"""Probes carry no token."""

_metrics = Metrics("")
_client_s = _metrics.histogram("rpc_client_seconds", "Time of outbound calls", labels=("method", "code"))
_server_s = _metrics.histogram("rpc_server_seconds", "Time to answer calls", labels=("method", "code"))


class Outcome:
    """The status under which a call is counted."""

    code = "OK"

    def failed(self, error: BaseException) -> None:
        """Count it under the error's code, unless the code that was answered is known already."""
        if self.code != Outcome.code:
            return      # what ends an answered call is gRPC's own exception
        if isinstance(error, MeshError):
            self.code = error.grpc_code
        elif isinstance(error, Exception):
            self.code = "INTERNAL"
        else:   # cancelled, or the generator was closed by the peer's leaving
            self.code = "CANCELLED"


def outbound_metadata(given: Any, token: str | None) -> list[tuple[str, str | bytes]]:
    """The caller's metadata, the mesh token, and the current trace."""
    headers: dict[str, str] = {}
    inject(headers)
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    return [*(given or ()), *headers.items()]


def _traced(method: str, kind: SpanKind, parent: Context | None = None) -> AbstractContextManager[object]:
    """A span, but for the probes that come every other second and say nothing."""
    if method.startswith(OPEN_METHODS):
        return nullcontext()
    return span(method, kind=kind, parent=parent, attributes={"rpc.system": "grpc"})


@contextmanager
def client_call(method: str) -> Iterator[Outcome]:
    """A client span and its histogram."""
    started, outcome = perf_counter(), Outcome()
    with _traced(method, SpanKind.CLIENT):
        try:
            yield outcome
        except BaseException as error:
            outcome.failed(error)
            raise
        finally:
            _client_s.labels(method, outcome.code).observe(perf_counter() - started)


@contextmanager
def server_call(method: str, metadata: Metadata) -> Iterator[Outcome]:
    """A server span under the caller's trace, and its histogram."""
    headers = {key: value for key, value in metadata if isinstance(value, str)}
    started, outcome = perf_counter(), Outcome()
    with _traced(method, SpanKind.SERVER, parent=extract(headers)):
        try:
            yield outcome
        except BaseException as error:
            outcome.failed(error)
            raise
        finally:
            _server_s.labels(method, outcome.code).observe(perf_counter() - started)


def check_token(expected: str | None, metadata: Metadata, *, method: str) -> None:
    """Unauthenticated unless the call carries the mesh token; compared in constant time."""
    if expected is None or method.startswith(OPEN_METHODS):
        return
    given = next((value for key, value in metadata if key == "authorization"), "")
    given_bytes = given if isinstance(given, bytes) else given.encode()
    if not hmac.compare_digest(given_bytes, b"Bearer " + expected.encode()):
        problem = "a wrong token" if given_bytes else "no token"
        raise Unauthenticated(f"the call to {method} carries {problem}", reason="BAD_TOKEN")


def timeout_of(context: Any) -> float | None:
    """The inbound call's remaining seconds; None without a deadline (gRPC says so by a huge number)."""
    left = context.time_remaining()
    return None if left is None or left > 365 * 86_400 else float(left)


