"""One connection to NATS that comes back for ever.

The client library's own reconnect is switched off: it gives up for good on some errors of a server
that is just starting, and leaves requests in flight to time out. Here a lost connection wakes whoever
waits on it at once, a new client is dialled as soon as the port answers, and core subscriptions are
made again before anybody else may use it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as ClientSubscription
from nats.js import JetStreamContext
from nats.js import errors as js_errors

from recmesh.runtime.clock import Clock, system_clock
from recmesh.runtime.deadline import bounded
from recmesh.runtime.errors import InvalidArgument, MeshError, Unauthenticated, Unavailable, Violation
from recmesh.runtime.room import Room
from recmesh.runtime.telemetry import Metrics, get_logger
from recmesh.runtime.tls import Tls

T = TypeVar("T")
Handler = Callable[[Msg], Awaitable[None]]

ATTEMPT_S = 5.0
"""One attempt of a request; a fsync per write on a busy disk takes up to seconds."""
DEFAULT_TIMEOUT_S = 10.0
_REDIAL_S = 0.1
_LOOK_S = 0.25

_log = get_logger(__name__)
_reconnects = Metrics("").counter("bus_reconnects", "Connections to NATS that were lost and made again")

RETRYABLE: tuple[type[Exception], ...] = (
    TimeoutError, ConnectionError, OSError,
    nats.errors.NoRespondersError, nats.errors.ConnectionClosedError, nats.errors.ConnectionDrainingError,
    nats.errors.StaleConnectionError, nats.errors.OutboundBufferLimitError, nats.errors.NoServersError,
    js_errors.ServiceUnavailableError, js_errors.NoStreamResponseError,
)
"""A server that restarts shows these; the same request may work in a moment."""


DIAL_ERRORS: tuple[type[Exception], ...] = (TimeoutError, OSError, nats.errors.Error)
RETRYABLE_OR_AWAY: tuple[type[Exception], ...] = (*RETRYABLE, Unavailable)


class LinkLost(ConnectionError):
    """The connection went away while an answer was awaited."""


@dataclass(frozen=True, slots=True)
class Session:
    """One life of the connection."""

    client: Client
    lost: asyncio.Event
    epoch: int

    @property
    def js(self) -> JetStreamContext:
        """JetStream over this connection."""
        return self.client.jetstream(timeout=ATTEMPT_S)


@dataclass(slots=True)
class Subscription:
    """A core subscription that outlives connections."""

    subject: str
    queue: str
    handler: Handler
    current: ClientSubscription | None = field(default=None)


@dataclass(frozen=True, slots=True)
class _Server:
    url: str = field(repr=False)
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def inbox(user: str) -> str:
    """The beginning of subjects that replies to a user come under: permissions let nobody else hear them."""
    return f"_INBOX_{''.join(each if each.isalnum() else '_' for each in user)}"


def _server(url: str) -> _Server:
    """Its URL may hold a password, which is in no message."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in ("nats", "tls") and parts.hostname:
            return _Server(url, parts.hostname, parts.port or 4222)
    reason = "is not nats://host:port, or several of them with commas between"
    raise InvalidArgument(f"nats_url {reason}", violations=[Violation("nats_url", reason)])


class Link:
    """Dials, redials, retries; of several servers, which are one cluster, the first that answers is used."""

    def __init__(
        self, url: str, *, name: str, token: str | None = None, clock: Clock = system_clock,
        room: Room | None = None, tls: Tls | None = None,
    ) -> None:
        """`tls`: certificates for servers that ask for TLS; without, the system's roots are trusted."""
        self.room = room or Room(None)
        """On the server's disk, where that is known; who writes asks it first."""
        self._servers = [_server(item.strip()) for item in url.split(",")]
        self.address = ", ".join(server.address for server in self._servers)
        self._name = name
        self._token = token
        self._tls = tls
        self._clock = clock
        self._session: Session | None = None
        self._connected = asyncio.Event()
        self._subscriptions: list[Subscription] = []
        self._keeper: asyncio.Task[None] | None = None
        self._closing = False
        self._epoch = 0

    @property
    def connected(self) -> bool:
        """True while a connection is up."""
        return self._session is not None

    async def open(self, timeout_s: float) -> None:
        """Connect; Unavailable when nobody answers within the time, Unauthenticated for a wrong token."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            try:
                await self._dial()
                break
            except Unauthenticated:
                raise
            except DIAL_ERRORS as error:
                if self._clock.monotonic() >= deadline:
                    raise Unavailable(
                        f"no NATS server answers at {self.address} within {timeout_s:g} s: {error}",
                        reason="NATS_UNREACHABLE",
                    ) from None
                await self._clock.sleep(_REDIAL_S)
        self._keeper = asyncio.create_task(self._keep(), name="bus-link")

    async def close(self) -> None:
        """Send what is buffered, then close."""
        self._closing = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._session is not None:
            with contextlib.suppress(Exception):   # the server may be gone already
                async with asyncio.timeout(1.5):
                    await self._session.client.flush(timeout=1)
            with contextlib.suppress(Exception):   # as above
                await self._session.client.close()

    async def session(self, timeout_s: float | None = None) -> Session:
        """The connection, waiting for it when it is lost; Unavailable when it stays away."""
        while self._session is None:
            if self._closing:
                raise Unavailable("the bus is closed", reason="BUS_CLOSED")
            try:
                async with asyncio.timeout(timeout_s):
                    await self._connected.wait()
            except TimeoutError:
                raise Unavailable(f"NATS at {self.address} is away", reason="NATS_UNREACHABLE") from None
        return self._session

    async def call(
        self, what: str, op: Callable[[Session], Awaitable[T]], *, timeout_s: float | None = None
    ) -> T:
        """Run `op`, again and again within the time while the server is away; its own errors pass.

        `op` must be safe to repeat. The time never exceeds what is left of the call being answered.
        """
        limit_s = bounded(timeout_s, default_s=DEFAULT_TIMEOUT_S, method=what) or DEFAULT_TIMEOUT_S
        deadline = self._clock.monotonic() + limit_s
        pause_s = 0.05
        while True:
            left_s = deadline - self._clock.monotonic()
            try:
                return await self.once(op, timeout_s=min(ATTEMPT_S, max(left_s, 0.01)))
            except RETRYABLE_OR_AWAY as error:
                if self._closing or self._clock.monotonic() + pause_s >= deadline:
                    raise Unavailable(
                        f"{what}: NATS at {self.address} did not answer within {limit_s:.1f} s"
                        f" ({type(error).__name__})", reason="NATS_UNREACHABLE",
                    ) from None
            await self._clock.sleep(pause_s)
            pause_s = min(1.0, pause_s * 2)

    async def once(self, op: Callable[[Session], Awaitable[T]], *, timeout_s: float) -> T:
        """One attempt; LinkLost at once when the connection goes away."""
        session = await self.session(timeout_s)
        work = asyncio.ensure_future(op(session))
        lost = asyncio.ensure_future(session.lost.wait())
        try:
            await asyncio.wait({work, lost}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                return work.result()
            raise LinkLost(f"lost {self.address}") if lost.done() else TimeoutError("no answer")
        finally:
            lost.cancel()
            if not work.done():
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    async def send(
        self, subject: str, payload: bytes = b"", *, headers: dict[str, str] | None = None
    ) -> bool:
        """Core publish without an answer; False when there is no connection now."""
        if self._session is None:
            return False
        try:
            await self._session.client.publish(subject, payload, headers=headers)
        except DIAL_ERRORS:
            return False
        return True

    async def subscribe(self, subject: str, handler: Handler, *, queue: str = "") -> Subscription:
        """A core subscription, made again on each new connection."""
        mine = Subscription(subject, queue, handler)
        self._subscriptions.append(mine)
        if self._session is not None:
            await self._apply(self._session.client, mine)
        return mine

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End it."""
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        if subscription.current is not None:
            with contextlib.suppress(Exception):   # gone with its connection
                await subscription.current.unsubscribe()

    async def _apply(self, client: Client, subscription: Subscription) -> None:
        async def guarded(message: Msg) -> None:
            try:
                await subscription.handler(message)
            except MeshError as error:
                _log.warning("a message on %s was refused: %s", message.subject, error)
            except Exception:
                _log.exception("a message on %s could not be handled", message.subject)

        subscription.current = await client.subscribe(
            subscription.subject, queue=subscription.queue, cb=guarded
        )

    async def _keep(self) -> None:
        # The flag, because the client library's `wait_for` may swallow a cancellation (Python < 3.12).
        while not self._closing:
            if (session := self._session) is not None:
                await self._until_lost(session)
                _log.warning("NATS at %s is away", self.address)
            try:
                await self._dial()
                _reconnects.inc()
                _log.info("NATS at %s is back", self.address)
            except (MeshError, OSError, TimeoutError, nats.errors.Error) as error:
                _log.debug("NATS at %s: %s", self.address, error)
                await self._clock.sleep(_REDIAL_S)

    async def _until_lost(self, session: Session) -> None:
        """The client library tells nobody (`closed_cb`) when what was still to be sent fails while it closes."""
        while not session.lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await session.lost.wait()
            if session.client.is_closed:
                self._end(session.lost)

    def _end(self, lost: asyncio.Event) -> None:
        lost.set()
        if self._session is not None and self._session.lost is lost:
            self._session = None
            self._connected.clear()

    async def _dial(self) -> None:
        """One attempt at each server in turn; the error is the last one's."""
        for server in self._servers[:-1]:
            try:
                return await self._dial_one(server)
            except DIAL_ERRORS as error:
                _log.debug("NATS at %s: %s", server.address, error)
        await self._dial_one(self._servers[-1])

    async def _dial_one(self, server: _Server) -> None:
        """The port is polled first: a refused connect inside the library costs 2 s."""
        async with asyncio.timeout(2):
            _, writer = await asyncio.open_connection(server.host, server.port)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        lost = asyncio.Event()

        async def closed() -> None:
            self._end(lost)

        async def failed(error: Exception) -> None:
            _log.debug("NATS client: %s", error)

        client = Client()
        try:
            await client.connect(
                server.url, name=self._name, token=self._token or None, allow_reconnect=False,
                inbox_prefix=inbox(self._name),
                connect_timeout=5, ping_interval=5, max_outstanding_pings=2, closed_cb=closed,
                error_cb=failed, pending_size=64 << 20, tls=self._tls.client_context() if self._tls else None,
            )
        except BaseException as error:
            with contextlib.suppress(Exception):   # it never worked; only its socket is to be freed, which can
                async with asyncio.timeout(1.0):   # hang after a handshake that failed
                    await client.close()
            if isinstance(error, nats.errors.Error) and "authorization" in repr(error).lower():
                raise self._refused() from None
            raise
        for subscription in self._subscriptions:
            await self._apply(client, subscription)
        if client.is_connected and not lost.is_set():
            self._epoch += 1
            self._session = Session(client, lost, self._epoch)
            self._connected.set()
        else:
            raise LinkLost(f"{server.address} closed the new connection")

    def _refused(self) -> Unauthenticated:
        reason = "the NATS server refuses it" if self._token else "is not set, and the NATS server wants one"
        return Unauthenticated(
            f"NATS at {self.address}: nats_token {reason}", reason="NATS_AUTH",
            violations=[Violation("nats_token", reason)],
        )
