"""The way of inference requests around the router, which tries some fifty routes before theirs.

The routes stay in the application for its OpenAPI document, and for whatever is unusual about a path; what is
done for a request is the same code.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from services.gateway.rest.calls import closed
from services.gateway.rest.guard import Asgi, Receive, Scope, Send

PATH = re.compile(r"/v2/models/([\w.-]{1,63})(?:/versions/([\w.-]{1,18}))?/infer", re.ASCII)
"""As long as the routes allow; others are for the router, which says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Template:
    """What traces and metrics call a request."""

    path: str


class InferDirect:
    """ASGI middleware before the application that has these routes. Errors are answered by whoever is before it."""

    def __init__(self, app: Asgi, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        found = {route.operation_id: route for route in routes if isinstance(route, APIRoute)}
        self._newest, self._newest_path = _endpoint(found["infer"])
        self._version, self._version_path = _endpoint(found["inferVersion"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        found = PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        name, version = found.groups()
        scope["route"] = self._version_path if version else self._newest_path
        request = Request(scope, receive)
        try:
            response = await (self._version(name, version, request) if version else self._newest(name, request))
        except ClientDisconnect:                 # before its body was here
            response = closed()
        await response(scope, receive, send)


def _endpoint(route: APIRoute) -> tuple[Callable[..., Awaitable[Response]], Any]:
    return route.endpoint, Template(route.path)
