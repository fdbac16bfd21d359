"""Topics in JetStream: each partition is a stream, whose sequences are its offsets.

Messages are got directly, by sequence and many at a time (direct.py): the server keeps nothing of who reads, so any
worker reads any part, again if it must.
"""

import asyncio
import fnmatch
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from nats.js import errors as js_errors

from recmesh.data.topics import direct
from recmesh.data.topics.direct import stream_info
from recmesh.data.topics.interface import READ_S, Message, Partition, Span
from recmesh.data.topics.loop import Loop, shared_loop
from recmesh.runtime.bus.link import Link, Session
from recmesh.runtime.errors import FailedPrecondition, NotFound

__all__ = ["BUCKET", "SCHEME", "JetStreamTopic"]

SCHEME = "jetstream:"
BUCKET = "recmesh_offsets"
"""Where offsets of groups are committed: key GROUP.STREAM."""
LIST_S = 10.0
"""So often the streams of a pattern are listed anew."""
_AT_ONCE = 64
_LIST = "$JS.API.STREAM.LIST"
_UNSAFE = re.compile(rb"[^A-Za-z0-9_-]")


class JetStreamTopic:
    """See Topic."""

    def __init__(self, pattern: str, *, url: str, token: str = "", loop: Loop | None = None) -> None:
        """`pattern`: a stream's name, or with `*` and `?` of those that are the partitions."""
        self._pattern, self._url, self._token = pattern, url, token
        self._loop = loop or shared_loop()
        self._known: tuple[list[str], float] = [], 0.0
        """The streams of the pattern, and when they are to be listed again."""

    def partitions(self) -> Sequence[Partition]:
        """See Topic. FailedPrecondition: a stream does not allow direct gets."""
        return self._loop.call(self._partitions(), timeout_s=READ_S)

    def tag_of(self, uri: str) -> str:
        """See Topic. Of when the stream was made."""
        return self._loop.call(self._partition_of(_stream(uri)), timeout_s=READ_S).tag

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

    def came_at(self, uri: str, offset: int) -> float | None:
        """See Topic."""
        found = self._first(uri, offset)
        return None if found is None else found.came

    def read(self, uri: str, lo: int, hi: int) -> list[Message]:
        """See Topic."""
        return self._loop.call(self._read(_stream(uri), lo, hi), timeout_s=READ_S) if lo < hi else []

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
        """As the leader knows it: a replica that lags would say that there is none, or another one."""
        return self._loop.call(self._next(_stream(uri), offset), timeout_s=READ_S)

    def _span(self, uri: str) -> Span:
        return self._loop.call(self._partition_of(_stream(uri)), timeout_s=READ_S).span

    async def _link(self) -> Link:
        return await self._loop.link(self._url, self._token)

    async def _partitions(self) -> list[Partition]:
        async def infos(session: Session) -> list[dict[str, Any]]:
            if not any(mark in self._pattern for mark in "*?["):
                return [await stream_info(session, self._pattern)]
            now = asyncio.get_running_loop().time()
            names, until = self._known
            if names and now < until:
                try:
                    return await _infos(session, names)
                except NotFound:                # one was deleted
                    pass
            found = await _listed(session, self._pattern)
            self._known = [info["config"]["name"] for info in found], now + LIST_S
            return found

        found = await (await self._link()).call(f"streams {self._pattern}", infos, timeout_s=READ_S)
        if not found:
            raise NotFound(f"no JetStream stream is named {self._pattern}", reason="NO_TOPIC")
        return sorted(map(_partition, found), key=lambda each: _natural(each.uri))

    async def _partition_of(self, stream: str) -> Partition:
        async def read(session: Session) -> Partition:
            return _partition(await stream_info(session, stream))

        return await (await self._link()).call(f"stream {stream}", read, timeout_s=READ_S)

    async def _read(self, stream: str, lo: int, hi: int) -> list[Message]:
        return await direct.read(await self._link(), stream, lo, hi)

    async def _next(self, stream: str, offset: int) -> Message | None:
        return await direct.next_message(await self._link(), stream, offset)

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
                if "." in group:                # no consumer may be named so
                    return None
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


async def _listed(session: Session, pattern: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        answer = await session.client.request(_LIST, orjson.dumps({"offset": len(found)}), timeout=READ_S / 3)
        page = orjson.loads(answer.data)
        found += page.get("streams") or []
        if len(found) >= page.get("total", 0) or not page.get("streams"):
            return [info for info in found if fnmatch.fnmatchcase(info["config"]["name"], pattern)]


async def _infos(session: Session, streams: Sequence[str]) -> list[dict[str, Any]]:
    """NotFound: one of them is gone."""
    found: list[dict[str, Any]] = []
    for at in range(0, len(streams), _AT_ONCE):
        found += await asyncio.gather(*(stream_info(session, name) for name in streams[at:at + _AT_ONCE]))
    return found


def _partition(info: Mapping[str, Any]) -> Partition:
    config, state = info["config"], info["state"]
    if not config.get("allow_direct"):
        raise FailedPrecondition(
            f"JetStream stream {config['name']} does not allow direct gets: nats stream edit --allow-direct",
            reason="NO_DIRECT_GETS",
        )
    tag = hashlib.sha256(info["created"].encode()).hexdigest()[:12]
    span = Span(max(1, int(state["first_seq"])), int(state["last_seq"]) + 1)
    mean_bytes = int(state["bytes"]) / int(state["messages"]) if state["messages"] else 0.0
    return Partition(f"{SCHEME}{config['name']}", tag, span, mean_bytes)


def _stream(uri: str) -> str:
    return uri.removeprefix(SCHEME)


def _key(group: str, stream: str) -> str:
    """One for each pair, of what keys may have: other bytes are `=` and two hexadecimal digits."""
    return ".".join(
        _UNSAFE.sub(lambda found: b"=%02X" % found[0][0], name.encode()).decode() for name in (group, stream)
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """clicks-2 before clicks-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
