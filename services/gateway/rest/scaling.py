"""/v1/models/{name}/scaling: processes of a model, what was decided about them, and why."""

from typing import Annotated

from fastapi import APIRouter, Path

from services.gateway.app.models import Models
from services.gateway.app.ports import Document
from services.gateway.app.scaling import Scaling
from services.gateway.rest import openapi

NEWEST = 20
Name = Annotated[str, Path(description="The model's name")]


def router(models: Models, scaling: Scaling) -> APIRouter:
    """The route."""
    routes = APIRouter(prefix="/v1/models", tags=["models"])

    @routes.get(
        "/{name}/scaling", operation_id="getScaling", summary="Processes of a model, and why there are so many",
        responses=openapi.problems(404),
    )  # fmt: skip
    async def get(name: Name) -> Document:
        """The newest looks and changes, newest first; none of a model without `serving.scaling`."""
        await models.get(name)
        changes = [each for each in reversed(scaling.changes) if each.model == name]
        return {
            "looks": [look.document() for look in reversed(scaling.looks(name)[-NEWEST:])],
            "changes": [
                {
                    "at": each.at, "kind": each.kind, "before": each.before, "after": each.after,
                    "reason": each.reason, "why": each.why, "way": each.way, "took_s": each.took_s,
                    "trouble": each.trouble,
                }
                for each in changes[:NEWEST]
            ],
        }  # fmt: skip

    return routes
