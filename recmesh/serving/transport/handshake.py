"""Who is there: each side proves that it knows the mesh's token, without sending it.

    client → hello     {protocol, nonce, carrier}
    server → challenge {nonce, proof = HMAC-SHA256(token, "server" + the client's nonce + its own)}
    client → proof     {proof = HMAC-SHA256(token, "client" + the client's nonce + the server's)}
    server → welcome   what the server wants its clients to know

Frames of a handshake are small, and it must be over within HANDSHAKE_S: a stranger holds neither memory nor a
thread for long. What follows is as safe as the connection: over networks that are not trusted it needs TLS
(`secure`), which goes around all of this.
"""

import contextlib
import hmac
import secrets
from collections.abc import Generator
from typing import Any

from recmesh.runtime.errors import MeshError, Unauthenticated
from recmesh.serving import frames
from recmesh.serving.failures import describe, rebuilt
from recmesh.serving.frames import FrameError, Header
from recmesh.serving.transport import ConnectionLost, Message
from recmesh.serving.transport.sockets import SocketTransport

PROTOCOL = 1
HANDSHAKE_S = 5.0
MAX_HEADER_BYTES = 4096


class Refused(Exception):
    """The other side is none of this mesh: it is told `header`, and who called gets `error`."""

    def __init__(self, header: Header, error: MeshError) -> None:
        super().__init__(str(error))
        self.header, self.error = header, error


def clients(*, token: str | None, carrier: str) -> Generator[Header, Message | None, Header]:
    """A client's side without a connection: yields what to send, is sent what came, returns the server's terms.

    Raises `Refused`; Unauthenticated: the server refuses us; ConnectionLost: it has gone.
    """
    ours = secrets.token_hex(16)
    hello: Header = {"op": "hello", "protocol": PROTOCOL, "nonce": ours, "carrier": carrier}
    challenge = _expect((yield hello), "challenge")
    theirs = str(challenge.get("nonce", ""))
    if token is not None and not _same(challenge, _proof(token, "server", ours, theirs)):
        told = describe(Unauthenticated(
            "this process does not know the token of the mesh that connects: start it with its RECMESH_API_KEY",
            reason="BAD_TOKEN",
        ))  # fmt: skip
        raise Refused(told, Unauthenticated(
            "it does not know this mesh's token: start it with the mesh's RECMESH_API_KEY", reason="BAD_TOKEN"
        ))  # fmt: skip
    return _expect((yield {"op": "proof", "proof": _proof(token or "", "client", ours, theirs)}), "welcome")


def as_client(connection: SocketTransport, *, token: str | None, carrier: str) -> Header:
    """Prove and be shown a proof; the server's terms. Unauthenticated by either side, ConnectionLost: no answer."""
    steps = clients(token=token, carrier=carrier)
    with _Small(connection):
        try:
            connection.send(next(steps))
            while True:
                connection.send(steps.send(connection.receive()))
        except StopIteration as done:
            terms: Header = done.value
            return terms
        except Refused as refused:
            connection.send(refused.header)
            raise refused.error from None


def as_server(connection: SocketTransport, *, token: str | None, terms: Header) -> str:
    """Check a client; the carrier that it wants. It is told why it is refused."""
    ours = secrets.token_hex(16)
    with _Small(connection):
        hello = _expect(connection.receive(), "hello")
        try:
            if hello.get("protocol") != PROTOCOL:
                raise Unauthenticated(
                    f"protocol {hello.get('protocol')!r} is not spoken here, but {PROTOCOL}", reason="BAD_PROTOCOL"
                )
            theirs = str(hello.get("nonce", ""))
            connection.send(
                {"op": "challenge", "nonce": ours, "proof": _proof(token or "", "server", theirs, ours)}
            )
            answer = _expect(connection.receive(), "proof")
            if token is not None and not _same(answer, _proof(token, "client", theirs, ours)):
                raise Unauthenticated(
                    "the token of who connects is not this process' RECMESH_API_KEY", reason="BAD_TOKEN"
                )
        except MeshError as error:
            with contextlib.suppress(ConnectionLost):     # who refused us has gone
                connection.send(describe(error))
            raise
        connection.send({**terms, "op": "welcome"})
    return str(hello.get("carrier", ""))


def _proof(token: str, side: str, clients: str, servers: str) -> str:
    return hmac.new(token.encode(), f"{side} {clients} {servers}".encode(), "sha256").hexdigest()


def _same(header: Header, proof: str) -> bool:
    return hmac.compare_digest(str(header.get("proof", "")).encode(), proof.encode())


def _expect(message: Message | None, operation: str) -> Header:
    if message is None:
        raise ConnectionLost("the other side ended the connection in the handshake")
    if "error" in message.header:
        raise rebuilt(message.header)
    if message.header.get("op") != operation or message.tensors:
        raise FrameError(f"{operation} was expected, {message.header.get('op')!r} came")
    return message.header


class _Small:
    """While it lasts, frames are small, reads end after HANDSHAKE_S, and nothing behind a frame is read with it."""

    def __init__(self, connection: SocketTransport) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.max_header_bytes, self._connection.max_body_bytes = MAX_HEADER_BYTES, 0
        self._connection.reads_ahead = False
        self._connection.sock.settimeout(HANDSHAKE_S)

    def __exit__(self, *_: Any) -> None:
        self._connection.max_header_bytes = frames.MAX_HEADER_BYTES
        self._connection.max_body_bytes = frames.MAX_BODY_BYTES
        self._connection.reads_ahead = True
        self._connection.sock.settimeout(None)
