"""An ASGI application as a component: its own socket, so that a taken port is named, and a clean stop."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn

from recmesh.runtime.net import listen
from recmesh.runtime.tls import Tls, renewing


class HttpServer:
    """Serves an ASGI application with uvicorn in this event loop."""

    def __init__(self, name: str, address: str, app: Any, *, grace_s: float = 3.0, tls: Tls | None = None) -> None:
        """tls: https; with its `ca` clients must show a certificate of that authority."""
        self.name = name
        self.address = ""
        """http(s)://host:port once started."""
        self.port = 0
        self._wanted = address
        self._app = app
        self._grace_s = grace_s
        self._tls = tls
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; PortTaken when another process does, InvalidArgument for certificates that cannot be used."""
        context = renewing(self._tls) if self._tls else None
        listener = listen(self._wanted, what=self.name, setting="http_address")
        host, self.port = listener.getsockname()[:2]
        self.address = f"{'https' if self._tls else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"
        config = uvicorn.Config(
            self._app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False,
            timeout_graceful_shutdown=max(1, int(self._grace_s)), backlog=512,
        )
        config.load()
        config.ssl = context    # uvicorn's own is read once; this one counts what was renewed

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
