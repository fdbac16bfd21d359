"""A real HTTP server that takes webhooks: keeps what came, answers as it is told."""

import base64
import contextlib
import hashlib
import hmac
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

from recmesh.runtime.tls import Tls


@dataclass(frozen=True, slots=True)
class Came:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int
    """What was answered."""

    @property
    def event(self) -> dict[str, Any]:
        """Of a structured one."""
        found: dict[str, Any] = orjson.loads(self.body)
        return found

    @property
    def what(self) -> tuple[str, int]:
        """Its entity and a number in its data, of a structured `job.progressed`."""
        return self.event["subject"], int(self.event["data"].get("samples", -1))

    def is_signed_with(self, secret: str) -> bool:
        """By Standard Webhooks, worked out here anew."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        text = f"{self.headers['webhook-id']}.{self.headers['webhook-timestamp']}.".encode() + self.body
        wanted = "v1," + base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()
        fresh = abs(time.time() - int(self.headers["webhook-timestamp"])) < 300
        return fresh and wanted in self.headers["webhook-signature"].split(" ")


@dataclass(slots=True)
class Receiver:
    """`answer` gets the path, headers and body of each request, and gives a status."""

    port: int = 0
    came: list[Came] = field(default_factory=list)
    answer: Callable[[dict[str, str], bytes], int] = lambda headers, body: 200
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}/hook"

    def taken(self) -> list[Came]:
        """Those that were answered well, in order."""
        with self.lock:
            return [each for each in self.came if each.status < 300]


@contextlib.contextmanager
def receiver(tls: Tls | None = None) -> Iterator[Receiver]:
    """A running one; with certificates it speaks TLS."""
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = made.answer(headers, body)
            with made.lock:
                made.came.append(Came(self.path, headers, body, status))
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None and tls.cert is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.cert, tls.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
