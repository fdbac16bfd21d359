"""`/v1/models`: the model registry."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from services.gateway.app.freshness import Freshness
from services.gateway.app.models import Models
from services.gateway.app.ports import Document
from services.gateway.domain import traffic as rules
from services.gateway.domain.models import Registration
from services.gateway.rest import openapi
from services.gateway.rest.bodies import read_model, read_object
from services.gateway.rest.calls import caller_of
from services.gateway.wire.registry import document

Version = Annotated[str, Query(description="Which version of the model; else the one that serves")]
Name = Annotated[str, Path(description="The model's name", examples=["flights"], max_length=63)]


class RegisterBody(BaseModel):
    """A model version to be registered."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(examples=["flights"])
    version: str = Field(default="", examples=["2"])
    """A number above all before it; empty: the next."""
    uri: str = Field(examples=["models/flights/2"])
    """The exported folder, in the mesh's storage: absolute, or below its root."""
    framework: str = Field(default="", examples=["torch"])
    """`tensorflow`, `torch` or `ensemble`; empty: as its files say."""
    job_id: str = ""
    snapshot: int = Field(default=0, ge=0)
    metrics: dict[str, float] = {}
    request_id: str = ""
    load: bool = True
    """Serve it as soon as it is loaded."""
    serving: dict[str, Any] = {}
    """How it is served (docs/reference/serving.md); goes before `serving` of its `model.json`, name by name."""


class Latest(BaseModel):
    """The versions loaded last."""

    latest: int = Field(ge=1, le=rules.MAX_LATEST)


class Specific(BaseModel):
    """These versions and no others."""

    specific: list[str]


class ShadowBody(BaseModel):
    """Who gets copies of requests."""

    version: str
    share: float = Field(default=1.0, gt=0, le=1)


class TrafficBody(BaseModel):
    """By what rules versions of a model stay loaded, and requests choose one."""

    versions: Latest | Specific | Literal["all"] = Latest(latest=1)
    weights: dict[str, float] = Field(default={}, examples=[{"1": 90, "2": 10}])
    """Shares of requests that name no version, among versions that are ready."""
    shadow: ShadowBody | None = None
    idle_s: float = Field(default=0, ge=0)
    """A version asked nothing for so long leaves memory until it is asked again; 0: never."""


class RollbackBody(BaseModel):
    """Which version of rows and weights is to serve."""

    model_config = ConfigDict(extra="forbid")

    fresh_version: int = Field(gt=0, examples=[41])
    """One of `versions` of the model's freshness."""


def router(models: Models, freshness: Freshness) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    @routes.post(
        "", status_code=201, operation_id="registerModel", summary="Register a model version",
        responses=openapi.problems(400, 404, 409), openapi_extra=openapi.body(RegisterBody),
    )  # fmt: skip
    async def register(request: Request, response: Response) -> Document:
        """Idempotent by `request_id`. Loading goes on after the answer."""
        given = await read_model(request, RegisterBody)
        record = await models.register(Registration(**given.model_dump()), caller=caller_of(request))
        response.headers["Location"] = f"/v1/models/{record.name}"
        return document(record)

    @routes.get(
        "", operation_id="listModels", summary="All versions of all models", responses=openapi.problems()
    )
    async def list_models(request: Request) -> Document:
        """By name, then version."""
        sees = caller_of(request).sees
        return {"models": [document(item) for item in await models.versions() if sees(item.name)]}

    @routes.get("/{name}", operation_id="getModel", summary="One model", responses=openapi.problems(404))
    async def get(
        name: Name,
        version: Annotated[str, Query(description="Which; else the one that serves, or the newest")] = "",
    ) -> Document:
        """The version with all versions of that name beside it."""
        record = await models.get(name, version)
        return {**document(record), "versions": [document(item) for item in await models.versions(name)]}

    @routes.delete(
        "/{name}", status_code=204, operation_id="unregisterModel", summary="Forget a model",
        responses=openapi.problems(404),
    )  # fmt: skip
    async def unregister(
        name: Name, version: Annotated[str, Query(description="Only this one; else all")] = ""
    ) -> None:
        """Unloads it first; its files stay."""
        await models.unregister(name, version)

    @routes.post(
        "/{name}:load",
        operation_id="loadModel",
        summary="Serve a version",
        responses=openapi.problems(400, 404, 409),
    )
    async def load(
        name: Name, version: Annotated[str, Query(description="Which; else the newest")] = ""
    ) -> Document:
        """Answers when it serves. The version before it serves until then."""
        return document(await models.load(name, version))

    @routes.post(
        "/{name}:unload",
        operation_id="unloadModel",
        summary="Serve a model no more",
        responses=openapi.problems(404),
    )
    async def unload(
        name: Name, version: Annotated[str, Query(description="Only if it is this one")] = ""
    ) -> Document:
        """Requests in flight are answered."""
        return {"models": [document(item) for item in await models.unload(name, version)]}

    @routes.get(
        "/{name}/traffic", operation_id="getTraffic", summary="By what rules a model's versions serve",
        responses=openapi.problems(404),
    )  # fmt: skip
    async def traffic(name: Name) -> Document:
        """Which versions stay loaded, their weights, the shadow, and when they rest."""
        return rules.as_document(await models.traffic(name))

    @routes.put(
        "/{name}/traffic", operation_id="setTraffic", summary="Set the rules of a model's versions",
        responses=openapi.problems(400, 404), openapi_extra=openapi.body(TrafficBody),
    )  # fmt: skip
    async def set_traffic(name: Name, request: Request) -> Document:
        """All rules at once: what is left out has its default. Versions named here are loaded after the answer."""
        wanted = rules.parse(await read_object(request))
        return rules.as_document(await models.set_traffic(name, wanted))

    @routes.get(
        "/{name}/freshness", operation_id="getFreshness", summary="How fresh a model is that follows its job",
        responses=openapi.problems(404, 409),
    )  # fmt: skip
    async def fresh(name: Name, version: Version = "") -> Document:
        """Which version of rows and weights serves, how far behind it was, and which tier answered how many ids."""
        return await freshness.status(name, version)

    @routes.post(
        "/{name}/rollback", operation_id="rollbackModel", summary="Serve an earlier version of rows and weights",
        responses=openapi.problems(400, 404, 409), openapi_extra=openapi.body(RollbackBody),
    )  # fmt: skip
    async def rollback(name: Name, request: Request, version: Version = "") -> Document:
        """Answers when it serves. No later version is applied until the model is told to resume."""
        given = await read_model(request, RollbackBody)
        return await freshness.roll_back(name, given.fresh_version, version=version)

    @routes.post(
        "/{name}/resume", operation_id="resumeModel", summary="Follow the job again after a rollback",
        responses=openapi.problems(404, 409),
    )  # fmt: skip
    async def resume(name: Name, version: Version = "") -> Document:
        """Answers when the newest version serves."""
        return await freshness.resume(name, version=version)

    return routes
