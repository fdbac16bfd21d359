"""`/v2`: the Open Inference Protocol over HTTP."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Request, Response
from pydantic import BaseModel
from starlette.responses import JSONResponse

from recmesh.runtime.errors import InvalidArgument, NotFound, Unavailable, Violation
from services.gateway.app.inference import Inference
from services.gateway.app.models import Models
from services.gateway.app.ports import Document
from services.gateway.rest import openapi
from services.gateway.rest.bodies import read_model
from services.gateway.wire import oip_json as wire

HEADER_SIZE = "Inference-Header-Content-Length"
EXAMPLE: Document = {
    "id": "42",
    "inputs": [
        {"name": "origin", "shape": [2], "datatype": "INT64", "data": [11, 12]},
        {"name": "distance", "shape": [2], "datatype": "FP32", "data": [447.0, 1189.0]},
    ],
}

Name = Annotated[str, Path(description="The model's name", examples=["flights"], max_length=63)]
Version = Annotated[str, Path(description="Its version", examples=["1"], max_length=18)]


class IndexBody(BaseModel):
    """What the repository index should hold."""

    ready: bool = False
    """Only versions that serve."""


class RepositoryBody(BaseModel):
    """Parameters of a load or unload."""

    parameters: dict[str, Any] = {}
    """`version`: which one."""


def router(models: Models, inference: Inference) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v2", tags=["inference"])
    _server(routes, inference)
    _model(routes, inference)
    _infer(routes, models)
    _repository(routes, models, inference)
    return routes


def _server(routes: APIRouter, inference: Inference) -> None:
    @routes.get(
        "", operation_id="serverMetadata", summary="Name, version, extensions", responses=openapi.problems()
    )
    async def metadata() -> Document:
        """Who answers."""
        found = inference.server()
        return {"name": found.name, "version": found.version, "extensions": list(found.extensions)}

    @routes.get(
        "/health/live", operation_id="serverLive", summary="Does it answer", responses=openapi.problems()
    )
    async def live() -> Document:
        """The process answers."""
        return {"live": True}

    @routes.get(
        "/health/ready", operation_id="serverReady", summary="Can it serve", responses=openapi.problems()
    )
    async def ready() -> Document:
        """What served before a restart serves again, or has failed; 503 until then."""
        if not inference.ready:
            raise Unavailable("models are being loaded again after a restart", reason="NOT_READY")
        return {"ready": True}

    @routes.get(
        "/models/stats",
        operation_id="allStatistics",
        summary="Statistics of all models",
        responses=openapi.problems(),
    )
    async def statistics() -> Document:
        """Since the gateway's start."""
        return wire.statistics(await inference.statistics())


def _model(routes: APIRouter, inference: Inference) -> None:
    async def metadata(name: Name, version: Version) -> Document:
        """Inputs and outputs, with datatype and shape; -1 is any size."""
        return wire.metadata(*await inference.metadata(name, version))

    async def ready(name: Name, version: Version) -> Document:
        """200 when a request would be run now."""
        if not await inference.model_ready(name, version):
            raise Unavailable(f"model {name!r} does not serve now", reason="MODEL_NOT_READY")
        return {"name": name, "ready": True}

    async def statistics(name: Name, version: Version) -> Document:
        """Counts and times of one model."""
        return wire.statistics(await inference.statistics(name, version))

    for suffix, handler, operation, summary in (
        ("", metadata, "modelMetadata", "What a model takes and gives"),
        ("/ready", ready, "modelReady", "Can a model serve"),
        ("/stats", statistics, "modelStatistics", "A model's statistics"),
    ):
        for path, title in (("/models/{name}", ""), ("/models/{name}/versions/{version}", "OfVersion")):
            routes.add_api_route(
                path + suffix, _bound(handler, versioned=bool(title)), methods=["GET"],
                operation_id=operation + title, summary=summary, responses=openapi.problems(404),
            )  # fmt: skip


def _bound(handler: Any, *, versioned: bool) -> Any:
    """FastAPI reads path parameters from the signature, so the route without a version needs its own."""
    if versioned:
        return handler

    async def newest(name: Name) -> Document:
        found: Document = await handler(name, "")
        return found

    newest.__doc__ = handler.__doc__
    return newest


def _infer(routes: APIRouter, models: Models) -> None:
    async def run(name: str, version: str, request: Request, header_size: str) -> Response:
        if request.headers.get("content-encoding", "identity") != "identity":
            raise InvalidArgument("compressed requests are not read here", reason="UNSUPPORTED_MEDIA_TYPE")
        body = await request.body()
        asked = wire.infer_request(name, version, body, header_bytes=_size(header_size))
        answered = await models.infer(asked)
        encoded, header_bytes = wire.infer_response(asked, answered)
        if header_bytes is None:
            return Response(encoded, media_type="application/json")
        headers = {HEADER_SIZE: str(header_bytes)}
        return Response(encoded, media_type="application/octet-stream", headers=headers)

    description = (
        "Tensors are lists, nested as the shape or flat, or binary data after the JSON (`binary_data_size` "
        f"and the header {HEADER_SIZE}). Parameters: `timeout` in microseconds, `priority` (1 goes first), "
        "`binary_data_output`."
    )
    extra = openapi.documents(EXAMPLE, about="An inference request.")
    problems = openapi.problems(400, 404, 409, 413, 429, 504)

    @routes.post(
        "/models/{name}/infer", operation_id="infer", summary="Run a model", description=description,
        responses=problems, openapi_extra=extra, response_class=JSONResponse, response_model=None,
    )  # fmt: skip
    async def infer(
        name: Name, request: Request, inference_header_content_length: Annotated[str, Header()] = ""
    ) -> Response:
        return await run(name, "", request, inference_header_content_length)

    @routes.post(
        "/models/{name}/versions/{version}/infer", operation_id="inferVersion",
        summary="Run a version of a model",
        description=description, responses=problems, openapi_extra=extra, response_class=JSONResponse,
        response_model=None,
    )  # fmt: skip
    async def infer_version(
        name: Name,
        version: Version,
        request: Request,
        inference_header_content_length: Annotated[str, Header()] = "",
    ) -> Response:
        return await run(name, version, request, inference_header_content_length)


def _repository(routes: APIRouter, models: Models, inference: Inference) -> None:
    @routes.post(
        "/repository/index", operation_id="repositoryIndex", summary="All model versions",
        responses=openapi.problems(),
        openapi_extra=openapi.body(IndexBody, required=False),
    )  # fmt: skip
    async def index(request: Request) -> list[Document]:
        """With state and reason."""
        given = await read_model(request, IndexBody)
        found = await inference.index(only_ready=given.ready)
        return [
            {"name": item.name, "version": item.version, "state": item.state, "reason": item.reason}
            for item in found
        ]

    @routes.post(
        "/repository/models/{name}/load", operation_id="repositoryLoad", summary="Load a model",
        responses=openapi.problems(400, 404, 409), openapi_extra=openapi.body(RepositoryBody, required=False),
    )  # fmt: skip
    async def load(name: Name, request: Request) -> Document:
        """Answers when it serves."""
        given = await read_model(request, RepositoryBody)
        await models.load(name, str(given.parameters.get("version", "")))
        return {}

    @routes.post(
        "/repository/models/{name}/unload", operation_id="repositoryUnload", summary="Unload a model",
        responses=openapi.problems(404), openapi_extra=openapi.body(RepositoryBody, required=False),
    )  # fmt: skip
    async def unload(name: Name, request: Request) -> Document:
        """Requests in flight are answered."""
        given = await read_model(request, RepositoryBody)
        await models.unload(name, str(given.parameters.get("version", "")))
        return {}

    @routes.get("/repository/{rest:path}", include_in_schema=False)
    async def nothing(rest: str) -> None:
        raise NotFound(f"there is no GET /v2/repository/{rest}", reason="NO_ROUTE")


def _size(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 13):
        raise InvalidArgument(
            f"the header {HEADER_SIZE} is not a number of bytes", reason="BAD_REQUEST",
            violations=[Violation(f"header.{HEADER_SIZE.lower()}", f"{text!r} is not a whole number")],
        )  # fmt: skip
    return int(text)
