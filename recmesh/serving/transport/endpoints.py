"""Where an HN listens, and how a CN reaches it: `shm:/path`, `unix:/path`, `tcp:host:port`."""

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from recmesh.runtime import net
from recmesh.runtime.errors import InvalidArgument, MeshError, Unavailable, Violation
from recmesh.serving.frames import FrameError, Header
from recmesh.serving.transport import ConnectionLost, Transport, handshake
from recmesh.serving.transport.shared import SharedTransport
from recmesh.serving.transport.sockets import SocketTransport

Carrier = Literal["shm", "unix", "tcp"]
MOST_CONNECTIONS = 256
BACKLOG = 64


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


def dial(endpoint: Endpoint, *, token: str | None, timeout_s: float) -> Transport:
    """Connect. Unavailable: nobody is there, or it does not answer; Unauthenticated: token or protocol differ."""
    return dial_for_terms(endpoint, token=token, timeout_s=timeout_s)[0]


def dial_for_terms(endpoint: Endpoint, *, token: str | None, timeout_s: float) -> tuple[Transport, Header]:
    """As `dial`, and what the other side wants its clients to know."""
    sock = socket.socket(_family(endpoint), socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(_target(endpoint))
        return _greeted(sock, endpoint, token)
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
        terms: Header | None = None,
    ) -> None:  # fmt: skip
        """Takes the address; `open_now` False: whoever connects is refused until `open`, not kept waiting.

        `terms` are told to all who connect.
        """
        self._terms = terms or {}
        if endpoint.carrier == "tcp" and not net.is_loopback(endpoint.place) and not token:
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
        self._open: set[SocketTransport] = set()
        self._lock = threading.Lock()

    def open(self) -> None:
        """Let CNs connect."""
        self._sock.listen(BACKLOG)

    def accept(self, serve: Callable[[Transport], None]) -> None:
        """Until `close`."""
        while True:
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            made = SocketTransport(sock, kind="tcp" if self.endpoint.carrier == "tcp" else "unix")
            with self._lock:
                if len(self._open) >= MOST_CONNECTIONS:
                    self._log(f"more than {MOST_CONNECTIONS} connections: one is refused")
                    made.close()
                    continue
                self._open.add(made)
            threading.Thread(target=self._one, args=(made, serve), name="connection", daemon=True).start()

    def close(self) -> None:
        """Accept nobody more; those who are there stay."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if self.endpoint.carrier != "tcp":
            Path(self.endpoint.place).unlink(missing_ok=True)

    def _one(self, made: SocketTransport, serve: Callable[[Transport], None]) -> None:
        try:
            carrier = handshake.as_server(made, token=self._token, terms=self._terms)
            serve(SharedTransport(made) if carrier == "shm" and self.endpoint.carrier != "tcp" else made)
        except (FrameError, ConnectionLost, MeshError, OSError) as error:
            self._log(f"a connection to {self.endpoint} ended: {error}")
        finally:
            made.close()
            with self._lock:
                self._open.discard(made)


def _greeted(sock: socket.socket, endpoint: Endpoint, token: str | None) -> tuple[Transport, Header]:
    made = SocketTransport(sock, kind="tcp" if endpoint.carrier == "tcp" else "unix")
    terms = handshake.as_client(made, token=token, carrier=endpoint.carrier)
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
