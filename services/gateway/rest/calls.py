"""What a route knows of its caller beside the request: whether it is still there, and from where it calls."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from services.gateway.domain.access import is_loopback
from services.gateway.domain.callers import Caller

T = TypeVar("T")
CLIENT_CLOSED = 499
"""nginx's status for a caller that went away; nobody reads it but the metrics."""
WATCH_AFTER_S = 0.02
"""What is answered sooner is not worth a task that looks whether its caller left."""


class ClientGone(Exception):
    """The caller closed the connection before it was answered."""


async def body_of(request: Request) -> bytes:
    """The whole body, read once; ClientDisconnect. Mostly it comes in one piece, which is not copied."""
    pieces: list[bytes] = []
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The work's result; the work is cancelled when the caller goes away. The body must have been read."""
    mine = asyncio.current_task()
    assert mine is not None, "a coroutine runs in a task"
    gone = False
    watching: asyncio.Task[None] | None = None

    async def watch() -> None:
        nonlocal gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        gone = True
        mine.cancel()

    def begin() -> None:
        nonlocal watching
        watching = asyncio.create_task(watch())

    later = asyncio.get_running_loop().call_later(WATCH_AFTER_S, begin)
    try:
        return await work
    except asyncio.CancelledError:
        if not gone or mine.uncancel():          # by somebody else, too: that goes on
            raise
        raise ClientGone from None
    finally:
        later.cancel()
        if watching is not None:
            watching.cancel()


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
