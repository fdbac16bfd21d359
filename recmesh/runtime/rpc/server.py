"""The gRPC server of a service, on asyncio."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from recmesh.runtime.deadline import deadline
from recmesh.runtime.errors import DeadlineExceeded, Unavailable
from recmesh.runtime.rpc.calls import Outcome, check_token, server_call, timeout_of
from recmesh.runtime.rpc.codec import status_of
from recmesh.runtime.rpc.options import SERVER_OPTIONS, at_port, bind
from recmesh.runtime.tls import Tls


class RpcServer:
    """Serves with health, reflection, error mapping, deadlines, token, traces and histograms.

    Each item of `register` adds a servicer: `lambda server: add_JobsServicer_to_server(servicer, server)`.
    """

    def __init__(
        self, name: str, address: str, register: Sequence[Callable[[grpc.aio.Server], None]], *,
        tls: Tls | None = None, token: str | None = None, service_names: Sequence[str] = (),
        grace_s: float = 5.0,
    ) -> None:
        self.name = name
        self.port = 0
        self.address = ""
        """host:port once started."""
        self._wanted = address
        self._register = register
        self._tls = tls
        self._token = token
        self._service_names = tuple(service_names)
        self._grace_s = grace_s
        self._server: grpc.aio.Server | None = None
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # made at import
        self._ready_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; PortTaken when another process does."""
        server = grpc.aio.server(interceptors=[MeshInterceptor(self._token)], options=SERVER_OPTIONS)
        for register in self._register:
            register(server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        enable_reflection(self._service_names, server)
        self.port = bind(server, self._wanted, tls=self._tls, what=self.name)
        self.address = at_port(self._wanted, self.port)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """No new calls; those in flight get the grace time."""
        if self._ready_task is not None:
            await asyncio.gather(self._ready_task, return_exceptions=True)
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(self._grace_s)

    def set_ready(self, ready: bool) -> None:
        """What the health service answers from now on."""
        serving = health_pb2.HealthCheckResponse
        state = serving.SERVING if ready else serving.NOT_SERVING
        self._ready_task = asyncio.ensure_future(self._set_health(state))

    async def wait(self) -> None:
        """Returns when the server has ended."""
        if self._server is not None:
            # Shielded: gRPC awaits its own future of the shutdown in there, and cancelling that makes
            # the later stop() raise CancelledError.
            await asyncio.shield(self._server.wait_for_termination())

    async def _set_health(self, state: Any) -> None:
        for name in ("", *self._service_names):
            await self._health.set(name, state)


def enable_reflection(service_names: Sequence[str], server: Any) -> None:
    """Reflection where its package is installed; the trainer's images go without."""
    try:
        from grpc_reflection.v1alpha import reflection
    except ImportError:
        return
    names = (*service_names, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)


class MeshInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Wraps each handler, unary or streaming: token, deadline, span, histogram, errors."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The wrapped handler; None where the method does not exist."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        metadata = tuple(handler_call_details.invocation_metadata)
        inner = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )

        async def unary(request: Any, context: Any) -> Any:
            with server_call(method, metadata) as outcome, deadline(timeout_of(context)):
                try:
                    check_token(self._token, metadata, method=method)
                    reply = inner(request, context)
                    return await reply if inspect.isawaitable(reply) else reply
                except Exception as error:
                    await _abort(context, error, method, outcome)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            with server_call(method, metadata) as outcome, deadline(timeout_of(context)):
                try:
                    check_token(self._token, metadata, method=method)
                    replies = inner(request, context)
                    if inspect.isawaitable(replies):   # a handler that calls context.write itself
                        await replies
                        return
                    async for reply in replies:
                        yield reply
                except Exception as error:
                    await _abort(context, error, method, outcome)

        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[(handler.request_streaming, handler.response_streaming)]
        wrapped: Any = stream if handler.response_streaming else unary
        return make(wrapped, handler.request_deserializer, handler.response_serializer)


async def _abort(context: Any, error: Exception, method: str, outcome: Outcome) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):   # the handler chose its own status
        outcome.code = context.code().name if context.code() else "UNKNOWN"
        raise error
    if isinstance(error, NotImplementedError):   # the generated base class's answer
        outcome.code = "UNIMPLEMENTED"
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not served here")
    if isinstance(error, TimeoutError):
        error = DeadlineExceeded(f"{method} ran out of time", reason="TIMED_OUT")
    elif isinstance(error, ConnectionError):
        error = Unavailable(f"{method} lost a connection it needs: {type(error).__name__}")
    status = status_of(error, method=method)
    outcome.code = status.code.name
    await context.abort(status.code, status.message, (*context.trailing_metadata(), *status.trailing))
    raise AssertionError("abort returned")
