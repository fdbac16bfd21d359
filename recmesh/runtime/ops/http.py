"""An ASGI application as a component: its own socket, so that a taken port is named, and a clean stop."""

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from recmesh.runtime.errors import InvalidArgument, Violation
from recmesh.runtime.lifecycle import PortTaken


class HttpServer:
    """Serves an ASGI application with uvicorn in this event loop."""

    def __init__(self, name: str, address: str, app: Any, *, grace_s: float = 3.0) -> None:
        self.name = name
        self.address = ""
        """http://host:port once started."""
        self.port = 0
        self._wanted = address
        self._app = app
        self._grace_s = grace_s
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; PortTaken when another process does."""
        listener = listen(self._wanted, what=self.name)
        host, self.port = listener.getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        config = uvicorn.Config(
            self._app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=max(1, int(self._grace_s)), backlog=512,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]), name=self.name)
        while not self._server.started:   # uvicorn tells it by a flag only
            if self._task.done():
                self._task.result()
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """No new requests; those under way get the grace time."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def wait(self) -> None:
        """Returns or raises when the server has ended."""
        if self._task is not None:
            await asyncio.shield(self._task)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process's lifecycle has them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None to capture."""
        yield


def listen(address: str, *, what: str) -> socket.socket:
    """A bound socket; PortTaken or InvalidArgument name the address."""
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise _bad(what, f"{address!r} is not host:port")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, int(port)))
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(what, address) from None
        raise _bad(what, f"cannot listen on {address}: {error.strerror or error}") from None
    made.setblocking(False)
    return made


def is_loopback(address: str) -> bool:
    """True when only this machine can reach the address."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bad(what: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"{what}: {reason}", violations=[Violation("http_address", reason)])
