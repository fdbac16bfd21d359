"""`/v2`: the Open Inference Protocol over HTTP."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from starlette.responses import JSONResponse

from recmesh.runtime.deadline import deadline
from recmesh.runtime.errors import InvalidArgument, Unavailable, Violation
from services.gateway.app.inference import Inference
from services.gateway.app.models import Models
from services.gateway.app.ports import Document
from services.gateway.rest import openapi, repository, shared_memory
from services.gateway.rest.calls import ClientGone, body_of, caller_of, closed, is_local, while_connected
from services.gateway.rest.encoding import packed, unpacked
from services.gateway.store.shared_memory import Access, SharedRegions, regions_for
from services.gateway.wire import oip_documents as documents
from services.gateway.wire import oip_json as wire

HEADER_SIZE = "Inference-Header-Content-Length"
HEADERS = (b"content-encoding", b"accept-encoding", HEADER_SIZE.lower().encode())
EXAMPLE: Document = {
    "id": "42",
    "inputs": [
        {"name": "origin", "shape": [2], "datatype": "INT64", "data": [11, 12]},
        {"name": "distance", "shape": [2], "datatype": "FP32", "data": [447.0, 1189.0]},
    ],
}
ROWS_EXAMPLE: Document = {"rows": [{"origin": "JFK", "distance": 2475.0}, {"origin": "SFO", "distance": None}]}

Name = Annotated[str, Path(description="The model's name", examples=["flights"], max_length=63)]
Version = Annotated[str, Path(description="Its version", examples=["1"], max_length=18)]


@dataclass(frozen=True, slots=True)
class InferLimits:
    """Bounds of a request over HTTP."""

    max_body_bytes: int
    """Unpacked."""
    max_infer_timeout_s: float = 300.0
    shared_memory: Access = "loopback"


def router(
    models: Models, inference: Inference, regions: SharedRegions, *, limits: InferLimits
) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v2", tags=["inference"])
    _server(routes, inference)
    _model(routes, inference)
    _infer(routes, models, regions, limits)
    repository.add(routes, models, inference)
    shared_memory.add(routes, regions, access=limits.shared_memory)
    return routes


def _server(routes: APIRouter, inference: Inference) -> None:
    @routes.get(
        "", operation_id="serverMetadata", summary="Name, version, extensions", responses=openapi.protocol_problems()
    )
    async def metadata() -> Document:
        """Who answers."""
        found = inference.server()
        return {"name": found.name, "version": found.version, "extensions": list(found.extensions)}

    @routes.get(
        "/health/live", operation_id="serverLive", summary="Does it answer", responses=openapi.protocol_problems()
    )
    async def live() -> Document:
        """The process answers."""
        return {"live": True}

    @routes.get(
        "/health/ready", operation_id="serverReady", summary="Can it serve", responses=openapi.protocol_problems()
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
        responses=openapi.protocol_problems(),
    )
    async def statistics(request: Request) -> Document:
        """Since the gateway's start."""
        sees = caller_of(request).sees
        found = await inference.statistics()
        return documents.statistics({key: item for key, item in found.items() if sees(key[0])})


def _model(routes: APIRouter, inference: Inference) -> None:
    async def metadata(name: Name, version: Version) -> Document:
        """Inputs and outputs, with datatype and shape; -1 is any size."""
        return documents.metadata(*await inference.metadata(name, version))

    async def ready(name: Name, version: Version) -> Document:
        """200 when a request would be run now."""
        if not await inference.model_ready(name, version):
            why = await inference.why_not_ready(name, version)
            raise Unavailable(f"model {name!r} does not serve now: {why}", reason="MODEL_NOT_READY")
        return {"name": name, "ready": True}

    async def statistics(name: Name, version: Version) -> Document:
        """Counts and times of one model."""
        return documents.statistics(await inference.statistics(name, version))

    async def config(name: Name, version: Version) -> Document:
        """Inputs, outputs and batching, in the words of Triton's model configuration."""
        return documents.config(*await inference.config(name, version))

    for suffix, handler, operation, summary in (
        ("", metadata, "modelMetadata", "What a model takes and gives"),
        ("/ready", ready, "modelReady", "Can a model serve"),
        ("/stats", statistics, "modelStatistics", "A model's statistics"),
        ("/config", config, "modelConfig", "A model's configuration"),
    ):
        for path, title in (("/models/{name}", ""), ("/models/{name}/versions/{version}", "OfVersion")):
            routes.add_api_route(
                path + suffix, _bound(handler, versioned=bool(title)), methods=["GET"],
                operation_id=operation + title, summary=summary, responses=openapi.protocol_problems(404),
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


def _infer(routes: APIRouter, models: Models, regions: SharedRegions, limits: InferLimits) -> None:
    async def run(name: str, version: str, request: Request, *, rows: bool = False) -> Response:
        with deadline(limits.max_infer_timeout_s):
            headers: dict[bytes, bytes] = dict(request.scope["headers"])
            encoding, accepted, size = (headers.get(each, b"").decode("latin-1") for each in HEADERS)
            body = await unpacked(await body_of(request), encoding, limit=limits.max_body_bytes)
            memory = regions_for(regions, limits.shared_memory, local=is_local(request))
            if rows:
                asked = wire.predict_request(name, version, body)
            else:
                asked = wire.infer_request(
                    name, version, body, header_bytes=_size(size), memory=memory
                )
            try:
                answered = await while_connected(request, models.infer(asked))
            except ClientGone:
                return closed()
            encoded, header_bytes = wire.infer_response(asked, answered, memory=memory)
            content, extra = await packed(encoded, accepted)
            if header_bytes is None:
                return Response(content, media_type="application/json", headers=extra)
            extra[HEADER_SIZE] = str(header_bytes)
            return Response(content, media_type="application/octet-stream", headers=extra)

    description = (
        "Tensors are lists, nested as the shape or flat, or binary data after the JSON (`binary_data_size` "
        f"and the header {HEADER_SIZE}), or in registered shared memory. Bodies may be gzip or deflate. "
        "Parameters: `timeout` in microseconds, `priority` (1 goes first), `binary_data_output`; `raw`: the inputs "
        "are raw columns (`raw_inputs` of the model's metadata)."
    )
    extra = openapi.documents(EXAMPLE, about="An inference request.", yaml=False)
    extra["parameters"] = [openapi.header(HEADER_SIZE, "Size of the JSON when binary data follow")]
    problems = openapi.protocol_problems(400, 404, 409, 413, 415, 429, 504)

    @routes.post(
        "/models/{name}/infer", operation_id="infer", summary="Run a model", description=description,
        responses=problems, openapi_extra=extra, response_class=JSONResponse, response_model=None,
    )  # fmt: skip
    async def infer(name: Name, request: Request) -> Response:
        return await run(name, "", request)

    @routes.post(
        "/models/{name}/versions/{version}/infer", operation_id="inferVersion",
        summary="Run a version of a model", description=description, responses=problems, openapi_extra=extra,
        response_class=JSONResponse, response_model=None,
    )  # fmt: skip
    async def infer_version(name: Name, version: Version, request: Request) -> Response:
        return await run(name, version, request)

    about = (
        "`rows` holds objects of raw columns, as the model's data had them before training's own transform; "
        "`raw_inputs` of the model's metadata names them. The answer is that of an inference."
    )
    rows_extra = openapi.documents(ROWS_EXAMPLE, about="Rows of raw columns.", yaml=False)

    @routes.post(
        "/models/{name}/predict", operation_id="predict", summary="Run a model on raw columns", description=about,
        responses=problems, openapi_extra=rows_extra, response_class=JSONResponse, response_model=None,
    )  # fmt: skip
    async def predict(name: Name, request: Request) -> Response:
        return await run(name, "", request, rows=True)

    @routes.post(
        "/models/{name}/versions/{version}/predict", operation_id="predictVersion",
        summary="Run a version of a model on raw columns", description=about, responses=problems,
        openapi_extra=rows_extra, response_class=JSONResponse, response_model=None,
    )  # fmt: skip
    async def predict_version(name: Name, version: Version, request: Request) -> Response:
        return await run(name, version, request, rows=True)


def _size(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 13):
        raise InvalidArgument(
            f"the header {HEADER_SIZE} is not a number of bytes", reason="BAD_REQUEST",
            violations=[Violation(f"header.{HEADER_SIZE.lower()}", f"{text!r} is not a whole number")],
        )  # fmt: skip
    return int(text)
