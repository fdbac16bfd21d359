"""One address for several jobmasters, as a load balancer would give them: bytes go to whichever it points at."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_BLOCK = 1 << 16
_START_S = 10.0


class Front:
    """Serves from `start` to `stop`. Pointed elsewhere, it cuts all connections, so that callers come again."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="front", daemon=True)
        self._target = ("", 0)
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def start(self) -> str:
        """The address."""
        self._thread.start()
        return self._do(self._listen())

    def point_at(self, address: str) -> None:
        """host:port of the one that callers shall reach from now on."""
        self._do(self._turn(address))

    def stop(self) -> None:
        """Cuts all connections."""
        if self._thread.is_alive():
            self._do(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_START_S)
        if not self._loop.is_running():
            self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_S)

    async def _listen(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def _turn(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        await self._cut()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        others: asyncio.StreamWriter | None = None
        try:
            source, others = await asyncio.open_connection(*self._target)
            ways = [asyncio.create_task(_pass_on(reader, others)), asyncio.create_task(_pass_on(source, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:     # nobody listens there: the caller comes again
            pass
        except asyncio.CancelledError:
            pass            # cut
        finally:
            self._open.discard(task)
            for item in (writer, others):
                if item is not None:
                    item.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_BLOCK):
            writer.write(data)
            await writer.drain()
