"""Outbound calls on asyncio: `await stub.Plan(request, timeout=2.0)` answers or raises a MeshError.

The channel wraps gRPC's instead of using client interceptors: those cost a task per call, and gRPC
files an interceptor under one kind of call only.
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any, Self

import grpc

from recmesh.runtime.deadline import bounded
from recmesh.runtime.errors import DeadlineExceeded, MeshError, Unavailable
from recmesh.runtime.rpc.calls import client_call, outbound_metadata
from recmesh.runtime.rpc.codec import is_answer, mesh_error
from recmesh.runtime.rpc.newest import Make, Newest
from recmesh.runtime.rpc.options import DEFAULT_TIMEOUT_S, LOOK_S, channel_credentials, channel_options
from recmesh.runtime.tls import Renewed, Tls

Codec = Callable[[Any], Any] | None


def channel(
    address: str, *, tls: Tls | None = None, token: str | None = None, who: str = ""
) -> grpc.aio.Channel:
    """A channel for the generated stubs; connects lazily, reconnects by itself, for ever.

    A call without a timeout gets 10 s (not streams), never more than what is left of the inbound call
    being answered. UNAVAILABLE is retried by the service config within that time. `who` is there: errors of the way
    there name it beside the address.
    """
    options = channel_options(tls)
    if tls is None:
        plain = grpc.aio.insecure_channel(address, options=options)
        return MeshChannel(address, lambda: plain, token, who)
    newest = Renewed(
        tls, lambda: grpc.aio.secure_channel(address, channel_credentials(tls), options=options), every_s=LOOK_S
    )
    return MeshChannel(address, newest.now, token, who)


class MeshChannel(grpc.aio.Channel):
    """gRPC's channel with deadline, token, trace, histogram and errors around each call."""

    def __init__(
        self, address: str, newest: Callable[[], grpc.aio.Channel], token: str | None, who: str = ""
    ) -> None:
        """`newest`: gRPC's channel for what begins now: another one after certificates were renewed. The one before
        closes when its last call has ended."""
        self.target = f"{who} at {address}" if who else address
        self.token = token
        self.newest = newest

    async def __aenter__(self) -> Self:
        """The open channel."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """Calls in flight get `grace` seconds, then are cancelled."""
        await self.newest().close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """gRPC's connectivity state."""
        return self.newest().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Returns when the state differs from the one given."""
        await self.newest().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Returns when connected."""
        await self.newest().channel_ready()

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
        away = self.get_state() is not grpc.ChannelConnectivity.READY
        if isinstance(found, DeadlineExceeded) and away and not is_answer(error):
            return Unavailable(f"{self.target} cannot be reached", reason="UNREACHABLE")
        if isinstance(found, DeadlineExceeded) and not is_answer(error):
            return DeadlineExceeded(f"{self.target} did not answer in time")
        return found


Requests = AsyncIterable[Any] | Iterable[Any]


class _Single:
    """A method with one response."""

    def __init__(self, owner: MeshChannel, method: str, make: Make) -> None:
        self._owner = owner
        self._method = method
        self._inner = Newest(owner.newest, make)

    async def __call__(
        self, request: Any, *,
        timeout: float | None = None,   # noqa: ASYNC109 (the generated stubs' own keyword)
        metadata: Any = None,
        wait_for_ready: bool | None = None,
    ) -> Any:
        limit = bounded(timeout, default_s=DEFAULT_TIMEOUT_S, method=self._method)
        with client_call(self._method):
            try:
                return await self._inner.now()(
                    request, timeout=limit, metadata=outbound_metadata(metadata, self._owner.token),
                    wait_for_ready=wait_for_ready,
                )
            except grpc.RpcError as error:
                raise self._owner.explain(error) from None


class _Stream:
    """A method with a stream of responses; each call gives an async iterator."""

    def __init__(self, owner: MeshChannel, method: str, make: Make) -> None:
        self._owner = owner
        self._method = method
        self._inner = Newest(owner.newest, make)

    def __call__(
        self, request: Any, *, timeout: float | None = None, metadata: Any = None,
        wait_for_ready: bool | None = None,
    ) -> "Replies":
        limit = bounded(timeout, default_s=None, method=self._method)
        call = self._inner.now()(
            request, timeout=limit, metadata=outbound_metadata(metadata, self._owner.token),
            wait_for_ready=wait_for_ready,
        )
        return Replies(self._owner, call)


class Replies:
    """A stream's responses: iterate, or `cancel()`. Errors are MeshErrors."""

    def __init__(self, owner: MeshChannel, call: Any) -> None:
        self._owner = owner
        self._call = call
        self._iterator: AsyncIterator[Any] | None = None

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    async def __anext__(self) -> Any:
        """The next response."""
        if self._iterator is None:
            self._iterator = self._call.__aiter__()
        try:
            return await self._iterator.__anext__()
        except grpc.RpcError as error:
            raise self._owner.explain(error) from None

    def cancel(self) -> bool:
        """Tell the server to stop."""
        return bool(self._call.cancel())
