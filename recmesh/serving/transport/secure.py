"""TLS around a connected socket, for one thread that reads and any number that write.

`ssl.SSLSocket` must not be read and written at the same time: OpenSSL's connection is no two threads' matter. Here it
sees memory only, under a lock that is never held while the network is waited for. TLS 1.3 and the process' own
certificates, those of its gRPC (`recmesh.runtime.tls`): with a CA a server asks its clients for theirs.
"""

import contextlib
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Any

from recmesh.runtime.errors import Unauthenticated
from recmesh.runtime.tls import Tls, renewing
from recmesh.serving.frames import Bytes

READ_BYTES = 256 << 10
PIECE_BYTES = 1 << 20
"""What is encrypted at once: a larger message need not be in memory twice."""


class SecureSocket:
    """What `SocketTransport` needs of a socket. After `handshake`."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server: bool, name: str | None = None) -> None:
        self._sock = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server, server_hostname=name)
        self._lock = threading.Lock()
        """Of `_tls`, and of what comes out of it until it is sent: pieces must keep their order."""
        self._sending = threading.Lock()
        self.failure = ""
        """Why TLS ended: with TLS 1.3 a client hears after the handshake that its certificate does not do."""

    def handshake(self) -> None:
        """By the socket's timeout. Unauthenticated: the other side's certificate does not do, or ours does not."""
        while True:
            try:
                self._tls.do_handshake()
                self._flush()
                return
            except ssl.SSLWantReadError:
                self._flush()
                data = self._sock.recv(READ_BYTES)
                if not data:
                    raise refused("the other side ended the connection") from None
                self._in.write(data)
            except ssl.SSLError as error:
                with contextlib.suppress(OSError):
                    self._flush()                # the other side is told why
                why = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason
                raise refused(str(why)) from None

    def sendmsg(self, buffers: Sequence[Bytes], /) -> int:
        """All of it; the bytes of plain text."""
        sent = 0
        with self._sending:
            for buffer in buffers:
                view = memoryview(buffer)
                for begin in range(0, view.nbytes, PIECE_BYTES):
                    with self._lock:
                        sent += self._tls.write(view[begin : begin + PIECE_BYTES])
                        data = self._out.read()
                    self._sock.sendall(data)
        return sent

    def recv_into(self, view: memoryview | bytearray, /) -> int:
        """At least one byte; 0 at the end. OSError for what is no TLS, a refused certificate among it."""
        target = memoryview(view)
        while True:
            with self._lock:
                try:
                    got: Any = self._tls.read(target.nbytes, target)    # a count, where there is a buffer
                    return int(got)
                except ssl.SSLWantReadError:
                    pass
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return 0
                except ssl.SSLError as error:
                    self.failure = str(error.reason)
                    raise
            data = self._sock.recv(READ_BYTES)
            with self._lock:
                if data:
                    self._in.write(data)
                else:
                    self._in.write_eof()

    def settimeout(self, timeout_s: float | None) -> None:
        """Of the socket."""
        self._sock.settimeout(timeout_s)

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        """Of the socket."""
        self._sock.setsockopt(level, option, value)

    def shutdown(self, how: int) -> None:
        """Of the socket; the other side sees an end without a goodbye, which frames tell from a whole one."""
        self._sock.shutdown(how)

    def close(self) -> None:
        """Of the socket."""
        self._sock.close()

    def _flush(self) -> None:
        if data := self._out.read():
            self._sock.sendall(data)


def of_server(tls: Tls) -> ssl.SSLContext:
    """Each handshake is by the files as they are then. InvalidArgument when they cannot be read now, or are no
    certificates."""
    return renewing(tls, least=ssl.TLSVersion.TLSv1_3)


def of_client(tls: Tls) -> ssl.SSLContext:
    """By the files as they are now. As above."""
    return tls.client_context(least=ssl.TLSVersion.TLSv1_3)


def refused(why: str) -> Unauthenticated:
    """Who may not connect, or to whom."""
    return Unauthenticated(f"TLS failed: {why}", reason="BAD_CERTIFICATE")
