"""The HTTP port: what must be told when the process is ready, and when it stops."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from recmesh.runtime.ops import HttpServer
from recmesh.runtime.tls import Tls

GRACE_S = 5.0


class ReadyAware(Protocol):
    """Who answers probes."""

    def set_ready(self, ready: bool) -> None:
        """Told by the lifecycle."""
        ...


class PublicServer(HttpServer):
    """Live streams end before the port closes: their readers connect again, elsewhere or later.

    For `linger_s` after it was told to end it goes on to answer, as "not ready" to probes, and asks callers to leave:
    balancers send it new connections until they have heard, and a connection that is closed while its next request is
    on the way is a request that fails.
    """

    def __init__(
        self, address: str, app: Any, *, probes: ReadyAware, closing: Sequence[asyncio.Event], linger_s: float = 0.0,
        tls: Tls | None = None,
    ) -> None:
        self._door = _Door(app)
        super().__init__("http", address, self._door, grace_s=GRACE_S, tls=tls)
        self._probes = probes
        self._closing = closing
        self._linger_s = linger_s

    def set_ready(self, ready: bool) -> None:
        """Told by the lifecycle."""
        self._probes.set_ready(ready)

    async def stop(self) -> None:
        """Let go of those who watch, answer what is under way."""
        self._door.leaving = True
        for event in self._closing:
            event.set()
        await asyncio.sleep(self._linger_s)
        await super().stop()


class _Door:
    """Tells callers, once it is time to leave, that the connection ends with the answer."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.leaving = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not self.leaving or scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def parting(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, parting)
