"""The port of `bench.workloads.port` without any rights: a process between real sockets that queues, drops and waits.

Chunks of a connection come in at most at its NIC's pace. One that finds the queue full is lost, and with it all that
its sender sends until it notices: the connection stands still for a time-out, which doubles while it loses more, and
goes on from what was lost (go-back-N). What leaves does so at the port's rate. The way back has no limit.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from bench.workloads.port import Port

_CHUNK_BYTES = 4096
_TIMEOUT_S, _LONGEST_S = 0.2, 3.2
_SLEEP_S = 0.002


class _Port:
    def __init__(self, bytes_per_s: float, buffer_bytes: int) -> None:
        self._rate, self._buffer = bytes_per_s, buffer_bytes
        self._first: deque[tuple[bytes, asyncio.StreamWriter]] = deque()
        self._queue: deque[tuple[bytes, asyncio.StreamWriter]] = deque()
        self._queued = 0
        self._came = asyncio.Event()
        self.lost = 0

    async def connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: tuple[str, int]
    ) -> None:
        try:
            back, onward = await asyncio.open_connection(*target)
        except OSError:
            writer.close()
            return
        backward = asyncio.create_task(_copied(back, writer))
        loop = asyncio.get_running_loop()
        timeout_s, may_at = _TIMEOUT_S, loop.time()
        queue = self._first
        try:
            while chunk := await reader.read(_CHUNK_BYTES):
                if len(chunk) == _CHUNK_BYTES:
                    queue = self._queue         # it carries messages; those of asks alone pass them
                while not self._takes(chunk, onward, queue):
                    self.lost += 1
                    await asyncio.sleep(timeout_s)
                    timeout_s = min(2 * timeout_s, _LONGEST_S)
                else:
                    timeout_s = _TIMEOUT_S
                may_at = max(may_at, loop.time() - _SLEEP_S) + len(chunk) / self._rate
                if may_at > loop.time() + _SLEEP_S:         # shorter ones take longer than they should
                    await asyncio.sleep(may_at - loop.time())
        except OSError:
            pass
        finally:
            backward.cancel()
            onward.close()
            writer.close()

    def _takes(
        self, chunk: bytes, onward: asyncio.StreamWriter, queue: deque[tuple[bytes, asyncio.StreamWriter]]
    ) -> bool:
        if self._queued + len(chunk) > self._buffer:
            return False
        queue.append((chunk, onward))
        self._queued += len(chunk)
        self._came.set()
        return True

    async def forward(self) -> None:
        loop = asyncio.get_running_loop()
        free_at = loop.time()
        while True:
            while not (self._first or self._queue):
                self._came.clear()
                await self._came.wait()
            free_at = max(free_at, loop.time() - 0.005)
            while (self._first or self._queue) and free_at <= loop.time():
                chunk, onward = (self._first or self._queue).popleft()
                self._queued -= len(chunk)
                free_at += len(chunk) / self._rate
                if not onward.is_closing():
                    onward.write(chunk)
            await asyncio.sleep(max(0.0, free_at - loop.time()))


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)


class _UserPort(Port):
    def __init__(self, port: _Port, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__((), (), "127.0.0.1", "", "")
        self._port, self._loop = port, loop
        self._servers: list[asyncio.Server] = []

    def lost_packets(self) -> int:
        """Chunks."""
        return self._port.lost

    def reach(self, port: int) -> tuple[str, int]:
        """A way through the port."""
        return asyncio.run_coroutine_threadsafe(self._served(port), self._loop).result(10)

    async def _served(self, port: int) -> tuple[str, int]:
        server = await asyncio.start_server(
            lambda reader, writer: self._port.connected(reader, writer, (self.address, port)), self.address, 0,
            backlog=1024,
        )
        self._servers.append(server)
        return self.address, int(server.sockets[0].getsockname()[1])


@contextmanager
def user_port(bytes_per_s: float, buffer_bytes: int) -> Iterator[Port]:
    """In a thread of this process."""
    loop = asyncio.new_event_loop()
    inner = _Port(bytes_per_s, buffer_bytes)
    forwarding: list[asyncio.Task[None]] = []      # the loop alone would not keep it alive
    loop.call_soon(lambda: forwarding.append(loop.create_task(inner.forward())))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield _UserPort(inner, loop)
    finally:
        asyncio.run_coroutine_threadsafe(_end_all(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
