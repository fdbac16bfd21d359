"""The HTTP server as a component: bound before anything else answers, drained when the process stops."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from recmesh.runtime.lifecycle import PortTaken

BACKLOG = 1024
GRACE_S = 5


class HttpServer:
    """Serves one ASGI app."""

    def __init__(self, name: str, address: str, app: Any, *, closing: asyncio.Event) -> None:
        self.name = name
        self.port = 0
        self.address = ""
        """host:port once started."""
        self._wanted = address
        self._app = app
        self._closing = closing
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; PortTaken when another process does."""
        host, _, port = self._wanted.rpartition(":")
        host = host.strip("[]")
        sock = _listen(host, int(port), self.name, self._wanted)
        self.port = sock.getsockname()[1]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        config = uvicorn.Config(
            self._app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=GRACE_S,
            server_header=False, proxy_headers=False, backlog=BACKLOG,
        )  # fmt: skip
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[sock]), name=self.name)

    async def stop(self) -> None:
        """No new connections; requests in flight get the grace time, live streams end."""
        self._closing.set()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving

    async def wait(self) -> None:
        """Returns when the server has ended."""
        if self._serving is not None:
            await asyncio.shield(self._serving)


class _Server(uvicorn.Server):
    """The process' lifecycle handles signals, not its web server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def _listen(host: str, port: int, name: str, wanted: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise PortTaken(name, wanted) from None
    sock.setblocking(False)
    return sock
