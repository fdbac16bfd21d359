"""What every request passes before it reaches a route: its id, who asks, from where, how much.

The gateway runs users' code, so on loopback too it must not be reachable through a browser that shows a
stranger's page: names other than the machine's own are refused (DNS rebinding), and so are writes that
another site's page sends.
"""

import base64
import binascii
import hmac
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote, urlsplit

from recmesh.runtime import telemetry
from recmesh.runtime.errors import MeshError, PermissionDenied, ResourceExhausted
from recmesh.runtime.room import Room
from services.gateway.app.access import Access
from services.gateway.app.audit import Audit
from services.gateway.domain.access import LOOPBACK_HOSTS
from services.gateway.domain.audit import UNKNOWN, Entry, act_of, outcome_of
from services.gateway.domain.callers import needed
from services.gateway.rest.problems import problem, unexpected

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Mapping[bytes, bytes]

OPEN_PATHS = ("/healthz", "/readyz", "/docs", "/openapi.json", "/static/")
"""No key needed: they tell nothing of jobs or models."""
METRICS = "/metrics"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
STORING_METHODS = ("POST", "PUT", "PATCH")
"""Under /v1 these write something down, and are refused on a full disk; what ends or removes things is not."""
ENDING = ":stop"
MAX_ID_CHARS = 128
DRY_RUN = re.compile(rb"(?:^|&)dry_run=(?:true|1|yes|on)(?:&|$)", re.IGNORECASE)

_log = telemetry.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Largest bodies, in bytes."""

    default: int
    infer: int
    code: int

    def of(self, path: str) -> int:
        """The limit for a path."""
        if path == "/v1/code":
            return self.code
        return self.infer if path.startswith("/v2/") else self.default


class Guard:
    """ASGI middleware."""

    def __init__(
        self, app: Asgi, *, access: Access, loopback: bool, limits: BodyLimits, room: Room, audit: Audit | None = None,
        metrics_token: str | None = None,
    ) -> None:
        """`metrics_token`: lets in to `METRICS`, and nowhere else."""
        self._app = app
        self._access = access
        self._loopback = loopback
        self._limits = limits
        self._room = room
        self._audit = audit
        self._metrics_token = metrics_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])         # names are in lower case in ASGI
        request_id = _request_id(headers)
        scope["recmesh.request_id"] = request_id
        scope["recmesh.told"] = {}              # shared with copies of the scope
        path = str(scope["path"])
        started = finished = False

        async def tagged(message: Message) -> None:
            nonlocal started, finished
            if message["type"] == "http.response.start":
                started = True
                await self._record(scope, message)
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode("latin-1"))]
            elif message["type"] == "http.response.body":
                finished = not message.get("more_body", False)
            await send(message)

        try:
            self._admit(scope, headers, path)
            await self._app(scope, self._bounded(receive, headers, path), tagged)
        except Exception as error:
            if not isinstance(error, MeshError):
                _log.exception("%s %s failed", scope["method"], path, extra={"request_id": request_id})
                error = unexpected(request_id)
            scope["recmesh.told"].setdefault("reason", error.reason)
            if started and not finished:
                raise  # the server closes the connection: the reader must not take it for whole
            if not started:
                await problem(error, path=path, request_id=request_id)(scope, receive, tagged)

    def _admit(self, scope: Scope, headers: Headers, path: str) -> None:
        host = _text(headers, b"host")
        if self._loopback and urlsplit(f"//{host}").hostname not in LOOPBACK_HOSTS:
            raise PermissionDenied(
                f"this gateway answers on loopback only, not as {host!r}", reason="WRONG_HOST"
            )
        origin = _text(headers, b"origin")
        if scope["method"] not in SAFE_METHODS and origin and urlsplit(origin).netloc != host:
            raise PermissionDenied(f"writes from pages of {origin} are refused", reason="CROSS_ORIGIN")
        if not path.startswith(OPEN_PATHS) and not (path == METRICS and self._reads_metrics(headers)):
            caller = self._access.caller(_bearer(_text(headers, b"authorization")))
            scope["recmesh.caller"] = caller
            caller.check(*needed(scope["method"], path))
            if path.startswith("/v2/") and path.endswith(("/infer", "/predict")):
                self._access.spend(caller)
        if path.startswith("/v1/") and scope["method"] in STORING_METHODS and not path.endswith(ENDING):
            self._room.check()  # at once and by name; the services behind would say it one by one, and late

    def _reads_metrics(self, headers: Headers) -> bool:
        if self._metrics_token is None:
            return False
        return hmac.compare_digest(_text(headers, b"authorization").encode(), f"Bearer {self._metrics_token}".encode())

    async def _record(self, scope: Scope, start: Message) -> None:
        """Before the answer is given: who is told that it is done can rely on its being written down."""
        dry_run = DRY_RUN.search(scope.get("query_string", b"")) is not None
        act = act_of(scope["method"], str(scope["path"]), dry_run=dry_run)
        if act is None or self._audit is None:
            return
        caller = scope.get("recmesh.caller")
        place = next((value for name, value in start["headers"] if name.lower() == b"location"), b"").decode("latin-1")
        if not act.object:
            asked = scope["recmesh.told"].get("asked", "")          # of what was not made, where its body was read
            act = replace(act, object=unquote(place.rpartition("/")[2]) or asked)
        client = scope.get("client")
        status = int(start["status"])
        await self._audit.record(Entry(
            act, caller.name if caller is not None else UNKNOWN, outcome_of(status), "rest",
            reason=scope["recmesh.told"].get("reason", "") if status >= 400 else "",
            request_id=scope["recmesh.request_id"], peer=str(client[0]) if client else "", status=status,
        ))  # fmt: skip

    def _bounded(self, receive: Receive, headers: Headers, path: str) -> Receive:
        limit = self._limits.of(path)
        announced = headers.get(b"content-length", b"")
        if announced.isdigit() and int(announced) > limit:
            raise _too_large(limit)
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise _too_large(limit)
            return message

        return counted


def _too_large(limit: int) -> ResourceExhausted:
    return ResourceExhausted(f"the body has more than {limit} bytes", reason="TOO_LARGE")


def _text(headers: Headers, name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _request_id(headers: Headers) -> str:
    given = _text(headers, b"x-request-id")
    usable = 0 < len(given) <= MAX_ID_CHARS and given.isascii() and given.isprintable()
    return given if usable else uuid.uuid4().hex


def _bearer(header: str) -> str:
    """A browser can only ask for name and password: the password is the key."""
    scheme, _, credential = header.partition(" ")
    if scheme.lower() != "basic":
        return header
    try:
        return "Bearer " + base64.b64decode(credential, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return header
