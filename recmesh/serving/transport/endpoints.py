"""Where an HN listens, and how a CN reaches it: `shm:/path`, `unix:/path`, `tcp:host:port`.

Where a process has certificates, TCP is TLS, on both sides.
"""

import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, cast

from recmesh.runtime import net
from recmesh.runtime.errors import InvalidArgument, MeshError, Unavailable, Violation
from recmesh.runtime.loopback import is_loopback
from recmesh.runtime.tls import Tls
from recmesh.serving.frames import FrameError, Header
from recmesh.serving.transport import ConnectionLost, Transport, handshake, secure
from recmesh.serving.transport.shared import SharedTransport
from recmesh.serving.transport.sockets import SocketTransport, Stream

Carrier = Literal["shm", "unix", "tcp"]
MOST_CONNECTIONS = 512
MOST_PENDING = 64
"""Handshakes at once. One more ends the oldest: an honest one takes milliseconds, so that strangers keep nobody out."""
BACKLOG = 256
LOOK_S = 0.25
"""How often handshakes that take too long are looked for."""
AGAIN_S = 0.1
"""After the machine could not accept a connection."""
LOW_DELAY = 0x10
"""IPTOS_LOWDELAY: ports that look at it let asks pass messages (Linux' pfifo_fast does, by its first band)."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address: the carrier, and a path or `host:port`."""

    carrier: Carrier
    place: str

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """InvalidArgument names what is wrong with it."""
        carrier, _, place = text.partition(":")
        if carrier not in ("shm", "unix", "tcp") or not place:
            raise _bad(text, "is not shm:/path, unix:/path or tcp:host:port")
        if carrier == "tcp":
            net.split(place, what="serving", setting="address")
        elif not place.startswith("/") or len(place.encode()) > 100:     # sun_path holds 108 bytes
            raise _bad(text, "its path is not absolute, or longer than 100 bytes")
        return cls(cast("Carrier", carrier), place)

    def __str__(self) -> str:
        return f"{self.carrier}:{self.place}"


class Dial(Protocol):
    """`dial_for_terms` with what is known of the mesh."""

    def __call__(self, endpoint: Endpoint, *, timeout_s: float, urgent: bool = False) -> tuple[Transport, Header]:
        """See there."""
        ...


def dialling(*, token: str | None, tls: Tls | None = None) -> Dial:
    """How a process of this mesh connects. InvalidArgument: the certificates cannot be read."""
    if tls is not None:
        secure.of_client(tls)
    return partial(dial_for_terms, token=token, tls=tls)


def dial(endpoint: Endpoint, *, token: str | None, timeout_s: float, tls: Tls | None = None) -> Transport:
    """Connect. Unavailable: nobody is there, or it does not answer; Unauthenticated: token, certificate or protocol
    are not what the other side wants."""
    return dial_for_terms(endpoint, token=token, timeout_s=timeout_s, tls=tls)[0]


def dial_for_terms(
    endpoint: Endpoint, *, token: str | None, timeout_s: float, tls: Tls | None = None, urgent: bool = False
) -> tuple[Transport, Header]:
    """As `dial`, and what the other side wants its clients to know. `urgent`: switches may let it pass others."""
    sock = socket.socket(_family(endpoint), socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        if urgent and endpoint.carrier == "tcp" and sock.family is socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, LOW_DELAY)
        sock.connect(_target(endpoint))
        return _greeted(_secured(sock, endpoint, tls), endpoint, token)
    except (OSError, FrameError, ConnectionLost) as error:
        sock.close()
        raise Unavailable(f"{endpoint} cannot be reached: {error}", reason="HN_UNREACHABLE") from None
    except MeshError:
        sock.close()
        raise


class Listener:
    """Accepts CNs; each connection, once it has proved who it is, is given to `serve` in a thread of its own."""

    def __init__(
        self, endpoint: Endpoint, *, token: str | None, log: Callable[[str], None], open_now: bool = True,
        terms: Header | None = None, tls: Tls | None = None,
    ) -> None:  # fmt: skip
        """Takes the address; `open_now` False: whoever connects is refused until `open`, not kept waiting.

        `terms` are told to all who connect. InvalidArgument: the address, or certificates.
        """
        self._terms = terms or {}
        self._tls = secure.of_server(tls) if tls is not None and endpoint.carrier == "tcp" else None
        if endpoint.carrier == "tcp" and not is_loopback(endpoint.place) and not token:
            raise InvalidArgument(
                f"{endpoint} can be reached from other machines: the mesh's token (RECMESH_API_KEY) must be set",
                reason="NO_TOKEN",
            )
        self._token = token
        self._log = log
        self._sock = _bound(endpoint)
        if open_now:
            self.open()
        host_port = self._sock.getsockname()
        self.endpoint = (
            Endpoint("tcp", f"{host_port[0]}:{host_port[1]}") if endpoint.carrier == "tcp" else endpoint
        )
        self._open: set[socket.socket] = set()
        self._pending: dict[socket.socket, float] = {}
        """Connections in their handshakes, oldest first: until when they must be through."""
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def open(self) -> None:
        """Let CNs connect."""
        self._sock.listen(BACKLOG)

    def accept(self, serve: Callable[[Transport], None]) -> None:
        """Until `close`. Where the machine has no file or thread left for a connection, the others go on, and this does
        when it has one again."""
        self._sock.settimeout(LOOK_S)
        trouble = ""
        while not self._closed.is_set():
            self._end_slow()
            try:
                sock, _ = self._sock.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if self._closed.is_set():
                    return
                if str(error) != trouble:
                    trouble = str(error)
                    self._log(f"{self.endpoint} cannot accept a connection now: {trouble}")
                self._closed.wait(AGAIN_S)
                continue
            trouble = ""
            self._begin(sock, serve)

    def close(self) -> None:
        """Accept nobody more; those who are there stay."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if self.endpoint.carrier != "tcp":
            Path(self.endpoint.place).unlink(missing_ok=True)

    def _begin(self, sock: socket.socket, serve: Callable[[Transport], None]) -> None:
        with self._lock:
            is_full, oldest = len(self._open) >= MOST_CONNECTIONS, None
            if not is_full:
                oldest = next(iter(self._pending)) if len(self._pending) >= MOST_PENDING else None
                self._pending[sock] = time.monotonic() + handshake.HANDSHAKE_S
        if is_full:
            self._log(f"more than {MOST_CONNECTIONS} connections: one is refused")
            sock.close()
            return
        if oldest is not None:
            self._cut(oldest, f"more than {MOST_PENDING} handshakes at once")
        try:
            threading.Thread(target=self._one, args=(sock, serve), name="connection", daemon=True).start()
        except RuntimeError as error:            # no thread is to be had
            self._log(f"a connection to {self.endpoint} is refused: {error}")
            self._forget(sock)

    def _end_slow(self) -> None:
        """One deadline for all of a handshake, TLS among it: who sends a byte now and then holds nothing for longer."""
        now = time.monotonic()
        with self._lock:
            slow = [sock for sock, until in self._pending.items() if until <= now]
        for sock in slow:
            self._cut(sock, f"not made within {handshake.HANDSHAKE_S:g} s")

    def _cut(self, sock: socket.socket, why: str) -> None:
        """Its thread sees the end, unless its handshake is over by now."""
        with self._lock:
            if self._pending.pop(sock, None) is None:
                return
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._log(f"a connection to {self.endpoint} is ended: {why}")

    def _through(self, sock: socket.socket) -> bool:
        """Whether its handshake was in time, and there is still room for it."""
        with self._lock:
            if self._pending.pop(sock, None) is None or len(self._open) >= MOST_CONNECTIONS:
                return False
            self._open.add(sock)
            return True

    def _forget(self, sock: socket.socket) -> None:
        with self._lock:                         # before another connection may be given its number
            self._open.discard(sock)
            self._pending.pop(sock, None)
            sock.close()

    def _one(self, sock: socket.socket, serve: Callable[[Transport], None]) -> None:
        try:
            stream: Stream = sock
            if self._tls is not None:
                sock.settimeout(handshake.HANDSHAKE_S)
                wrapped = stream = secure.SecureSocket(sock, self._tls, server=True)
                wrapped.handshake()
            made = SocketTransport(stream, kind="tcp" if self.endpoint.carrier == "tcp" else "unix")
            carrier = handshake.as_server(made, token=self._token, terms=self._terms)
            if self._through(sock):
                serve(SharedTransport(made) if carrier == "shm" and self.endpoint.carrier != "tcp" else made)
        except (FrameError, ConnectionLost, MeshError, OSError) as error:
            self._log(f"a connection to {self.endpoint} ended: {error}")
        finally:
            self._forget(sock)


def _secured(sock: socket.socket, endpoint: Endpoint, tls: Tls | None) -> Stream:
    if tls is None or endpoint.carrier != "tcp":
        return sock
    name = tls.server_name or net.split(endpoint.place, what="serving")[0]
    made = secure.SecureSocket(sock, secure.of_client(tls), server=False, name=name)
    made.handshake()
    return made


def _greeted(stream: Stream, endpoint: Endpoint, token: str | None) -> tuple[Transport, Header]:
    made = SocketTransport(stream, kind="tcp" if endpoint.carrier == "tcp" else "unix")
    try:
        terms = handshake.as_client(made, token=token, carrier=endpoint.carrier)
    except ConnectionLost:
        if isinstance(stream, secure.SecureSocket) and stream.failure:
            raise secure.refused(stream.failure) from None
        raise
    return (SharedTransport(made) if endpoint.carrier == "shm" else made), terms


def _bound(endpoint: Endpoint) -> socket.socket:
    if endpoint.carrier == "tcp":
        made = net.listen(endpoint.place, what="serving")
        made.setblocking(True)
        return made
    path = Path(endpoint.place)
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
            path.unlink()                        # of a process that was killed
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)                     # nobody but this user may connect
    try:
        made.bind(str(path))
    except OSError as error:
        made.close()
        raise _bad(str(endpoint), f"cannot be listened on: {error.strerror}") from None
    finally:
        os.umask(before)
    return made


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _family(endpoint: Endpoint) -> socket.AddressFamily:
    if endpoint.carrier != "tcp":
        return socket.AF_UNIX
    return socket.AF_INET6 if endpoint.place.startswith("[") else socket.AF_INET


def _target(endpoint: Endpoint) -> str | tuple[str, int]:
    return endpoint.place if endpoint.carrier != "tcp" else net.split(endpoint.place, what="serving")


def _bad(text: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"address {text!r} {why}", reason="BAD_ADDRESS", violations=[Violation("address", why)])
