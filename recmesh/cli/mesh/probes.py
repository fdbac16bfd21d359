"""Asking a component whether it is ready, over its own protocol, with a deadline and no client library."""

import contextlib
import json
import socket
import ssl
from dataclasses import dataclass
from enum import Enum

from recmesh.cli.mesh.component import Probe

TIMEOUT_S = 3.0


class Answer(Enum):
    """What a probe heard, from best to worst."""

    READY = "ready"
    NOT_READY = "not ready"
    """It answered, and said not yet."""
    REFUSED = "refused"
    """Nobody listens there."""
    SILENT = "silent"
    """Somebody listens and does not answer within the deadline."""


_MOST_BYTES = 16_384
_ANY_CERTIFICATE = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Nothing is said but a path, and nothing believed but "ready", of our own process at an address of this machine."""
_ANY_CERTIFICATE.check_hostname = False
_ANY_CERTIFICATE.verify_mode = ssl.CERT_NONE


@dataclass(frozen=True, slots=True)
class Heard:
    """An answer with the reason that came with it, if any."""

    answer: Answer
    reason: str = ""


def ask(probe: Probe) -> Heard:
    """Asks once; never raises for what the other side does."""
    host, _, port = probe.address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as connection:
            if probe.kind == "https":
                with _ANY_CERTIFICATE.wrap_socket(connection) as secure:
                    return _http(secure, probe)
            if probe.kind == "http":
                return _http(connection, probe)
            return Heard(_nats(connection) if probe.kind == "nats" else _valkey(connection, probe.password))
    except TimeoutError:
        return Heard(Answer.SILENT, f"no answer within {TIMEOUT_S:g} s")
    except OSError:
        return Heard(Answer.REFUSED)


def _http(connection: socket.socket, probe: Probe) -> Heard:
    request = f"GET {probe.path} HTTP/1.1\r\nHost: {probe.address}\r\nConnection: close\r\n\r\n"
    connection.sendall(request.encode())
    text = connection.recv(4096)
    if text.split(b" ", 2)[1:2] == [b"200"]:  # HTTP/1.1 200 OK
        return Heard(Answer.READY)
    with contextlib.suppress(OSError):  # what has come says that it is not ready, if not why
        while len(text) < _MOST_BYTES and (more := connection.recv(4096)):  # the body may come in a packet of its own
            text += more
    return Heard(Answer.NOT_READY, _reason(text))


def _reason(text: bytes) -> str:
    """Of `{"ready": false, "reason": ...}`."""
    try:
        return str(json.loads(text.partition(b"\r\n\r\n")[2])["reason"])[:500]
    except (ValueError, KeyError, TypeError):
        return ""


def _nats(connection: socket.socket) -> Answer:
    banner = connection.recv(65536)  # sent by the server at once, and only after JetStream has recovered
    return Answer.READY if banner.startswith(b"INFO ") else Answer.NOT_READY


def _valkey(connection: socket.socket, password: str) -> Answer:
    def call(*words: str) -> bytes:
        parts = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
        connection.sendall(f"*{len(words)}\r\n{parts}".encode())
        return connection.recv(4096)

    if password and not call("AUTH", password).startswith(b"+OK"):
        return Answer.NOT_READY
    return Answer.READY if call("PING").startswith(b"+PONG") else Answer.NOT_READY  # -LOADING until it is
