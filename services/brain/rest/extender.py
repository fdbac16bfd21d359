"""The extender API of kube-scheduler (k8s.io/kube-scheduler/extender/v1): POST /filter and POST /prioritize.

Fields have the names of Go's structs, since ExtenderArgs and its answers carry no JSON tags. With nodeCacheCapable
nodes come and go by name; without, as a NodeList. A refusal of all is an answer (`Error`), so that its words are in the
pod's event: of another status a scheduler tells only the number.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from recmesh.runtime.errors import InvalidArgument, MeshError, Violation
from services.brain.app.placing import Placing
from services.brain.domain.topology.model import Kept, Objection

MOST_BYTES = 64 << 20
"""5,000 nodes as whole objects are some 50 MB; by name 10,000 are 300 kB."""
PREFIX = "recmesh: "
"""Of reasons, which stand among other plugins' in a pod's event."""
UNRESOLVABLE = (Objection.OTHER_NETWORK_POD,)
"""No eviction from the node helps: it need not be tried."""


class Extender:
    """The routes."""

    def __init__(self, app: Placing) -> None:
        self._app = app

    def routes(self) -> Starlette:
        """As an ASGI application."""
        return Starlette(routes=[
            Route("/filter", self._filter, methods=["POST"]),
            Route("/prioritize", self._prioritize, methods=["POST"]),
        ])  # fmt: skip

    async def _filter(self, request: Request) -> Response:
        try:
            pod, names, nodes = await _args(request)
            kept = await self._app.filter(pod, names)
        except MeshError as error:
            return _json({"Error": _words(error)})
        return _json(filter_result(kept, nodes))

    async def _prioritize(self, request: Request) -> Response:
        try:
            pod, names, _ = await _args(request)
            scores = self._app.prioritize(pod, names)
        except MeshError as error:
            status = 400 if isinstance(error, InvalidArgument) else 503
            return Response(_words(error), status_code=status, media_type="text/plain")
        return _json([{"Host": name, "Score": score} for name, score in scores.items()])


def filter_result(kept: Kept, nodes: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """ExtenderFilterResult; nodes: as they were given, None when names were."""
    failed: dict[str, str] = {}
    hopeless: dict[str, str] = {}
    for name, (objection, text) in kept.refused.items():
        (hopeless if objection in UNRESOLVABLE else failed)[name] = PREFIX + text
    result: dict[str, Any] = {"FailedNodes": failed, "FailedAndUnresolvableNodes": hopeless, "Error": ""}
    if nodes is None:
        return result | {"NodeNames": kept.names}
    wanted = set(kept.names)
    return result | {"Nodes": {"items": [node for node in nodes if node["metadata"]["name"] in wanted]}}


async def _args(request: Request) -> tuple[Mapping[str, Any], list[str], list[Mapping[str, Any]] | None]:
    """ExtenderArgs: the pod, names of nodes, and the nodes where they came whole. InvalidArgument names the field."""
    size = request.headers.get("content-length", "0")
    if size.isdigit() and int(size) > MOST_BYTES:
        raise _wrong("(body)", f"has {size} bytes, more than {MOST_BYTES}")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise _wrong("(body)", f"has more than {MOST_BYTES} bytes")
    try:
        args = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _wrong("(body)", f"is no JSON: {error}") from None
    pod = args.get("Pod") if isinstance(args, dict) else None
    if not isinstance(pod, dict):
        raise _wrong("Pod", "is missing")
    names, nodes = args.get("NodeNames"), args.get("Nodes")
    if names is not None:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _wrong("NodeNames", "is no list of names")
        return pod, names, None
    items = nodes.get("items") if isinstance(nodes, dict) else None
    if not isinstance(items, list):
        raise _wrong("NodeNames", "is missing, and Nodes, too")
    try:
        return pod, [str(node["metadata"]["name"]) for node in items], items
    except (KeyError, TypeError):
        raise _wrong("Nodes.items", "holds a node without a name") from None


def _wrong(path: str, reason: str) -> InvalidArgument:
    return InvalidArgument("these are no ExtenderArgs", reason="BAD_ARGS", violations=[Violation(path, reason)])


def _words(error: MeshError) -> str:
    told = "; ".join(f"{each.path}: {each.reason}" for each in error.violations)
    return f"{PREFIX}{error.message}" + (f" ({told})" if told else "")


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")
