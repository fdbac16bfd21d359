"""`python -m bench.workloads.open_loop JSON`: requests over HTTP at times drawn beforehand, whatever the server does.

Each request has its time of a Poisson process; it goes out then on a free connection, or on the first that comes
free. A server that falls behind so finds more and more waiting, as with real users; latency counts from the drawn
time. Times, on the monotonic clock, and statuses go to a file of numpy's.
"""

import asyncio
import contextlib
import gc
import json
import signal
import sys
import time
from collections import deque
from typing import Any

import numpy as np
import uvloop

from bench.workloads import wide_deep

CONNECTIONS = 256
SPIN_S = 0.0015
"""Timers of the loop are of whole milliseconds: the last stretch before a request is waited out by looking."""
DRAIN_S = 5.0
"""For answers after the last request; what has none then counts as lost."""


def answer_in(buffer: bytes) -> tuple[int, int] | None:
    """Status and size of an answer over HTTP, when it is whole; all servers here tell its size."""
    ends = buffer.find(b"\r\n\r\n")
    if ends < 0:
        return None
    head = buffer[:ends].lower()
    at = head.find(b"\r\ncontent-length:")         # not Inference-Header-Content-Length
    size = ends + 4 + (int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0)
    return (int(head[9:12]), size) if len(buffer) >= size else None


def drawn(phases: list[tuple[float, float]], random: np.random.Generator) -> "np.ndarray[Any, Any]":
    """Times of a Poisson process: of each phase (per second, seconds) as many as are expected."""
    found, begin = [], 0.0
    for rate, seconds in phases:
        found.append(begin + np.cumsum(random.exponential(1 / rate, round(rate * seconds))))
        begin += seconds
    return np.sort(np.concatenate(found))


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, load: "Load") -> None:
        self._load = load
        self._at = -1
        self._buffer = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready for the first."""
        self._transport = transport              # uvloop's is no asyncio.Transport

    def send(self, index: int, request: bytes) -> None:
        """Ask."""
        self._at = index
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Parts of an answer."""
        self._buffer += data
        answer = answer_in(self._buffer)
        if answer is not None:
            status, size = answer
            self._buffer = self._buffer[size:]
            index, self._at = self._at, -1
            self._load.answered(self, index, status)

    def connection_lost(self, exc: Exception | None) -> None:
        """What was asked is lost."""
        self._load.lost(self, self._at)


class Load:
    """The drawn times, and what became of each request."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.due = drawn(task["phases"], np.random.default_rng(task["seed"]))
        count = len(self.due)
        self.sent = np.full(count, np.nan)
        self.done = np.full(count, np.nan)
        self.status = np.zeros(count, np.int16)
        self._host, self._port = task["host"], task["port"]
        self._requests = wide_deep.http_requests(
            task["model"], task["rows"], binary=task["binary"], host=f"{self._host}:{self._port}"
        )
        self._free: deque[Connection] = deque()
        self._waiting: deque[int] = deque()
        self._next = 0
        self._left = count
        self._drawn = asyncio.Event()
        """All are out, or in line for a connection."""
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """All of them, and what is answered soon after."""
        self._free.extend([await self._connect() for _ in range(CONNECTIONS)])
        gc.disable()
        self.due += time.monotonic() + 0.1
        print(json.dumps({"begins": float(self.due[0])}), flush=True)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop)
        self._pump()
        await self._drawn.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._ended.wait()

    def _stop(self) -> None:
        """No more of them; those before are waited for."""
        rest = len(self.due) - self._next
        if rest:
            for name in ("due", "sent", "done", "status"):
                setattr(self, name, getattr(self, name)[: self._next])
            self._drawn.set()
            self._count(rest)

    async def _connect(self) -> Connection:
        _, made = await asyncio.get_running_loop().create_connection(lambda: Connection(self), self._host, self._port)
        return made

    def _pump(self) -> None:
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        while self._next < len(self.due) and self.due[self._next] <= now:
            self._waiting.append(self._next)
            self._next += 1
        self._go()
        if self._next < len(self.due):
            left = self.due[self._next] - time.monotonic()
            if left > SPIN_S:
                loop.call_later(left - SPIN_S, self._pump)
            else:
                loop.call_soon(self._pump)
        else:
            self._drawn.set()

    def _go(self) -> None:
        while self._waiting and self._free:
            index = self._waiting.popleft()
            self.sent[index] = time.monotonic()
            self._free.popleft().send(index, self._requests[index % len(self._requests)])

    def answered(self, connection: Connection, index: int, status: int) -> None:
        """One has an answer, good or bad."""
        self.done[index] = time.monotonic()
        self.status[index] = status
        self._free.append(connection)
        self._go()
        self._count()

    def lost(self, connection: Connection, index: int) -> None:
        """A connection ended; another takes its place."""
        if connection in self._free:
            self._free.remove(connection)
        if index >= 0:
            self._count()
        if not self._ended.is_set():
            task = asyncio.ensure_future(self._connect())
            task.add_done_callback(self._again)

    def _again(self, made: "asyncio.Future[Connection]") -> None:
        if not made.cancelled() and made.exception() is None:
            self._free.append(made.result())
            self._go()

    def _count(self, number: int = 1) -> None:
        self._left -= number
        if not self._left:
            self._ended.set()


def main() -> None:
    """Says in a line of JSON when the first is due. SIGTERM: no more of them."""
    task = json.loads(sys.argv[1])

    async def fire() -> Load:
        load = Load(task)
        await load.run()
        return load

    load = uvloop.run(fire())
    np.savez(task["out"], due=load.due, sent=load.sent, done=load.done, status=load.status)


if __name__ == "__main__":
    main()
