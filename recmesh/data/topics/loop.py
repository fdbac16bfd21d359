"""NATS for threads: one event loop, in a thread of its own, with one connection per server."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from recmesh.runtime.bus.link import Link
from recmesh.runtime.errors import Unavailable

T = TypeVar("T")
DIAL_S = 10.0
GRACE_S = 5.0
"""Calls have deadlines of their own; so much later they are given up."""


class Loop:
    """An event loop that threads hand calls to."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: dict[tuple[str, str], asyncio.Task[Link]] = {}
        threading.Thread(target=self._loop.run_forever, name="topics", daemon=True).start()

    def call(self, work: Coroutine[Any, Any, T], *, timeout_s: float) -> T:
        """Its result. Unavailable when it takes longer."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s + GRACE_S)
        except (FutureTimeoutError, CancelledError):
            future.cancel()
            raise Unavailable(f"no answer within {timeout_s:g} s", reason="NATS_UNREACHABLE") from None

    async def link(self, url: str, token: str) -> Link:
        """The connection to these servers, opened once. Unavailable, Unauthenticated."""
        key = url, token
        if key not in self._links or (self._links[key].done() and self._links[key].exception() is not None):
            self._links[key] = asyncio.ensure_future(_opened(url, token))
        return await asyncio.shield(self._links[key])


async def _opened(url: str, token: str) -> Link:
    link = Link(url, name="recmesh-topics", token=token)
    try:
        await link.open(DIAL_S)
    except BaseException:
        await link.close()
        raise
    return link


_shared: Loop | None = None
_lock = threading.Lock()


def shared_loop() -> Loop:
    """The process's one."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = Loop()
        return _shared
