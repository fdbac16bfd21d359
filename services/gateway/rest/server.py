"""The HTTP port: what must be told when the process is ready, and when it stops."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from recmesh.runtime.ops import HttpServer

GRACE_S = 5.0


class ReadyAware(Protocol):
    """Who answers probes."""

    def set_ready(self, ready: bool) -> None:
        """Told by the lifecycle."""
        ...


class PublicServer(HttpServer):
    """Live streams end before the port closes: their readers connect again, elsewhere or later."""

    def __init__(
        self, address: str, app: Any, *, probes: ReadyAware, closing: Sequence[asyncio.Event]
    ) -> None:
        super().__init__("http", address, app, grace_s=GRACE_S)
        self._probes = probes
        self._closing = closing

    def set_ready(self, ready: bool) -> None:
        """Told by the lifecycle."""
        self._probes.set_ready(ready)

    async def stop(self) -> None:
        """Let go of those who watch, answer what is under way."""
        for event in self._closing:
            event.set()
        await super().stop()
