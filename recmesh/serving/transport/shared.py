"""Bodies in shared memory, headers over the Unix socket beside it.

Each side writes into memory of its own (memfd) that the other side has mapped too, and whose descriptor went
over the socket. The memory has no name: when both ends are gone, however they ended, the kernel frees it. It
is sealed, so that neither side can shrink it under the other. A place is taken again when the other side has
dropped the last array over it; it says so with its next frame. A body without room goes over the socket.
"""

import fcntl
import mmap
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from recmesh.serving import frames
from recmesh.serving.frames import FrameError, Header
from recmesh.serving.tensors import Tensor
from recmesh.serving.transport import Message
from recmesh.serving.transport.places import Places
from recmesh.serving.transport.sockets import SocketTransport

INLINE_BYTES = 16 << 10
"""Smaller bodies go over the socket: a copy of so few bytes costs less than a place."""
ARENA_BYTES = 64 << 20
MAX_ARENA_BYTES = 4 << 30
EXCHANGE_S = 5.0
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedTransport:
    """One connection between two processes of one machine."""

    def __init__(self, socket_: SocketTransport, *, arena_bytes: int = ARENA_BYTES) -> None:
        """FrameError: it is no Unix socket, by which alone memory can be passed on."""
        self._socket = socket_
        sock = socket_.sock
        if not isinstance(sock, socket.socket):
            raise FrameError("memory is shared over Unix sockets alone")
        sock.settimeout(EXCHANGE_S)
        self._ours = _offered(sock, arena_bytes)
        self._theirs = _taken(sock)
        sock.settimeout(None)
        self._places = Places(arena_bytes)
        self._placing = threading.Lock()
        self._dropped: deque[int] = deque()

    @property
    def kind(self) -> str:
        """What carries the bytes."""
        return "shm"

    @property
    def held(self) -> int:
        """Places of ours that the other side still uses, as far as it has told."""
        with self._placing:
            return self._places.held

    def send(self, header: Header, tensors: Sequence[Tensor] = ()) -> None:
        """Send one frame; its body goes into our memory, where there is room."""
        body = frames.lay_out(tensors)
        header = {**header, "free": self._to_tell()}
        at = None
        if body.size_bytes > INLINE_BYTES:
            with self._placing:
                at = self._places.take(body.size_bytes)
        if at is None:
            self._socket.write([frames.head(header, body.described, body.size_bytes), *body.parts])
            return
        end = at
        for part in body.parts:
            begin, end = end, end + memoryview(part).nbytes
            self._ours[begin:end] = part
        self._socket.write([frames.head({**header, "arena": [at, body.size_bytes]}, body.described, 0)])

    def receive(self) -> Message | None:
        """The next frame; its tensors are views of the other side's memory."""
        frame = self._socket.read()
        if frame is None:
            return None
        header, body = frame
        self._take_back(header.pop("free", ()))
        place = header.pop("arena", None)
        if place is not None:
            body = self._region(*place)
        return Message(header, frames.tensors_of(header, body))

    def together(self) -> AbstractContextManager[None]:
        """See Transport."""
        return self._socket.together()

    def close(self) -> None:
        """End it for both sides. The memory goes when the last array over it does."""
        self._socket.close()

    def _region(self, at: int, size_bytes: int) -> memoryview:
        if at < 0 or size_bytes < 0 or at + size_bytes > len(self._theirs):
            raise FrameError(f"a body at {at} of {size_bytes} bytes lies beyond the shared memory")
        region = np.frombuffer(self._theirs, np.uint8, count=size_bytes, offset=at)
        weakref.finalize(region, self._dropped.append, at).atexit = False
        return region.data

    def _to_tell(self) -> list[int]:
        """Places of the other side that nothing here refers to any more."""
        told: list[int] = []
        while self._dropped:
            told.append(self._dropped.popleft())
        return told

    def _take_back(self, places: Sequence[int]) -> None:
        with self._placing:
            for at in places:
                try:
                    self._places.give_back(at)
                except KeyError:
                    raise FrameError(f"the place {at} was given back, but not taken") from None


def _offered(sock: socket.socket, size_bytes: int) -> mmap.mmap:
    made = os.memfd_create("recmesh-serving", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(made, size_bytes)
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, _SEALS)
        socket.send_fds(sock, [b"m"], [made])
        return _map(made)
    finally:
        os.close(made)


def _taken(sock: socket.socket) -> mmap.mmap:
    _, descriptors, _, _ = socket.recv_fds(sock, 1, 1)
    if len(descriptors) != 1:
        raise FrameError("the other side sent no memory")
    try:
        return _map(descriptors[0])
    finally:
        os.close(descriptors[0])


def _map(descriptor: int) -> mmap.mmap:
    """Writable on both sides: frameworks take arrays without a copy only if they might write to them."""
    size_bytes = os.fstat(descriptor).st_size
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise FrameError("the other side's memory is not sealed: it could vanish while it is read")
    if not 0 < size_bytes <= MAX_ARENA_BYTES:
        raise FrameError(f"the other side's memory has {size_bytes} bytes")
    return mmap.mmap(descriptor, size_bytes)
