"""Asking a component whether it is ready, over its own protocol, with a deadline and no client library."""

import socket
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


def ask(probe: Probe) -> Answer:
    """Asks once; never raises for what the other side does."""
    host, _, port = probe.address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as connection:
            if probe.kind == "http":
                return _http(connection, probe)
            return _nats(connection) if probe.kind == "nats" else _valkey(connection, probe.password)
    except TimeoutError:
        return Answer.SILENT
    except OSError:
        return Answer.REFUSED


def _http(connection: socket.socket, probe: Probe) -> Answer:
    request = f"GET {probe.path} HTTP/1.1\r\nHost: {probe.address}\r\nConnection: close\r\n\r\n"
    connection.sendall(request.encode())
    status = connection.recv(4096).split(b" ", 2)  # HTTP/1.1 200 OK
    return Answer.READY if status[1:2] == [b"200"] else Answer.NOT_READY


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
