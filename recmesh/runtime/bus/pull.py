"""Reading a stream: pull requests over and over, through restarts of the server.

Two ways: `follow` for a reader of its own place (an ephemeral consumer, made again from the last
sequence seen), and `Pull` on a named durable consumer for handlers.
"""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

import orjson
from nats.aio.msg import Msg
from nats.js import api
from nats.js import errors as js_errors

from recmesh.runtime.bus.link import RETRYABLE, Link, LinkLost, Session
from recmesh.runtime.errors import NotFound, Unavailable
from recmesh.runtime.telemetry import get_logger

_HEARTBEAT_S = 2.0
_EXPIRES_S = 30.0
_MAX_BYTES = 32 << 20
_EPHEMERAL_S, _TO_END_S = 60.0, 5.0
"""The server keeps a reader's consumer for so long after it was last asked for messages. One that reads to an end is
over within moments, and a stream has room for a thousand: listings would fill it."""
_NO_ROOM = 10026
"""The server's code for a stream that has as many consumers as it may."""
_FULL = "STREAM_FULL"
_log = get_logger(__name__)


class ConsumerGone(Exception):
    """The server no longer has the consumer; it must be made again."""


class NoRoom(LinkLost):
    """A stream has as many readers as it may; some of them end within moments."""


class Pull:
    """Messages of one consumer over one connection, batch after batch."""

    def __init__(self, session: Session, stream: str, consumer: str, *, hand_back: bool) -> None:
        self._session = session
        self._hand_back = hand_back
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = session.client.new_inbox()
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()

    async def batches(self, room: Callable[[], Awaitable[int]]) -> AsyncGenerator[Msg, None]:
        """Ask for as many as there is `room` for, yield them as they come, ask again.

        Raises LinkLost, or ConsumerGone, when this session of reading is over. With `hand_back`,
        messages that came and were not yielded go back to the server at once.
        """
        try:
            subscription = await self._session.client.subscribe(self._inbox, cb=self._put)
        except RETRYABLE as error:
            raise LinkLost(str(error)) from None
        lost: asyncio.Future[object] = asyncio.ensure_future(self._session.lost.wait())
        try:
            while True:
                wanted = await room()
                await self._ask(wanted)
                while wanted:
                    message = await self._take(lost)
                    status = (message.headers or {}).get("Status")
                    if status is None or message.data:
                        wanted -= 1
                        yield message
                    elif status != "100":       # 100 is a heartbeat
                        _check(status, (message.headers or {}).get("Description", ""))
                        break
        finally:
            lost.cancel()
            with contextlib.suppress(Exception):   # the connection may be gone
                await subscription.unsubscribe()
                while self._hand_back and not self._arrived.empty():
                    left = self._arrived.get_nowait()
                    if left.reply and "Status" not in (left.headers or {}):
                        await left.nak()

    async def _put(self, message: Msg) -> None:
        self._arrived.put_nowait(message)

    async def _ask(self, batch: int) -> None:
        request = {
            "batch": batch, "max_bytes": _MAX_BYTES,
            "expires": int(_EXPIRES_S * 1e9), "idle_heartbeat": int(_HEARTBEAT_S * 1e9),
        }
        try:
            await self._session.client.publish(self._next, orjson.dumps(request), reply=self._inbox)
        except RETRYABLE as error:
            raise LinkLost(str(error)) from None

    async def _take(self, lost: "asyncio.Future[object]") -> Msg:
        if not self._arrived.empty():
            return self._arrived.get_nowait()
        arriving = asyncio.ensure_future(self._arrived.get())
        both: set[asyncio.Future[object]] = {arriving, lost}  # type: ignore[arg-type]  # Future is invariant
        try:
            await asyncio.wait(both, timeout=3 * _HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if arriving.done():
                return arriving.result()
            if lost.done():
                raise LinkLost("lost while reading")
            raise ConsumerGone("no heartbeat")
        finally:
            arriving.cancel()


def _check(status: str, description: str) -> None:
    """Raise for what ends the session; 404 and 408 only end a request, and so do most 409."""
    if status == "503" or (status == "409" and "Deleted" in description):
        raise ConsumerGone(description or status)
    if status not in ("404", "408", "409"):
        _log.warning("NATS answered a pull with %s %s", status, description)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader begins."""

    subject: str
    from_sequence: int | None = None
    """None: the last message of each subject, then what follows."""
    headers_only: bool = False
    subjects: tuple[str, ...] = ()
    """Several that do not overlap, in place of the one."""


async def follow(link: Link, stream: str, place: Place, *, to_end: bool) -> AsyncGenerator[Msg, None]:
    """Messages in order, each once, through restarts. With `to_end` it stops at what was last at the start.

    NotFound when the stream does not exist. One that has no room for another reader is waited for; with `to_end` for
    the time of a call, then Unavailable (`STREAM_FULL`). When the stream was emptied or made anew behind the reader's
    back it starts over, from the beginning of what is there.
    """
    seen = 0
    while True:
        try:
            session, consumer, pending = await _open(link, stream, place, seen, to_end=to_end)
            if to_end and pending == 0:
                return
            expected = 1
            async with aclosing(Pull(session, stream, consumer, hand_back=False).batches(_room)) as messages:
                async for message in messages:
                    meta = message.metadata
                    if meta.sequence.consumer != expected:
                        raise ConsumerGone("a message was lost on the way")
                    expected += 1
                    if meta.sequence.stream > seen:
                        seen = meta.sequence.stream
                        yield message
                    if to_end and meta.num_pending == 0:
                        return
        except (ConsumerGone, LinkLost, Unavailable) as error:
            reason = error.reason if isinstance(error, Unavailable) else ""
            if reason == "BUS_CLOSED" or (to_end and reason == _FULL):
                raise
            if reason == _FULL:
                _log.warning("%s: that is waited for", error)
            _log.debug("reading %s goes on: %s", stream, error)


async def _open(link: Link, stream: str, place: Place, seen: int, *, to_end: bool) -> tuple[Session, str, int]:
    full = False

    async def create(session: Session) -> tuple[Session, str, int]:
        nonlocal full
        full, start = False, place.from_sequence
        if seen:
            info = await session.js.stream_info(stream)
            start = seen + 1 if info.state.last_seq >= seen else place.from_sequence
        config = api.ConsumerConfig(
            name=f"follow-{uuid.uuid4().hex}", ack_policy=api.AckPolicy.NONE, mem_storage=True,
            num_replicas=1, inactive_threshold=_TO_END_S if to_end else _EPHEMERAL_S,
            filter_subject=None if place.subjects else place.subject,
            filter_subjects=list(place.subjects) or None, headers_only=place.headers_only,
            deliver_policy=(
                api.DeliverPolicy.LAST_PER_SUBJECT if start is None
                else api.DeliverPolicy.BY_START_SEQUENCE if start > 1 else api.DeliverPolicy.ALL
            ),
            opt_start_seq=start if start is not None and start > 1 else None,
        )
        try:
            made = await session.js.add_consumer(stream, config)
        except js_errors.NotFoundError:
            raise NotFound(f"there is no stream {stream}") from None
        except js_errors.BadRequestError as error:
            if error.err_code != _NO_ROOM:
                raise
            full = True
            raise NoRoom(str(error)) from None
        return session, str(made.name), int(made.num_pending or 0)

    try:
        return await link.call(f"read {stream}", create, timeout_s=30)
    except Unavailable:
        if full:
            raise Unavailable(f"stream {stream} has no room for another reader", reason=_FULL) from None
        raise


async def _room() -> int:
    return 500
