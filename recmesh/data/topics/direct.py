"""Messages of a JetStream stream by sequence (ADR-31 of NATS, servers from 2.11 on).

Direct gets are answered by whoever has the stream: its leader, a replica, a mirror. These may lag behind, or keep
less. So what they leave out at the beginning or at the end of what is read is asked of the leader.
"""

import asyncio
import base64
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson
from nats.aio.msg import Msg

from recmesh.data.topics.interface import NOT_THERE_YET, READ_S, Message
from recmesh.partitions import EVENT_TIME, told_moment
from recmesh.runtime.bus.link import Link, LinkLost, Session
from recmesh.runtime.errors import NotFound, Unavailable
from recmesh.runtime.telemetry import get_logger

BATCH = 4096
BATCH_BYTES = 8 << 20
DIRECT, API = "$JS.API.DIRECT.GET", "$JS.API"
_PAUSES_S = 0.05, 1.0
_NO_MESSAGE = 10037
"""JetStream's code of an error."""
_log = get_logger(__name__)


async def read(link: Link, stream: str, lo: int, hi: int) -> list[Message]:
    """The messages with sequences in [lo, hi) that are there: those left out were deleted, or were before the first.

    Unavailable: whoever answers lacks some that the leader has, or has not yet heard of `hi - 1` (NOT_THERE_YET).
    """
    clock = asyncio.get_running_loop().time
    deadline, pause_s = clock() + READ_S, _PAUSES_S[0]
    found: list[Message] = []
    at = lo
    while at < hi:
        part = await _part(link, stream, at, hi, deadline - clock())
        if not part or part[0].offset > at:
            there = await next_message(link, stream, at)
            if there is not None and there.offset < (part[0].offset if part else hi):
                if clock() + pause_s >= deadline:
                    raise Unavailable(
                        f"{stream}: message {there.offset} is with the stream's leader, but no replica or mirror "
                        f"that was asked has it after {READ_S:g} s", reason="REPLICA_BEHIND",
                    )
                await asyncio.sleep(pause_s)
                pause_s = min(_PAUSES_S[1], 2 * pause_s)
                continue
        if not part:
            await _see_end(link, stream, hi)
            break
        found += part
        at = part[-1].offset + 1
    return [each for each in found if each.offset < hi]


async def next_message(link: Link, stream: str, offset: int) -> Message | None:
    """The message at this sequence, or the first one behind it, as the stream's leader knows; None: there is none."""

    async def ask(session: Session) -> Message | None:
        request = {"seq": offset, "next_by_subj": ">"}
        answer = await session.client.request(
            f"{API}.STREAM.MSG.GET.{stream}", orjson.dumps(request), timeout=READ_S / 3
        )
        said = orjson.loads(answer.data)
        if "error" in said:
            if said["error"].get("err_code") == _NO_MESSAGE:
                return None
            raise _refused(stream, said["error"])
        message = said["message"]
        came = _stamped(message["time"])
        time = _time(stream, _headers(message.get("hdrs", "")), came)
        return Message(int(message["seq"]), time, base64.b64decode(message.get("data", "")), came)

    return await link.call(f"message {offset} of {stream}", ask, timeout_s=READ_S)


async def stream_info(session: Session, stream: str) -> dict[str, Any]:
    """What its leader says of a stream. NotFound."""
    answer = await session.client.request(f"{API}.STREAM.INFO.{stream}", b"", timeout=READ_S / 3)
    info: dict[str, Any] = orjson.loads(answer.data)
    if "error" in info:
        raise _refused(stream, info["error"])
    return info


def _refused(stream: str, error: Mapping[str, Any]) -> NotFound | Unavailable:
    text = f"JetStream stream {stream}: {error.get('description')}"
    return NotFound(text, reason="NO_TOPIC") if error.get("code") == 404 else Unavailable(text, reason="NATS_REFUSES")


async def _see_end(link: Link, stream: str, hi: int) -> None:
    """Messages behind the last one were deleted, as long as there were as many."""

    async def ask(session: Session) -> int:
        return int((await stream_info(session, stream))["state"]["last_seq"]) + 1

    end = await link.call(f"stream {stream}", ask, timeout_s=READ_S)
    if end < hi:
        raise Unavailable(f"{stream} ends at offset {end}, and {hi - 1} is asked for", reason=NOT_THERE_YET)


async def _part(link: Link, stream: str, lo: int, hi: int, timeout_s: float) -> list[Message]:
    """Some of the messages from `lo` on, as one server has them; what came before a connection broke is kept."""
    kept: list[Message] = []

    async def attempt(session: Session) -> None:
        at = kept[-1].offset + 1 if kept else lo
        batch = _Batch(stream)
        try:
            if at < hi:
                await batch.fetch(session, at, min(BATCH, hi - at))
        except BaseException:
            if batch.messages and batch.messages[0].offset == at:   # else the leader would have to be asked first
                kept.extend(batch.messages)
            raise
        if not kept or (batch.messages and batch.messages[0].offset == at):
            kept.extend(batch.messages)

    await link.call(f"messages of {stream}", attempt, timeout_s=max(timeout_s, 0.01))
    return kept


class _Batch:
    """What a request for messages is answered with: them, then a message of status."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self.messages: list[Message] = []
        """In order, and without a gap that was not there already at the server."""
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def fetch(self, session: Session, at: int, most: int) -> None:
        """LinkLost: it did not come whole; `messages` are those before."""
        inbox = session.client.new_inbox()
        subscription = await session.client.subscribe(
            inbox, cb=self.put, pending_msgs_limit=2 * BATCH, pending_bytes_limit=8 * BATCH_BYTES
        )
        try:
            request = {"seq": at, "batch": most, "max_bytes": BATCH_BYTES}
            await session.client.publish(f"{DIRECT}.{self._stream}", orjson.dumps(request), reply=inbox)
            await asyncio.wait_for(self._ended, READ_S / 3)
        finally:
            await subscription.unsubscribe()

    async def put(self, message: Msg) -> None:
        """An error here would be lost in the client library: it ends the batch."""
        if self._ended.done():
            return
        try:
            if self._take(message.headers or {}, message.data):
                self._ended.set_result(None)
        except LinkLost as error:
            self._ended.set_exception(error)
        except Exception as error:
            self._ended.set_exception(LinkLost(f"{self._stream}: an answer that is none ({error!r})"))

    def _take(self, headers: Mapping[str, str], data: bytes) -> bool:
        """True at the end."""
        last = self.messages[-1].offset if self.messages else 0
        status = headers.get("Status")
        if "Nats-Sequence" in headers:
            if int(headers["Nats-Last-Sequence"]) != last:
                raise LinkLost(f"messages behind {last} were lost on the way")
            came = _stamped(headers["Nats-Time-Stamp"])
            time = _time(self._stream, headers, came)
            self.messages.append(Message(int(headers["Nats-Sequence"]), time, data, came))
            return False
        if status == "404":
            return True
        if status == "204" and int(headers.get("Nats-Last-Sequence") or 0) == last:
            return True
        raise LinkLost(f"{status} after {len(self.messages)} messages")     # refused, or some were lost on the way


def _time(stream: str, headers: Mapping[str, str], came: float) -> float:
    """Of the event: its header where that is a moment, else when it came."""
    said = headers.get(EVENT_TIME)
    time = told_moment(said)
    if time is not None:
        return time
    if said:
        _tell_of_time(stream)
    return came


def _stamped(stamp: str) -> float:
    """The server's stamp, unix seconds."""
    whole, _, rest = stamp.rstrip("Z").partition(".")       # nanoseconds, of which Python reads six digits
    return datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp() + float(f"0.{rest or 0}")


@lru_cache(maxsize=4096)
def _tell_of_time(stream: str) -> None:
    """Once for each stream."""
    _log.warning("stream %s has messages whose %s is no moment in unix seconds: the server's time is taken",
                 stream, EVENT_TIME)


def _headers(packed: str) -> dict[str, str]:
    """Of a message as the leader gives it."""
    lines = base64.b64decode(packed).decode(errors="replace").split("\r\n")[1:]
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
