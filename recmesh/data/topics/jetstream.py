"""Topics in JetStream: each partition is a stream, whose sequences are its offsets.

Messages are got directly, by sequence and many at a time (ADR-31 of NATS, servers from 2.11 on): the server keeps
nothing of who reads, so any worker reads any part, again if it must.
"""

import asyncio
import fnmatch
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from nats.aio.msg import Msg
from nats.js import errors as js_errors

from recmesh.data.topics.interface import READ_S, Message, Partition, Span
from recmesh.data.topics.loop import Loop, shared_loop
from recmesh.runtime.bus.link import Link, LinkLost, Session
from recmesh.runtime.errors import FailedPrecondition, NotFound

SCHEME = "jetstream:"
TIME_HEADER = "Recmesh-Time"
"""When the event was, unix seconds, where that is not when the server got the message."""
BUCKET = "recmesh_offsets"
"""Where offsets of groups are committed: key GROUP.STREAM."""
BATCH = 4096
BATCH_BYTES = 32 << 20
_LIST = "$JS.API.STREAM.LIST"
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


class JetStreamTopic:
    """See Topic."""

    def __init__(self, pattern: str, *, url: str, token: str = "", loop: Loop | None = None) -> None:
        """`pattern`: a stream's name, or with `*` and `?` of those that are the partitions."""
        self._pattern, self._url, self._token = pattern, url, token
        self._loop = loop or shared_loop()

    def partitions(self) -> Sequence[Partition]:
        """See Topic. FailedPrecondition: a stream does not allow direct gets."""
        return self._loop.call(self._partitions(), timeout_s=READ_S)

    def after(self, uri: str, time: float) -> int | None:
        """See Topic. By halving: event times of a partition do not go back."""
        span = self._span(uri)
        lo, hi = span.first, span.end
        while lo < hi:
            middle = (lo + hi) // 2
            found = self._first(uri, middle)
            if found is None or found.offset >= hi or found.time >= time:
                hi = middle                     # what lies between was deleted: no message decides it
            else:
                lo = found.offset + 1
        found = self._first(uri, lo)
        return found.offset if found is not None and found.time >= time else None

    def time_of(self, uri: str, offset: int) -> float | None:
        """See Topic."""
        found = self._first(uri, offset)
        return None if found is None else found.time

    def read(self, uri: str, lo: int, hi: int) -> list[Message]:
        """See Topic."""
        return self._loop.call(self._read(_stream(uri), lo, hi, most=hi - lo), timeout_s=READ_S) if lo < hi else []

    def committed(self, group: str) -> Mapping[str, int]:
        """See Topic. Streams without an entry of ours: where a durable consumer of the group's name has come to."""
        return self._loop.call(self._committed(group), timeout_s=READ_S)

    def commit(self, group: str, offsets: Mapping[str, int]) -> None:
        """See Topic."""
        self._loop.call(self._commit(group, offsets), timeout_s=READ_S)

    def close(self) -> None:
        """The connection is the process's."""

    # ---- inside the loop

    def _first(self, uri: str, offset: int) -> Message | None:
        found = self._loop.call(self._read(_stream(uri), offset, None, most=1), timeout_s=READ_S)
        return found[0] if found else None

    def _span(self, uri: str) -> Span:
        return self._loop.call(self._span_of(_stream(uri)), timeout_s=READ_S)

    async def _link(self) -> Link:
        return await self._loop.link(self._url, self._token)

    async def _partitions(self) -> list[Partition]:
        async def listed(session: Session) -> list[dict[str, Any]]:
            if not any(mark in self._pattern for mark in "*?["):
                return [await _info(session, self._pattern)]
            found: list[dict[str, Any]] = []
            while True:
                answer = await session.client.request(_LIST, orjson.dumps({"offset": len(found)}), timeout=READ_S / 3)
                page = orjson.loads(answer.data)
                found += page.get("streams") or []
                if len(found) >= page.get("total", 0) or not page.get("streams"):
                    return [info for info in found if fnmatch.fnmatchcase(info["config"]["name"], self._pattern)]

        infos = await (await self._link()).call(f"streams {self._pattern}", listed, timeout_s=READ_S)
        if not infos:
            raise NotFound(f"no JetStream stream is named {self._pattern}", reason="NO_TOPIC")
        return sorted(map(_partition, infos), key=lambda each: _natural(each.uri))

    async def _span_of(self, stream: str) -> Span:
        async def read(session: Session) -> Span:
            return _partition(await _info(session, stream)).span

        return await (await self._link()).call(f"stream {stream}", read, timeout_s=READ_S)

    async def _read(self, stream: str, lo: int, hi: int | None, *, most: int) -> list[Message]:
        """At most so many messages from `lo` on, those from `hi` on left out."""

        async def read(session: Session) -> list[Message]:
            return await _direct(session, stream, lo, hi, most)

        return await (await self._link()).call(f"messages of {stream}", read, timeout_s=READ_S)

    async def _committed(self, group: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for partition in await self._partitions():
            stream = _stream(partition.uri)

            async def read(session: Session, stream: str = stream) -> int | None:
                try:
                    entry = await (await session.js.key_value(BUCKET)).get(_key(group, stream))
                    return int(entry.value or b"0")
                except (js_errors.NotFoundError, js_errors.KeyNotFoundError, js_errors.BucketNotFoundError):
                    pass
                try:
                    info = await session.js.consumer_info(stream, group)
                except js_errors.NotFoundError:
                    return None
                return int(info.ack_floor.stream_seq or 0) + 1 if info.ack_floor else 1

            offset = await (await self._link()).call(f"offset of {group}", read, timeout_s=READ_S)
            if offset is not None:
                found[partition.uri] = offset
        return found

    async def _commit(self, group: str, offsets: Mapping[str, int]) -> None:
        async def write(session: Session) -> None:
            try:
                bucket = await session.js.key_value(BUCKET)
            except (js_errors.NotFoundError, js_errors.BucketNotFoundError):
                bucket = await session.js.create_key_value(bucket=BUCKET)
            for uri, offset in offsets.items():
                await bucket.put(_key(group, _stream(uri)), str(offset).encode())

        await (await self._link()).call(f"offsets of {group}", write, timeout_s=READ_S)


async def _info(session: Session, stream: str) -> dict[str, Any]:
    answer = await session.client.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=READ_S / 3)
    info: dict[str, Any] = orjson.loads(answer.data)
    if "error" in info:
        raise NotFound(f"JetStream stream {stream}: {info['error'].get('description')}", reason="NO_TOPIC")
    return info


def _partition(info: Mapping[str, Any]) -> Partition:
    config, state = info["config"], info["state"]
    if not config.get("allow_direct"):
        raise FailedPrecondition(
            f"JetStream stream {config['name']} does not allow direct gets: nats stream edit --allow-direct",
            reason="NO_DIRECT_GETS",
        )
    tag = hashlib.sha256(info["created"].encode()).hexdigest()[:12]
    span = Span(max(1, int(state["first_seq"])), int(state["last_seq"]) + 1)
    return Partition(f"{SCHEME}{config['name']}", tag, span)


async def _direct(session: Session, stream: str, lo: int, hi: int | None, most: int) -> list[Message]:
    """Batch after batch. An error of the link when one does not come whole: the caller begins again."""
    found: list[Message] = []
    batch = _Batch()
    inbox = session.client.new_inbox()
    subscription = await session.client.subscribe(
        inbox, cb=batch.put, pending_msgs_limit=2 * BATCH, pending_bytes_limit=4 * BATCH_BYTES
    )
    try:
        at = lo
        while len(found) < most and (hi is None or at < hi):
            batch.begin()
            request = {"seq": at, "batch": min(BATCH, most - len(found)), "max_bytes": BATCH_BYTES}
            await session.client.publish(f"$JS.API.DIRECT.GET.{stream}", orjson.dumps(request), reply=inbox)
            is_last = await asyncio.wait_for(batch.ended, READ_S / 3)
            found += batch.messages
            if is_last or not batch.messages:
                break
            at = found[-1].offset + 1
        return [each for each in found if hi is None or each.offset < hi]
    finally:
        await subscription.unsubscribe()


class _Batch:
    """What a request for messages is answered with: them, then a message of status."""

    messages: list[Message]
    ended: "asyncio.Future[bool]"
    """Whether there are no more behind."""

    def begin(self) -> None:
        self.messages, self.ended = [], asyncio.get_running_loop().create_future()

    async def put(self, message: Msg) -> None:
        headers = message.headers or {}
        status = headers.get("Status")
        if status is None or message.data:
            self.messages.append(_message(message, headers))
        elif self.ended.done():
            return
        elif status == "404":
            self.ended.set_result(True)
        elif status == "204" and int(headers.get("Nats-Last-Sequence") or 0) == self._last:
            self.ended.set_result(headers.get("Nats-Num-Pending") == "0")
        else:                                   # refused, or some were lost on the way
            self.ended.set_exception(LinkLost(f"{status} after {len(self.messages)} messages"))

    @property
    def _last(self) -> int:
        return self.messages[-1].offset if self.messages else 0


def _message(message: Msg, headers: Mapping[str, str]) -> Message:
    at = headers.get(TIME_HEADER)
    time = float(at) if at else _unix(headers["Nats-Time-Stamp"])
    return Message(int(headers["Nats-Sequence"]), time, message.data)


def _unix(stamp: str) -> float:
    """Of RFC 3339 with nanoseconds, of which Python reads six digits."""
    whole, _, rest = stamp.rstrip("Z").partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp() + float(f"0.{rest or 0}")


def _stream(uri: str) -> str:
    return uri.removeprefix(SCHEME)


def _key(group: str, stream: str) -> str:
    return f"{_UNSAFE.sub('_', group)}.{stream}"


def _natural(name: str) -> list[tuple[int, str]]:
    """clicks-2 before clicks-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
