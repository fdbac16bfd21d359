"""`/v2/repository`: which models there are, and which serve."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel

from recmesh.runtime.errors import NotFound
from services.gateway.app.inference import Inference
from services.gateway.app.models import Models
from services.gateway.app.ports import Document
from services.gateway.rest import openapi
from services.gateway.rest.bodies import read_model
from services.gateway.rest.calls import caller_of
from services.gateway.wire import repository as documents

Name = Annotated[str, Path(description="The model's name", examples=["flights"], max_length=63)]


class IndexBody(BaseModel):
    """What the repository index should hold."""

    ready: bool = False
    """Only versions that serve."""


class RepositoryBody(BaseModel):
    """Parameters of a load or unload."""

    parameters: dict[str, Any] = {}
    """`version`: which one; unload also `unload_dependents`: an ensemble's models, too."""


def add(routes: APIRouter, models: Models, inference: Inference) -> None:
    """The routes under /v2/repository."""

    @routes.post(
        "/repository/index", operation_id="repositoryIndex", summary="All model versions",
        responses=openapi.protocol_problems(),
        openapi_extra=openapi.body(IndexBody, required=False),
    )  # fmt: skip
    async def index(request: Request) -> list[Document]:
        """With state and reason."""
        given = await read_model(request, IndexBody)
        sees = caller_of(request).sees
        found = [item for item in await inference.index(only_ready=given.ready) if sees(item.name)]
        return [
            {"name": item.name, "version": item.version, "state": item.state, "reason": item.reason}
            for item in found
        ]

    @routes.post(
        "/repository/models/{name}/load", operation_id="repositoryLoad", summary="Load a model",
        responses=openapi.protocol_problems(400, 404, 409), openapi_extra=openapi.body(RepositoryBody, required=False),
    )  # fmt: skip
    async def load(name: Name, request: Request) -> Document:
        """Answers when it serves."""
        given = await read_model(request, RepositoryBody)
        await models.load(name, documents.load_version(given.parameters))
        return {}

    @routes.post(
        "/repository/models/{name}/unload", operation_id="repositoryUnload", summary="Unload a model",
        responses=openapi.protocol_problems(404), openapi_extra=openapi.body(RepositoryBody, required=False),
    )  # fmt: skip
    async def unload(name: Name, request: Request) -> Document:
        """Requests in flight are answered."""
        given = await read_model(request, RepositoryBody)
        version, dependents = documents.unload_choice(given.parameters)
        await inference.unload(name, version, dependents=dependents, caller=caller_of(request))
        return {}

    @routes.get("/repository/{rest:path}", include_in_schema=False)
    async def nothing(rest: str) -> None:
        raise NotFound(f"there is no GET /v2/repository/{rest}", reason="NO_ROUTE")
