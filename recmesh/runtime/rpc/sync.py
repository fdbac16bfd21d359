"""The same servers and channels for threads: the trainer's roles are synchronous."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from recmesh.runtime.deadline import bounded, deadline
from recmesh.runtime.errors import DeadlineExceeded, MeshError, Unavailable
from recmesh.runtime.rpc.calls import (
    Outcome,
    check_token,
    client_call,
    outbound_metadata,
    server_call,
    timeout_of,
)
from recmesh.runtime.rpc.codec import is_answer, mesh_error, status_of
from recmesh.runtime.rpc.newest import Make, Newest
from recmesh.runtime.rpc.options import (
    DEFAULT_TIMEOUT_S,
    LOOK_S,
    SERVER_OPTIONS,
    at_port,
    bind,
    channel_credentials,
    channel_options,
)
from recmesh.runtime.rpc.server import enable_reflection
from recmesh.runtime.tls import Renewed, Tls

Codec = Callable[[Any], Any] | None
_MOST_CALLS = 1024


@dataclass(frozen=True, slots=True)
class Lane:
    """Methods, named without their service, that have threads of their own: they never wait behind others."""

    name: str
    threads: int
    methods: Collection[str]


class SyncServer:
    """A started server of threads; `stop()` drains it."""

    def __init__(
        self, server: grpc.Server, *, address: str, port: int, health_servicer: Any, names: Sequence[str]
    ) -> None:
        self.address = address
        self.port = port
        self._server = server
        self._health = health_servicer
        self._names = ("", *names)

    def set_ready(self, ready: bool) -> None:
        """What the health service answers from now on."""
        serving = health_pb2.HealthCheckResponse
        for name in self._names:
            self._health.set(name, serving.SERVING if ready else serving.NOT_SERVING)

    def stop(self, grace_s: float = 5.0) -> None:
        """No new calls; those in flight get the grace time; returns when all have ended."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the server ends; True when the time ran out first."""
        return bool(self._server.wait_for_termination(timeout_s))


def sync_server(
    name: str, address: str, register: Sequence[Callable[[grpc.Server], None]], *, tls: Tls | None = None,
    token: str | None = None, service_names: Sequence[str] = (), max_workers: int = 16, ready: bool = True,
    lanes: Sequence[Lane] = (),
) -> SyncServer:
    """Start serving with threads; PortTaken when another process listens there.

    At most `max_workers` calls run at once, and others wait, 1,024 in all; more are refused as
    RESOURCE_EXHAUSTED by gRPC. Methods of `lanes` run in the lane's threads, not in these.
    """
    server = grpc.server(
        ThreadPoolExecutor(max_workers, thread_name_prefix=f"{name}-rpc"),
        interceptors=[SyncMeshInterceptor(token, lanes=lanes, name=name)], options=SERVER_OPTIONS,
        maximum_concurrent_rpcs=_MOST_CALLS,
    )
    for add in register:
        add(server)
    servicer = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    enable_reflection(service_names, server)
    port = bind(server, address, tls=tls, what=name)
    server.start()
    started = SyncServer(
        server, address=at_port(address, port), port=port, health_servicer=servicer, names=service_names
    )
    started.set_ready(ready)
    return started


def sync_channel(address: str, *, tls: Tls | None = None, token: str | None = None) -> grpc.Channel:
    """`channel` for threads: stubs answer or raise MeshErrors; safe to share between threads."""
    options = channel_options(tls)
    if tls is None:
        plain = grpc.insecure_channel(address, options=options)
        return SyncMeshChannel(address, lambda: plain, token)
    newest = Renewed(
        tls, lambda: grpc.secure_channel(address, channel_credentials(tls), options=options), every_s=LOOK_S
    )
    return SyncMeshChannel(address, newest.now, token)


class SyncMeshInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Wraps each handler: token, deadline, span, histogram, errors."""

    def __init__(self, token: str | None, *, lanes: Sequence[Lane] = (), name: str = "") -> None:
        self._token = token
        self._pools: dict[str, ThreadPoolExecutor] = {}
        for lane in lanes:
            pool = ThreadPoolExecutor(lane.threads, thread_name_prefix=f"{name}-{lane.name}")
            self._pools |= dict.fromkeys(lane.methods, pool)

    def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Any],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The wrapped handler; None where the method does not exist."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        metadata = tuple(handler_call_details.invocation_metadata)
        inner = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )

        def unary(request: Any, context: Any) -> Any:
            with server_call(method, metadata) as outcome, deadline(timeout_of(context)):
                try:
                    check_token(self._token, metadata, method=method)
                    return inner(request, context)
                except Exception as error:
                    _abort(context, error, method, outcome)

        def stream(request: Any, context: Any) -> Iterator[Any]:
            with server_call(method, metadata) as outcome, deadline(timeout_of(context)):
                try:
                    check_token(self._token, metadata, method=method)
                    yield from inner(request, context)
                except Exception as error:
                    _abort(context, error, method, outcome)

        make = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[(handler.request_streaming, handler.response_streaming)]
        wrapped: Any = stream if handler.response_streaming else unary
        if (pool := self._pools.get(method.rpartition("/")[2])) is not None:
            wrapped.experimental_thread_pool = pool     # gRPC's name; without it they share the others' threads
        return make(wrapped, handler.request_deserializer, handler.response_serializer)


def _abort(context: Any, error: Exception, method: str, outcome: Outcome) -> NoReturn:
    if type(error) is Exception and not error.args:   # what context.abort raises: the handler's own status
        outcome.code = context.code().name if context.code() else "UNKNOWN"
        raise error
    if isinstance(error, NotImplementedError):   # the generated base class's answer
        outcome.code = "UNIMPLEMENTED"
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not served here")
    if isinstance(error, TimeoutError):
        error = DeadlineExceeded(f"{method} ran out of time", reason="TIMED_OUT")
    elif isinstance(error, ConnectionError):
        error = Unavailable(f"{method} lost a connection it needs: {type(error).__name__}")
    status = status_of(error, method=method)
    outcome.code = status.code.name
    context.set_trailing_metadata((*(context.trailing_metadata() or ()), *status.trailing))
    context.abort(status.code, status.message)
    raise AssertionError("abort returned")


class SyncMeshChannel(grpc.Channel):
    """gRPC's channel with deadline, token, trace, histogram and errors around each call."""

    def __init__(self, address: str, newest: Callable[[], grpc.Channel], token: str | None) -> None:
        """`newest`: as of MeshChannel."""
        self.target = address
        self.token = token
        self.newest = newest

    def _is_connected(self) -> bool:
        """Asked of the channel's core: the public way is a thread that polls, and fails when the channel is closed."""
        core: Any = getattr(self.newest(), "_channel", None)
        if core is None:
            return True
        try:
            return bool(core.check_connectivity_state(False) == grpc.ChannelConnectivity.READY.value[0])
        except ValueError:   # closed meanwhile
            return True

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        """gRPC's connectivity events."""
        self.newest().subscribe(callback, bool(try_to_connect))

    def unsubscribe(self, callback: Any) -> None:
        """No more of them."""
        self.newest().unsubscribe(callback)

    def close(self) -> None:
        """Calls in flight are cancelled."""
        self.newest().close()

    def __enter__(self) -> Self:
        """The open channel."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def unary_unary(
        self, method: str, request_serializer: Codec = None, response_deserializer: Codec = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """For generated stubs."""
        return _Single(self, method, lambda of: of.unary_unary(method, request_serializer, response_deserializer))

    def stream_unary(
        self, method: str, request_serializer: Codec = None, response_deserializer: Codec = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """For generated stubs."""
        return _Single(self, method, lambda of: of.stream_unary(method, request_serializer, response_deserializer))

    def unary_stream(
        self, method: str, request_serializer: Codec = None, response_deserializer: Codec = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """For generated stubs."""
        return _Stream(self, method, lambda of: of.unary_stream(method, request_serializer, response_deserializer))

    def stream_stream(
        self, method: str, request_serializer: Codec = None, response_deserializer: Codec = None,
        _registered_method: bool | None = False,
    ) -> Any:
        """For generated stubs."""
        return _Stream(self, method, lambda of: of.stream_stream(method, request_serializer, response_deserializer))

    def explain(self, error: grpc.RpcError) -> MeshError:
        """The MeshError; a deadline that ran out while nobody listened is Unavailable."""
        found = mesh_error(error)
        if isinstance(found, DeadlineExceeded) and not is_answer(error) and not self._is_connected():
            return Unavailable(f"{self.target} cannot be reached", reason="UNREACHABLE")
        return found


class Pending:
    """A call under way: `result()` waits for its response or raises its MeshError."""

    def __init__(self, owner: SyncMeshChannel, call: Any) -> None:
        self._owner = owner
        self._call = call

    def result(self, timeout: float | None = None) -> Any:
        """The response; TimeoutError when only the wait, not the call, ran out of time."""
        try:
            return self._call.result(timeout)
        except grpc.FutureTimeoutError:
            raise TimeoutError("the call is still under way") from None
        except grpc.FutureCancelledError:
            raise Unavailable("the call was cancelled", reason="CANCELLED") from None
        except grpc.RpcError as error:
            raise self._owner.explain(error) from None

    def done(self) -> bool:
        """True when the response or the error is there."""
        return bool(self._call.done())

    def cancel(self) -> bool:
        """Give the call up."""
        return bool(self._call.cancel())

    def add_done_callback(self, callback: Callable[["Pending"], None]) -> None:
        """Called, perhaps in another thread, when the call has ended."""
        self._call.add_done_callback(lambda _: callback(self))


class _Single:
    """A method with one response."""

    def __init__(self, owner: SyncMeshChannel, method: str, make: Make) -> None:
        self._owner = owner
        self._method = method
        self._inner = Newest(owner.newest, make)

    def __call__(
        self, request: Any, timeout: float | None = None, metadata: Any = None,
        wait_for_ready: bool | None = None,
    ) -> Any:
        limit = bounded(timeout, default_s=DEFAULT_TIMEOUT_S, method=self._method)
        with client_call(self._method):
            try:
                return self._inner.now()(
                    request, timeout=limit, metadata=outbound_metadata(metadata, self._owner.token),
                    wait_for_ready=wait_for_ready,
                )
            except grpc.RpcError as error:
                raise self._owner.explain(error) from None

    def future(
        self, request: Any, timeout: float | None = None, metadata: Any = None,
        wait_for_ready: bool | None = None,
    ) -> Pending:
        """Begin the call and go on; for asking several servers at once."""
        limit = bounded(timeout, default_s=DEFAULT_TIMEOUT_S, method=self._method)
        return Pending(self._owner, self._inner.now().future(
            request, timeout=limit, metadata=outbound_metadata(metadata, self._owner.token),
            wait_for_ready=wait_for_ready,
        ))


class _Stream:
    """A method with a stream of responses; each call gives an iterator."""

    def __init__(self, owner: SyncMeshChannel, method: str, make: Make) -> None:
        self._owner = owner
        self._method = method
        self._inner = Newest(owner.newest, make)

    def __call__(
        self, request: Any, timeout: float | None = None, metadata: Any = None,
        wait_for_ready: bool | None = None,
    ) -> "Replies":
        limit = bounded(timeout, default_s=None, method=self._method)
        return Replies(self._owner, self._inner.now()(
            request, timeout=limit, metadata=outbound_metadata(metadata, self._owner.token),
            wait_for_ready=wait_for_ready,
        ))


class Replies:
    """A stream's responses: iterate, or `cancel()`. Errors are MeshErrors."""

    def __init__(self, owner: SyncMeshChannel, call: Any) -> None:
        self._owner = owner
        self._call = call

    def __iter__(self) -> Self:
        """Itself."""
        return self

    def __next__(self) -> Any:
        """The next response."""
        try:
            return next(self._call)
        except grpc.RpcError as error:
            raise self._owner.explain(error) from None

    def cancel(self) -> bool:
        """Tell the server to stop."""
        return bool(self._call.cancel())
