"""Durable consumers: each event is handled at least once, or ends in RECMESH_DEAD with the reason."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg
from nats.js import api
from nats.js import errors as js_errors
from opentelemetry.trace import SpanKind

from recmesh.runtime.bus.link import RETRYABLE, Link, LinkLost, Session
from recmesh.runtime.bus.pull import ConsumerGone, Pull
from recmesh.runtime.bus.stored import store
from recmesh.runtime.errors import (
    FailedPrecondition,
    InvalidArgument,
    MeshError,
    ResourceExhausted,
    Unavailable,
)
from recmesh.runtime.events import Event, EventType, decode
from recmesh.runtime.telemetry import Metrics, extract, get_logger, span

EVENT_STREAM = "RECMESH"
DEAD_STREAM = "RECMESH_DEAD"
DEAD_ROOT = "recmesh.dead"
ACK_WAIT_S = 30.0
_LANES = 8

_log = get_logger(__name__)
_handled = Metrics("").counter("bus_events_handled", "Events by consumer and outcome",
                               labels=("durable", "type", "outcome"))
_seconds = Metrics("").histogram("bus_handle_seconds", "Time to handle an event", labels=("durable",))

EventHandler = Callable[[Event[Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Policy:
    """How a consumer treats failure and load."""

    max_in_flight: int = 64
    max_deliver: int = 5
    backoff_s: Sequence[float] = (0.5, 2.0, 10.0, 30.0)
    new_only: bool = False

    def delay_s(self, deliveries: int) -> float:
        """Until the next try after so many."""
        return self.backoff_s[min(deliveries, len(self.backoff_s)) - 1] if self.backoff_s else 0.0


class Consumer:
    """Pulls, decodes, handles, acknowledges. Replicas that share the durable share the work.

    Events of one entity are handled one after another, in order, as long as none has to be repeated;
    different entities in parallel. A handler must bear seeing an event twice. A handler that raises
    InvalidArgument, or an event that cannot be decoded, goes to RECMESH_DEAD at once; any other error is
    repeated after the backoff, and after `max_deliver` deliveries goes there too, also when it was the
    process that died each time. A slow handler keeps its event as long as it runs.
    """

    def __init__(
        self, link: Link, durable: str, types: Sequence[EventType[Any]], handler: EventHandler, *,
        policy: Policy,
    ) -> None:
        self.name = f"consumer {durable}"
        self.durable = durable
        self._link = link
        self._subjects = sorted({item.subject for item in types})
        self._handler = handler
        self._policy = policy
        self._in_flight: dict[int, Msg] = {}
        self._free = asyncio.Event()
        self._lanes: list[asyncio.Queue[Msg]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._reader: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Make the durable, begin to read; Unavailable when NATS does not answer."""
        await self._link.call(self.name, self._ensure, timeout_s=30)
        self._lanes = [asyncio.Queue() for _ in range(min(_LANES, self._policy.max_in_flight))]
        self._tasks = [asyncio.create_task(self._work(lane), name=self.name) for lane in self._lanes]
        self._tasks.append(asyncio.create_task(self._keep_alive(), name=self.name))
        self._reader = asyncio.create_task(self._read(), name=self.name)

    async def stop(self) -> None:
        """No new events; those being handled finish, those waiting go back to the server at once."""
        self._stopping = True
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        for lane in self._lanes:
            while not lane.empty():
                message = lane.get_nowait()
                self._in_flight.pop(id(message), None)
                await self._link.send(message.reply, Msg.Ack.Nak)
        while self._in_flight:
            self._free.clear()
            await self._free.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def wait(self) -> None:
        """Raises what ended the consumer by itself; that is a bug."""
        tasks = [task for task in (self._reader, *self._tasks) if task is not None]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        next(iter(done)).result()

    async def _ensure(self, session: Session) -> Session:
        config = api.ConsumerConfig(
            durable_name=self.durable, ack_policy=api.AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S,
            # Counted here instead: the server only forgets a message that was delivered too often.
            max_deliver=-1, max_ack_pending=max(1024, self._policy.max_in_flight),
            filter_subjects=self._subjects,
            deliver_policy=api.DeliverPolicy.NEW if self._policy.new_only else api.DeliverPolicy.ALL,
        )
        try:
            await session.js.add_consumer(EVENT_STREAM, config)
        except js_errors.BadRequestError as error:
            raise FailedPrecondition(
                f"durable {self.durable} exists with settings that cannot be changed: {error.description}"
            ) from None
        return session

    async def _read(self) -> None:
        while not self._stopping:
            try:
                session = await self._link.call(self.name, self._ensure, timeout_s=30)
                pull = Pull(session, EVENT_STREAM, self.durable, hand_back=True)
                async with aclosing(pull.batches(self._room)) as messages:
                    async for message in messages:
                        self._in_flight[id(message)] = message
                        lane = zlib.crc32(message.subject.encode()) % len(self._lanes)
                        self._lanes[lane].put_nowait(message)
            except (ConsumerGone, LinkLost, Unavailable, js_errors.NotFoundError) as error:
                if isinstance(error, Unavailable) and error.reason == "BUS_CLOSED":
                    return
                _log.info("%s reads again: %s", self.name, error)
                await asyncio.sleep(0.1)

    async def _room(self) -> int:
        while len(self._in_flight) >= self._policy.max_in_flight:
            self._free.clear()
            await self._free.wait()
        return self._policy.max_in_flight - len(self._in_flight)

    async def _work(self, lane: "asyncio.Queue[Msg]") -> None:
        while True:
            message = await lane.get()
            try:
                await self._handle(message)
            except Exception:   # the message comes again after its ack wait
                _log.exception("%s could not settle a message", self.name)
            finally:
                self._in_flight.pop(id(message), None)
                self._free.set()

    async def _handle(self, message: Msg) -> None:
        deliveries = message.metadata.num_delivered
        kind = ".".join(message.subject.split(".")[3:5])
        try:
            if deliveries > self._policy.max_deliver:
                raise _Dead(f"not acknowledged in {deliveries - 1} deliveries")
            event = _decoded(message)
            parent = extract({"traceparent": event.traceparent})
            with (
                span(f"handle {event.type.name}", kind=SpanKind.CONSUMER, parent=parent),
                _seconds.labels(self.durable).time(),
            ):
                await self._handler(event)
        except _Dead as error:
            await self._bury(message, str(error), kind)
        except InvalidArgument as error:
            await self._bury(message, f"InvalidArgument: {error}", kind)
        except Exception as error:
            if deliveries >= self._policy.max_deliver:
                await self._bury(message, f"{type(error).__name__}: {error}", kind, error=error)
                return
            delay_s = self._policy.delay_s(deliveries)
            expected = isinstance(error, (MeshError, *RETRYABLE))
            _log.warning("%s: %s failed (%s); again in %.1f s", self.name, kind, error, delay_s,
                         exc_info=None if expected else error)
            await self._link.send(message.reply, b'-NAK {"delay": %d}' % int(delay_s * 1e9))
            _handled.labels(self.durable, kind, "retried").inc()
        else:
            await self._link.send(message.reply, Msg.Ack.Ack)
            _handled.labels(self.durable, kind, "ok").inc()

    async def _bury(
        self, message: Msg, reason: str, kind: str, *, error: BaseException | None = None
    ) -> None:
        """To the dead-letter stream first, then off the queue: never lost in between."""
        _log.error("%s gives up on a message of %s: %s", self.name, kind, reason, exc_info=error)
        meta = message.metadata
        await bury(
            self._link, self.durable, message.subject, dict(message.headers or {}), message.data, reason=reason,
            sequence=meta.sequence.stream, deliveries=meta.num_delivered,
        )
        await self._link.send(message.reply, Msg.Ack.Term)
        _handled.labels(self.durable, kind, "dead").inc()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(ACK_WAIT_S / 3)
            for message in list(self._in_flight.values()):
                await self._link.send(message.reply, Msg.Ack.Progress)


async def bury(
    link: Link, durable: str, subject: str, headers: Mapping[str, str], body: bytes, *, reason: str, sequence: int,
    deliveries: int,
) -> None:
    """Put a message into the dead-letter stream with the reason; the same one again is stored once."""
    kept = {name: value for name, value in headers.items() if not name.lower().startswith("nats-")} | {
        "Recmesh-Dead-Reason": _header(reason), "Recmesh-Dead-Durable": durable,
        "Recmesh-Dead-Subject": subject, "Recmesh-Dead-Deliveries": str(deliveries),
    }
    grave = f"{DEAD_ROOT}.{durable}"
    message_id = f"{durable}/{sequence}"
    try:
        await store(link, grave, body, message_id=message_id, headers=kept, last=True)
    except (InvalidArgument, ResourceExhausted):   # the reason made it too large: keep what explains it
        await store(link, grave, b"", message_id=message_id, headers=kept, last=True)


class _Dead(Exception):
    """This message will not be tried again."""


def _decoded(message: Msg) -> Event[Any]:
    try:
        return decode(message.headers or {}, message.data)
    except InvalidArgument as error:
        raise _Dead(f"poison: {error}") from None


def _header(text: str) -> str:
    """One line of ASCII, short enough to leave room for the message."""
    return " ".join(text.split()).encode("ascii", "replace").decode()[:1000]
