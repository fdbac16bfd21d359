"""The bus of one process: events out and in, buckets, logs, micro endpoints; all over one link."""

import asyncio
import contextlib
import dataclasses
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self

from nats.aio.msg import Msg
from nats.js import api
from opentelemetry.trace import SpanKind

from recmesh.runtime.bus.consumer import DEAD_ROOT, DEAD_STREAM, EVENT_STREAM, Consumer, EventHandler, Policy, bury
from recmesh.runtime.bus.kv import KeyValue
from recmesh.runtime.bus.link import Link, Session, Subscription
from recmesh.runtime.bus.log import Log
from recmesh.runtime.bus.micro import MicroService
from recmesh.runtime.bus.pull import Place, follow
from recmesh.runtime.bus.stored import DUPLICATE_WINDOW_S, ensure_stream, store
from recmesh.runtime.clock import Clock, system_clock
from recmesh.runtime.errors import InvalidArgument, MeshError, ResourceExhausted
from recmesh.runtime.events import SUBJECT_ROOT, Event, EventType, decode, encode
from recmesh.runtime.room import Room
from recmesh.runtime.settings import ServiceSettings
from recmesh.runtime.telemetry import Metrics, current_traceparent, extract, get_logger, span
from recmesh.runtime.tls import Tls

MAX_WAITING = 4096
"""Publishes under way or waiting for NATS, and offers in the queue; more are refused or dropped."""

_log = get_logger(__name__)
_published = Metrics("").counter("bus_events_published", "Events by type", labels=("type",))
_dropped = Metrics("").counter(
    "bus_offers_dropped", "Offered events that never reached NATS", labels=("type",)
)


class Bus:
    """NATS JetStream, as recmesh uses it. `source` is the service's name."""

    name = "bus"

    def __init__(
        self, url: str, source: str, *, token: str | None = None, clock: Clock = system_clock,
        connect_timeout_s: float = 30.0, replicas: int = 1, max_event_bytes: int = 1 << 30,
        event_days: float = 7.0, dead_event_days: float = 30.0, room: Room | None = None, tls: Tls | None = None,
    ) -> None:
        self.source = source if source.startswith("/") else f"/recmesh/{source}"
        self._link = Link(url, name=source, token=token, clock=clock, room=room, tls=tls)
        self._connect_timeout_s = connect_timeout_s
        self._replicas = replicas
        self._max_event_bytes = max_event_bytes
        self._event_age_s, self._dead_age_s = event_days * 86_400, dead_event_days * 86_400
        self._waiting = 0
        self._offers: deque[Event[Any]] = deque(maxlen=MAX_WAITING)
        self._offered = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sender: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, settings: ServiceSettings, source: str) -> Self:
        """As a service's settings say."""
        token = settings.nats_token.get_secret_value() if settings.nats_token else None
        return cls(
            settings.nats_url, source, token=token, room=Room(settings.nats_dir), replicas=settings.nats_replicas,
            tls=settings.tls, max_event_bytes=settings.event_bytes, event_days=settings.event_days,
            dead_event_days=settings.dead_event_days,
        )

    @property
    def room(self) -> Room:
        """On the disk of the server."""
        return self._link.room

    @property
    def link(self) -> Link:
        """For messages that are no events of the mesh: topics."""
        return self._link

    def objection(self) -> str:
        """Why nothing can be published now, or ''; for readiness."""
        return self.room.objection() if self.connected else "no connection to NATS"

    @property
    def connected(self) -> bool:
        """True while NATS is there; for readiness and ops pages."""
        return self._link.connected

    async def start(self) -> None:
        """Connect and make the event streams; Unavailable or Unauthenticated when that cannot be."""
        await self._link.open(self._connect_timeout_s)
        await ensure_stream(self._link, api.StreamConfig(
            name=EVENT_STREAM, subjects=[f"{SUBJECT_ROOT}.>"], storage=api.StorageType.FILE,
            max_age=self._event_age_s, max_bytes=self._max_event_bytes, discard=api.DiscardPolicy.OLD,
            duplicate_window=DUPLICATE_WINDOW_S, num_replicas=self._replicas,
            description="Events of recmesh (CloudEvents 1.0, binary mode)",
        ))
        await ensure_stream(self._link, api.StreamConfig(
            name=DEAD_STREAM, subjects=[f"{DEAD_ROOT}.>"], storage=api.StorageType.FILE, max_age=self._dead_age_s,
            max_bytes=self._max_event_bytes // 4, discard=api.DiscardPolicy.OLD,
            duplicate_window=DUPLICATE_WINDOW_S, num_replicas=self._replicas,
            description="Events that could not be handled; headers Recmesh-Dead-* say why",
        ))
        self._sender = asyncio.create_task(self._send_offers(), name="bus-offers")

    async def stop(self) -> None:
        """Give what was offered a moment, then close."""
        if self._sender is not None:
            if self.connected:
                with contextlib.suppress(TimeoutError):   # offers may be lost
                    async with asyncio.timeout(2.0):
                        await self._idle.wait()
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        await self._link.close()

    async def publish(self, event: Event[Any], *, timeout_s: float | None = None) -> None:
        """Returns when JetStream has stored it. Publishing the same event again changes nothing.

        Waits for NATS within the time (10 s); then Unavailable. ResourceExhausted when too many wait
        already; InvalidArgument when it is too large.
        """
        if self._waiting >= MAX_WAITING:
            raise ResourceExhausted(f"{self._waiting} events wait for NATS already", reason="BUS_BACKLOG")
        self._waiting += 1
        try:
            # An event that waited belongs to the trace in which it came about, not to whoever sends it now.
            parent = extract({"traceparent": event.traceparent}) if event.traceparent else None
            with span(f"publish {event.type.name}", kind=SpanKind.PRODUCER, parent=parent):
                complete = self._complete(dataclasses.replace(event, traceparent=current_traceparent()))
                headers, body = encode(complete)
                await store(
                    self._link, complete.subject, body, message_id=headers.pop("Nats-Msg-Id"),
                    headers=headers, timeout_s=timeout_s,
                )
            _published.labels(event.type.name).inc()
        finally:
            self._waiting -= 1

    def offer(self, event: Event[Any]) -> bool:
        """Publish in the background; for facts that may be lost, such as rates. Never waits.

        False when the queue was full and its oldest event was dropped for this one.
        """
        full = len(self._offers) == self._offers.maxlen
        if full:
            _dropped.labels(self._offers[0].type.name).inc()
        self._offers.append(self._complete(event))
        self._idle.clear()
        self._offered.set()
        return not full

    def consume(
        self, durable: str, types: Sequence[EventType[Any]], handler: EventHandler, *,
        max_in_flight: int = 64, max_deliver: int = 5, backoff_s: Sequence[float] = (0.5, 2.0, 10.0, 30.0),
        new_only: bool = False,
    ) -> Consumer:
        """A component that handles these events; see `Consumer`. `new_only`: none from before its birth."""
        policy = Policy(max_in_flight, max_deliver, tuple(backoff_s), new_only)
        return Consumer(self._link, durable, types, handler, policy=policy)

    def kv(self, bucket: str, *, history: int = 1, ttl_s: float | None = None) -> KeyValue:
        """A bucket, made at its first use."""
        return KeyValue(self._link, bucket, history=history, ttl_s=ttl_s, replicas=self._replicas)

    async def events(
        self, subject: str, *, after: int = 0, to_end: bool
    ) -> AsyncGenerator[tuple[int, Event[Any]], None]:
        """Stored events of a subject (wildcards allowed) whose sequence is above `after`, oldest first.

        With `to_end` those that are there now; else it goes on with new ones as they come, through
        restarts of the server. A message that is no event of this version is left out.
        """
        place = Place(subject, from_sequence=after + 1)
        async with aclosing(follow(self._link, EVENT_STREAM, place, to_end=to_end)) as messages:
            async for message in messages:
                try:
                    event = decode(message.headers or {}, message.data)
                except InvalidArgument:
                    continue
                yield message.metadata.sequence.stream, event

    async def facts(
        self, subjects: Sequence[str], *, after: int
    ) -> AsyncGenerator[tuple[int, Event[Any], int], None]:
        """As `events`, without an end, of several subjects that do not overlap; with how many more are stored now."""
        place = Place("", from_sequence=after + 1, subjects=tuple(subjects))
        async with aclosing(follow(self._link, EVENT_STREAM, place, to_end=False)) as messages:
            async for message in messages:
                try:
                    event = decode(message.headers or {}, message.data)
                except InvalidArgument:
                    continue
                meta = message.metadata
                yield meta.sequence.stream, event, int(meta.num_pending)

    async def last_sequence(self) -> int:
        """Of the newest event that was ever stored."""

        async def read(session: Session) -> int:
            return int((await session.js.stream_info(EVENT_STREAM)).state.last_seq)

        return await self._link.call("the newest event", read)

    async def bury(self, durable: str, event: Event[Any], *, reason: str, sequence: int, deliveries: int) -> None:
        """Keep an event that nobody will handle any more among the dead letters, with the reason."""
        headers, body = encode(event)
        await bury(
            self._link, durable, event.subject, headers, body, reason=reason, sequence=sequence, deliveries=deliveries
        )

    async def buried(self, durable: str) -> AsyncGenerator[tuple[Event[Any], str, float, int], None]:
        """Dead letters of one durable, oldest first: event, reason, when it was given up, after how many tries."""
        place = Place(f"{DEAD_ROOT}.{durable}", from_sequence=1)
        async with aclosing(follow(self._link, DEAD_STREAM, place, to_end=True)) as messages:
            async for message in messages:
                headers = message.headers or {}
                try:
                    event = decode(headers, message.data)
                except InvalidArgument:
                    continue
                tries = headers.get("Recmesh-Dead-Deliveries", "")
                yield (
                    event, headers.get("Recmesh-Dead-Reason", ""), message.metadata.timestamp.timestamp(),
                    int(tries) if tries.isdigit() else 0,
                )

    async def keep_apart(self, stream: str, subject: str, *, age_s: float, max_bytes: int, about: str) -> None:
        """A stream that holds copies of the events of a subject for longer than the others are kept."""
        await ensure_stream(self._link, api.StreamConfig(
            name=stream, storage=api.StorageType.FILE, max_age=age_s, max_bytes=max_bytes,
            discard=api.DiscardPolicy.OLD, num_replicas=self._replicas, description=about,
            sources=[api.StreamSource(name=EVENT_STREAM, filter_subject=subject)],
        ))

    def log(self, name: str, subject: str) -> Log:
        """A log, made at its first use; `subject` covers all subjects appended to, such as `tasks.>`."""
        return Log(self._link, name, subject, replicas=self._replicas)

    def service(
        self, name: str, version: str, description: str, stats: Callable[[], Mapping[str, Any]], *,
        metadata: Mapping[str, str] | None = None,
    ) -> MicroService:
        """A component that answers $SRV.PING, INFO and STATS."""
        return MicroService(
            self._link, name, version=version, description=description, stats=stats, metadata=metadata
        )

    async def subscribe_core(
        self, subject: str, handler: Callable[[Msg], Awaitable[None]], *, queue: str = ""
    ) -> Subscription:
        """Plain NATS, no storage: what is sent while nobody listens is gone. Lives through restarts."""
        return await self._link.subscribe(subject, handler, queue=queue)

    async def unsubscribe_core(self, subscription: Subscription) -> None:
        """End a plain subscription."""
        await self._link.unsubscribe(subscription)

    async def publish_core(self, subject: str, payload: bytes) -> bool:
        """Plain NATS; False when there is no connection now."""
        return await self._link.send(subject, payload)

    def _complete(self, event: Event[Any]) -> Event[Any]:
        return dataclasses.replace(
            event, source=event.source or self.source, traceparent=event.traceparent or current_traceparent()
        )

    async def _send_offers(self) -> None:
        while True:
            while not self._offers:
                self._offered.clear()
                self._idle.set()
                await self._offered.wait()
            event = self._offers.popleft()
            try:
                await self.publish(event, timeout_s=30)
            except MeshError as error:
                _dropped.labels(event.type.name).inc()
                _log.warning("an offered %s was dropped: %s", event.type.name, error)
