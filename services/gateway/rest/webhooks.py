"""`/v1/webhooks`: events by HTTP, for those who have no NATS."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from services.gateway.app.ports import Document
from services.gateway.app.webhooks import Change, Wanted, Webhooks
from services.gateway.rest import openapi
from services.gateway.rest.bodies import read_model
from services.gateway.rest.calls import caller_of

Name = Annotated[str, Path(description="The webhook's name", examples=["ci"], max_length=63)]
SECRET = "whsec_ and 24 to 64 bytes in Base64; empty: one is made"


class WebhookBody(BaseModel):
    """Where events go, and which."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(examples=["ci"])
    url: str = Field(examples=["https://ci.example/recmesh"])
    types: list[str] = Field(examples=[["job.transitioned", "model.*"]])
    """Types of events, or patterns as in a shell (docs/asyncapi.yaml has all types)."""
    namespaces: list[str] = []
    """Only of models in these, and of jobs that export to them."""
    jobs: list[str] = []
    """Only of these jobs, by id."""
    mode: Literal["structured", "binary"] = "structured"
    """Structured: the body is the whole event, and all of it is signed. Binary: attributes are headers, unsigned."""
    description: str = Field(default="", max_length=500)
    secret: str = Field(default="", description=SECRET)


class ChangeBody(BaseModel):
    """What is to be another; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    url: str | None = Field(default=None, examples=["https://ci.example/recmesh"])
    types: list[str] | None = Field(default=None, examples=[["job.*"]])
    namespaces: list[str] | None = None
    jobs: list[str] | None = None
    mode: Literal["structured", "binary"] | None = None
    description: str | None = Field(default=None, max_length=500)
    resume: bool = False
    """Of one that was stopped by its receiver: go on, from where it was."""


class RetryBody(BaseModel):
    """Which dead letters."""

    model_config = ConfigDict(extra="forbid")

    ids: list[str] = []
    """Of events; empty: all, 100 at once."""


class RotateBody(BaseModel):
    """Another secret."""

    model_config = ConfigDict(extra="forbid")

    secret: str = Field(default="", description=SECRET)


def router(webhooks: Webhooks) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])

    @routes.post(
        "", status_code=201, operation_id="createWebhook", summary="Send events to an address",
        responses=openapi.problems(400, 403, 409, 429), openapi_extra=openapi.body(WebhookBody),
    )  # fmt: skip
    async def create(request: Request, response: Response) -> Document:
        """From now on. The answer alone has the secret; it is shown by no other call."""
        given: dict[str, Any] = (await read_model(request, WebhookBody)).model_dump()
        for key in ("types", "namespaces", "jobs"):
            given[key] = tuple(given[key])
        hook, secret = await webhooks.create(Wanted(**given), caller_of(request))
        response.headers["Location"] = f"/v1/webhooks/{hook.name}"
        response.headers["Cache-Control"] = "no-store"
        return {**hook.document(), "secret": secret}

    @routes.get("", operation_id="listWebhooks", summary="All webhooks", responses=openapi.problems())
    async def list_webhooks(request: Request) -> Document:
        """By name, with how their deliveries go."""
        return {"webhooks": await webhooks.list(caller_of(request))}

    @routes.get("/{name}", operation_id="getWebhook", summary="One webhook", responses=openapi.problems(404))
    async def get(name: Name, request: Request) -> Document:
        """With how its deliveries go."""
        return await webhooks.get(name, caller_of(request))

    @routes.patch(
        "/{name}", operation_id="changeWebhook", summary="Change a webhook",
        responses=openapi.problems(400, 403, 404), openapi_extra=openapi.body(ChangeBody),
    )  # fmt: skip
    async def change(name: Name, request: Request) -> Document:
        """It goes on from where it is, by the new wishes."""
        given: dict[str, Any] = (await read_model(request, ChangeBody)).model_dump()
        for key in ("types", "namespaces", "jobs"):
            given[key] = None if given[key] is None else tuple(given[key])
        return (await webhooks.change(name, Change(**given), caller_of(request))).document()

    @routes.delete(
        "/{name}", status_code=204, operation_id="deleteWebhook", summary="Send nothing more",
        responses=openapi.problems(404),
    )  # fmt: skip
    async def delete(name: Name, request: Request) -> None:
        """What waits for it is not sent."""
        await webhooks.delete(name, caller_of(request))

    @routes.post(
        "/{name}:test", operation_id="testWebhook", summary="Send one event to try a webhook out",
        responses=openapi.problems(404),
    )  # fmt: skip
    async def test(name: Name, request: Request) -> Document:
        """`webhook.tested`, once, signed as all else; the answer tells what came of it."""
        answer = await webhooks.test(name, caller_of(request))
        return {
            "taken": answer.is_taken, "status": answer.status, "answer": str(answer), "seconds": answer.seconds,
        }  # fmt: skip

    @routes.post(
        "/{name}:rotate", operation_id="rotateWebhookSecret", summary="Give a webhook another secret",
        responses=openapi.problems(400, 404), openapi_extra=openapi.body(RotateBody, required=False),
    )  # fmt: skip
    async def rotate(name: Name, request: Request, response: Response) -> Document:
        """For a day requests are signed by the one before, too."""
        given = await read_model(request, RotateBody)
        hook, secret = await webhooks.rotate(name, given.secret, caller_of(request))
        response.headers["Cache-Control"] = "no-store"
        return {**hook.document(), "secret": secret}

    @routes.post(
        "/{name}:retry", operation_id="retryDeadLetters", summary="Send events again that were given up",
        responses=openapi.problems(400, 404), openapi_extra=openapi.body(RetryBody, required=False),
    )  # fmt: skip
    async def retry(name: Name, request: Request) -> Document:
        """Oldest first, with the ids that they had, until one is not taken; what is taken is a dead letter no more."""
        given = await read_model(request, RetryBody)
        found = await webhooks.retry(name, given.ids, caller_of(request))
        return {"taken": list(found.taken), "left": found.left, "answer": found.answer, "failed": found.failed}

    @routes.get(
        "/{name}/dead", operation_id="listDeadLetters", summary="Events that were given up",
        responses=openapi.problems(404),
    )  # fmt: skip
    async def dead(
        name: Name, request: Request,
        limit: Annotated[int, Query(ge=1, le=1000, description="The newest so many")] = 100,
    ) -> Document:
        """Oldest first, each with the reason; kept for 30 days."""
        return {"events": list(await webhooks.dead_letters(name, limit, caller_of(request)))}

    return routes
