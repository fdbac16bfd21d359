"""`/v1/labels`: what became of samples that were predicted."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field

from services.gateway.app.labels import Labels
from services.gateway.app.ports import Document
from services.gateway.domain.predictions import MAX_LABELS
from services.gateway.rest import openapi
from services.gateway.rest.bodies import read_model
from services.gateway.rest.calls import caller_of

EXAMPLE = [{"id": "r-4711", "value": 1}, {"id": "r-4712/0", "value": 0, "time": 1790000000.5}]


class LabelsBody(BaseModel):
    """Labels of samples, by their ids."""

    model_config = ConfigDict(extra="forbid")

    topic: str = Field(default="labels", max_length=200)
    """Where the label join finds them."""
    labels: list[Any] = Field(examples=[EXAMPLE])
    """`id`; `value`, a number (1); `time`, Unix seconds of the event (now)."""


def router(labels: Labels) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1/labels", tags=["labels"])

    @routes.post(
        "", operation_id="postLabels", summary="Say what became of samples",
        description=f"At most {MAX_LABELS} at once. Answers when all are stored; `known` of them were before. "
        "A label that is posted again changes "
        "nothing: the label join takes one of a sample.",
        responses=openapi.problems(400, 404, 413, 504), openapi_extra=openapi.body(LabelsBody),
    )  # fmt: skip
    async def post(request: Request) -> Document:
        given = await read_model(request, LabelsBody)
        known = await labels.post(given.topic, given.labels, caller=caller_of(request))
        return {"labels": len(given.labels), "known": known}

    return routes
