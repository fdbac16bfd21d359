"""A reference transport: admission and messages over TCP, as plain as it can be. `bench incast` measures through it.

A CN has two connections to an HN, so that no ask waits behind a message's bytes. On both, frames: u32 length of the
body, u8 kind, body.

    HELLO    16 bytes that name the CN, u8 the connection's use (0 control, 1 messages)
    CONTROL  a message of `codec`
    DATA     u64 request, the message
    ANSWER   u64 request, the answer
"""

import asyncio
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from recmesh.runtime.errors import InvalidArgument, Unavailable, Violation
from recmesh.serving.admission.broker import Broker
from recmesh.serving.admission.client import Client
from recmesh.serving.admission.codec import decode, encode
from recmesh.serving.admission.messages import Ask, Cancel, Done, Grant, Refuse, Sent, ToCn, ToHn

Handler = Callable[[memoryview], Awaitable[bytes]]
"""What computes an answer."""

HELLO, CONTROL, DATA, ANSWER = 0, 1, 2, 3
_FRAME = struct.Struct("<IB")
_REQUEST = struct.Struct("<Q")
_NAME_BYTES = 16
_FOR_CONTROL, _FOR_MESSAGES = 0, 1
_CONTROL_MOST_BYTES = 4 << 10
_SO_MAX_PACING_RATE = 47
"""Linux; the socket module has no name for it."""
_LOW_DELAY = 0x10
"""IPTOS_LOWDELAY: ports that look at it let asks pass messages (Linux' pfifo_fast does, by its first band)."""
_HELLO_S = 10.0
_READ_AHEAD_BYTES = 1 << 20


class TcpHn:
    """Listens, admits by a broker, and answers. Without a broker it takes whatever comes."""

    def __init__(self, handler: Handler, *, message_most_bytes: int) -> None:
        self._handler = handler
        self._most = message_most_bytes + _REQUEST.size
        self._control: dict[str, asyncio.StreamWriter] = {}
        self._models: dict[tuple[str, int], str] = {}
        self._computing: set[asyncio.Task[None]] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.broker: Broker | None = None
        """Set before `start`, with `send` as its way out."""

    def send(self, peer: str, message: ToCn) -> None:
        """`ports.SendToCn`."""
        if isinstance(message, Refuse):
            self._models.pop((peer, message.request), None)
        writer = self._control.get(peer)
        if writer is not None and not writer.is_closing():
            _write(writer, CONTROL, encode(message))

    async def start(self, host: str, port: int) -> int:
        """The port it listens on; 0 asks for a free one."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=_READ_AHEAD_BYTES, backlog=1024)
        address: tuple[str, int] = self._server.sockets[0].getsockname()
        return address[1]

    async def stop(self) -> None:
        """Links are cut."""
        if self._server is not None:
            self._server.close()
        for task in [*self._connections, *self._computing]:
            task.cancel()
        await asyncio.gather(*self._connections, *self._computing, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            async with asyncio.timeout(_HELLO_S):
                kind, body = await _read(reader, _NAME_BYTES + 1)
            if kind != HELLO or len(body) != _NAME_BYTES + 1:
                raise _damaged("hello", "is what a connection begins with")
            peer = bytes(body[:_NAME_BYTES]).hex()
            if body[_NAME_BYTES] == _FOR_CONTROL:
                await self._hear(peer, reader, writer)
            else:
                await self._take(peer, reader, writer)
        except (OSError, EOFError, TimeoutError, InvalidArgument, asyncio.CancelledError):
            pass                                # the link is gone or unusable; its CN asks anew, on another
        finally:
            self._connections.discard(task)
            writer.close()

    async def _hear(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._control[peer] = writer
        try:
            while True:
                _, body = await _read(reader, _CONTROL_MOST_BYTES)
                message = decode(body)
                if not isinstance(message, Ask | Cancel | Sent):
                    raise _damaged("kind", f"{type(message).__name__} is not for an HN")
                if isinstance(message, Ask):
                    self._models[peer, message.request] = message.model
                elif isinstance(message, Cancel):
                    self._models.pop((peer, message.request), None)
                if self.broker is not None:
                    self.broker.receive(peer, message)
        finally:
            self._control.pop(peer, None)
            for key in [each for each in self._models if each[0] == peer]:
                del self._models[key]
            if self.broker is not None:
                self.broker.lost(peer)

    async def _take(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await _read(reader, self._most)
            request = _number(body)
            if self.broker is None or self.broker.arrived(peer, request):
                model = self._models.pop((peer, request), "")
                task = asyncio.create_task(self._answer(model, request, body[_REQUEST.size:], writer))
                self._computing.add(task)
                task.add_done_callback(self._computing.discard)

    async def _answer(self, model: str, request: int, message: memoryview, writer: asyncio.StreamWriter) -> None:
        began = time.monotonic()
        answer = await self._handler(message)
        if self.broker is not None and model:
            self.broker.computed(model, time.monotonic() - began)
        if not writer.is_closing():
            _write(writer, ANSWER, _REQUEST.pack(request), answer)


class TcpCn:
    """One CN's link to one HN."""

    def __init__(self) -> None:
        self.client = Client(send=self._send)
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._sending = asyncio.Lock()
        self._unasked = 1 << 63
        self._is_lost = False

    async def open(self, host: str, port: int, *, pace_bytes_per_s: int = 0) -> None:
        """Connect; OSError when nobody is there. `pace_bytes_per_s`: the kernel sends no faster."""
        name = os.urandom(_NAME_BYTES)
        for use, listen in ((_FOR_CONTROL, self._hear), (_FOR_MESSAGES, self._take)):
            reader, writer = await asyncio.open_connection(host, port, limit=_READ_AHEAD_BYTES)
            self._writers.append(writer)
            if use == _FOR_CONTROL:
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _LOW_DELAY)
            if pace_bytes_per_s:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, pace_bytes_per_s)
            _write(writer, HELLO, name, bytes([use]))
            self._tasks.append(asyncio.create_task(self._until_lost(listen, reader)))

    async def close(self) -> None:
        """The HN forgets what was asked."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def call(
        self, model: str, message: bytes | memoryview, *, left_s: float | None, return_bytes: int = 0,
        priority: int = 0,
    ) -> bytes:
        """Ask, send, and wait for the answer; `Refused`, DeadlineExceeded or Unavailable where there is none."""
        admitted = self.client.admit(
            model, len(message), left_s=left_s, return_bytes=return_bytes, priority=priority
        )
        async with admitted as request:
            return await self._exchange(request, message)

    async def call_unasked(self, message: bytes | memoryview) -> bytes:
        """To an HN without a broker."""
        self._unasked += 1
        return await self._exchange(self._unasked, message)

    async def _exchange(self, request: int, message: bytes | memoryview) -> bytes:
        if self._is_lost:
            raise _lost()
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[request] = answer
        writer = self._writers[_FOR_MESSAGES]
        try:
            async with self._sending:           # a frame is whole before the next one begins
                _write(writer, DATA, _REQUEST.pack(request), message)
                await writer.drain()
            return await answer
        except OSError as error:
            raise _lost() from error
        finally:
            del self._answers[request]

    def _send(self, message: ToHn) -> None:
        writer = self._writers[_FOR_CONTROL]
        if not writer.is_closing():
            _write(writer, CONTROL, encode(message))

    async def _until_lost(
        self, listen: Callable[[asyncio.StreamReader], Awaitable[None]], reader: asyncio.StreamReader
    ) -> None:
        try:
            await listen(reader)
        except (OSError, EOFError, InvalidArgument):
            pass
        finally:
            self._is_lost = True
            self.client.lost()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(_lost())

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        while True:
            _, body = await _read(reader, _CONTROL_MOST_BYTES)
            message = decode(body)
            if isinstance(message, Grant | Refuse | Done):
                self.client.receive(message)

    async def _take(self, reader: asyncio.StreamReader) -> None:
        while True:
            _, body = await _read(reader, 1 << 32)
            answer = self._answers.get(_number(body))
            if answer is not None and not answer.done():
                answer.set_result(bytes(body[_REQUEST.size:]))


def _write(writer: asyncio.StreamWriter, kind: int, *parts: bytes | memoryview) -> None:
    writer.write(_FRAME.pack(sum(map(len, parts)), kind))
    for part in parts:
        writer.write(part)


async def _read(reader: asyncio.StreamReader, most_bytes: int) -> tuple[int, memoryview]:
    length, kind = _FRAME.unpack(await reader.readexactly(_FRAME.size))
    if length > most_bytes:
        raise _damaged("frame", f"has {length} bytes, more than {most_bytes}")
    return kind, memoryview(await reader.readexactly(length))


def _number(body: memoryview) -> int:
    if len(body) < _REQUEST.size:
        raise _damaged("request", f"is missing in {len(body)} bytes")
    (request,) = _REQUEST.unpack_from(body)
    return int(request)


def _damaged(field: str, why: str) -> InvalidArgument:
    return InvalidArgument("this is no frame of admission over TCP", violations=[Violation(field, why)])


def _lost() -> Unavailable:
    return Unavailable("the link to the accelerator node is gone", reason="LINK_LOST")
