"""Frames over a stream socket: gathered writes, reads into memory made for them."""

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from recmesh.serving import frames
from recmesh.serving.frames import Bytes, Header
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import ConnectionLost, Message

MOST_BUFFERS = 512
"""In one sendmsg; Linux takes 1024 (IOV_MAX)."""
BUFFER_BYTES = 4 << 20
AHEAD_BYTES = 64 << 10
"""Read at once where so much has come: small frames, which come in crowds, cost less than a call each."""
STALL_S = 5.0


class Stream(Protocol):
    """A connected socket, or what is put around one (`secure.SecureSocket`)."""

    def sendmsg(self, buffers: Sequence[Bytes], /) -> int:
        """As `socket.socket` has it, and so below."""
        ...

    def recv_into(self, view: bytearray | memoryview, /) -> int:
        """At least a byte; 0 at the end."""
        ...

    def settimeout(self, timeout_s: float | None, /) -> None:
        """Of reads and writes."""
        ...

    def setsockopt(self, level: int, option: int, value: int | bytes, /) -> None:
        """Of the socket."""
        ...

    def shutdown(self, how: int, /) -> None:
        """Whoever reads sees the end."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class SocketTransport:
    """A connected stream socket.

    A peer that takes nothing for `stall_s` is given up: whoever sends must not wait for it for ever.
    """

    def __init__(self, sock: Stream, *, kind: str = "unix", stall_s: float = STALL_S) -> None:
        self._sock = sock
        self._kind = kind
        self._sending = threading.Lock()
        self._held: list[Bytes] = []
        self._holders = 0
        self._prefix = bytearray(frames.PREFIX.size)
        self._ahead = memoryview(bytearray(AHEAD_BYTES))
        self._ahead_begin = self._ahead_end = 0
        self.reads_ahead = True
        """False in the handshake: what follows it may bring descriptors, which only `recv_fds` takes."""
        self.max_header_bytes = frames.MAX_HEADER_BYTES
        self.max_body_bytes = frames.MAX_BODY_BYTES
        sock.settimeout(None)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(stall_s))
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        if kind == "tcp":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3)):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)

    @property
    def kind(self) -> str:
        """What carries the bytes."""
        return self._kind

    @property
    def sock(self) -> Stream:
        """The socket, for the handshake."""
        return self._sock

    def send(self, header: Header, tensors: Sequence[Tensor] = ()) -> None:
        """Send one frame."""
        self.write(frames.encode(header, tensors))

    def write(self, parts: Sequence[Bytes]) -> None:
        """Send an encoded frame."""
        with self._sending:
            if self._holders:
                self._held.extend(parts)
            else:
                self._write(parts)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """See Transport."""
        with self._sending:
            self._holders += 1
        try:
            yield
        finally:
            with self._sending:
                self._holders -= 1
                held = () if self._holders else tuple(self._held)
                del self._held[: len(held)]
                try:
                    self._write(held)
                except ConnectionLost:
                    self.close()                 # whoever reads from it sees the end

    def receive(self) -> Message | None:
        """The next frame; None at the end."""
        frame = self.read()
        if frame is None:
            return None
        header, body = frame
        return Message(header, frames.tensors_of(header, body))

    def read(self) -> tuple[Header, Bytes] | None:
        """The next frame's header, `tensors` in it, and its body; None at the end."""
        if not self._fill(self._prefix):
            return None
        header_bytes, body_bytes = frames.sizes(
            self._prefix, max_header_bytes=self.max_header_bytes, max_body_bytes=self.max_body_bytes
        )
        text, body = bytearray(header_bytes), np.empty(body_bytes, np.uint8)
        if not self._fill(text) or not self._fill(body.data):
            return None
        return frames.header_of(text), body.data

    def close(self) -> None:
        """End it for both sides."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)     # wakes whoever waits in recv, which close would not
        self._sock.close()

    def _write(self, parts: Sequence[Bytes]) -> None:
        """By who holds the lock."""
        waiting = [view for part in parts if (view := memoryview(part).cast("B")).nbytes]
        try:
            while waiting:
                sent = self._sock.sendmsg(waiting[:MOST_BUFFERS])
                waiting = _rest(waiting, sent)
        except BlockingIOError:
            self.close()                         # half a frame is out: nothing can follow it
            raise ConnectionLost("the other side takes nothing any more") from None
        except OSError as error:
            raise ConnectionLost(f"the connection ended: {error.strerror or error}") from None

    def _fill(self, target: bytearray | memoryview) -> bool:
        """False when the stream ended before."""
        view = memoryview(target)
        try:
            while view.nbytes:
                got = self._some(view)
                if not got:
                    return False
                view = view[got:]
        except OSError:
            return False
        return True

    def _some(self, view: memoryview) -> int:
        """The next bytes, at least one; 0 at the end. What is large goes where it belongs at once."""
        if self._ahead_begin == self._ahead_end:
            if not self.reads_ahead or view.nbytes >= AHEAD_BYTES:
                return self._sock.recv_into(view)
            self._ahead_begin, self._ahead_end = 0, self._sock.recv_into(self._ahead)
        got = min(view.nbytes, self._ahead_end - self._ahead_begin)
        view[:got] = self._ahead[self._ahead_begin : self._ahead_begin + got]
        self._ahead_begin += got
        return got


def _rest(waiting: list[memoryview], sent: int) -> list[memoryview]:
    """What is still to be sent."""
    ends = itertools.accumulate(view.nbytes for view in waiting)
    for index, end in enumerate(ends):
        if end > sent:
            view = waiting[index]
            return [view[view.nbytes - (end - sent) :], *waiting[index + 1 :]]
    return []


def _timeval(seconds: float) -> bytes:
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
