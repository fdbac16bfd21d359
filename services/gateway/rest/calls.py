"""What a route knows of its caller beside the request: whether it is still there, and from where it calls."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response

from services.gateway.domain.access import is_loopback
from services.gateway.domain.callers import Caller

T = TypeVar("T")
CLIENT_CLOSED = 499
"""nginx's status for a caller that went away; nobody reads it but the metrics."""


class ClientGone(Exception):
    """The caller closed the connection before it was answered."""


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; the work is cancelled when the caller goes away. The body must have been read."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for each in (task, watch):
            if not each.done():
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await each


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def closed() -> Response:
    """What is written to nobody."""
    return Response(status_code=CLIENT_CLOSED)


def caller_of(request: Request) -> Caller:
    """Who asks, as the guard found out."""
    found: Caller = request.scope["recmesh.caller"]
    return found


def is_local(request: Request) -> bool:
    """True when the caller is on this machine."""
    return request.client is not None and is_loopback(f"{request.client.host}:0")
