"""Asking a component whether it is ready, over its own protocol, with a deadline and no client library."""

import http.client
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
        if probe.kind == "http":
            return _http(host.strip("[]"), int(port), probe.path)
        with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S) as connection:
            return _nats(connection) if probe.kind == "nats" else _valkey(connection, probe.password)
    except TimeoutError:
        return Answer.SILENT
    except (OSError, http.client.HTTPException):
        return Answer.REFUSED


def _http(host: str, port: int, path: str) -> Answer:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        return Answer.READY if connection.getresponse().status == 200 else Answer.NOT_READY
    finally:
        connection.close()


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
