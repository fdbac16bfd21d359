"""`/v1/datasets`: named datasets, by shardsvc; which jobs use one, by jobmaster.

Keys with namespaces reach datasets of these alone (`NAMESPACE--NAME`), as they reach models.
"""

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, NotFound, Violation
from services.gateway.app.ports import Document
from services.gateway.peers.data import DataPeer
from services.gateway.peers.jobs import JobsPeer
from services.gateway.rest import openapi
from services.gateway.rest.bodies import as_json, read_document
from services.gateway.rest.calls import caller_of

EXAMPLE: Document = {
    "source": {"files": ["data/flights-*.parquet"]},
    "label": "delayed",
    "features": [{"name": "origin", "kind": "single"}, {"name": "distance", "kind": "dense"}],
}


class DatasetBody(BaseModel):
    """A dataset and its name."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(examples=["flights"])
    dataset: dict[str, Any] = Field(examples=[EXAMPLE])


def router(data: DataPeer, jobs: JobsPeer) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["datasets"])

    @routes.post(
        "/v1/datasets", status_code=201, operation_id="registerDataset", summary="Give a dataset a name",
        responses=openapi.problems(400, 403, 409),
        openapi_extra=openapi.documents({"name": "flights", "dataset": EXAMPLE}, about="Name and spec."),
    )  # fmt: skip
    async def register(request: Request, response: Response) -> Document:
        """An equal specification changes nothing; a different one is a new revision."""
        name, dataset = _named(await read_document(request))
        caller_of(request).check_dataset(name)
        registered = await data.register(name, as_json(dataset))
        response.headers["Location"] = f"/v1/datasets/{quote(name, safe='')}"
        return registered

    @routes.get(
        "/v1/datasets", operation_id="listDatasets", summary="All datasets", responses=openapi.problems()
    )
    async def list_datasets(request: Request) -> Document:
        """With their newest revisions; those that the caller reaches."""
        found, caller = await data.list(), caller_of(request)
        return found | {"datasets": [each for each in found["datasets"] if caller.reaches_dataset(each["name"])]}

    @routes.get(
        "/v1/datasets/{name}",
        operation_id="getDataset",
        summary="One dataset",
        responses=openapi.problems(403, 404),
    )
    async def get(name: Annotated[str, Path(max_length=63)], request: Request) -> Document:
        """Its newest revision."""
        caller_of(request).check_dataset(name)
        return await data.get(name)

    @routes.delete(
        "/v1/datasets/{name}", status_code=204, operation_id="removeDataset", summary="Forget a dataset's name",
        responses=openapi.problems(403, 404, 409),
    )  # fmt: skip
    async def remove(
        name: Annotated[str, Path(max_length=63)],
        request: Request,
        force: Annotated[bool, Query(description="Though jobs use it: they go on with what they have of it")] = False,
    ) -> None:
        """Its files stay. While a job that has not ended trains on it, it is refused."""
        caller_of(request).check_dataset(name)
        users = [] if force else await jobs.using(name)
        if users:
            told = ", ".join(users[:10]) + (f" and {len(users) - 10} more" if len(users) > 10 else "")
            raise FailedPrecondition(f"dataset {name!r} is used by jobs that have not ended: {told}", reason="IN_USE")
        if not await data.remove(name):
            raise NotFound(f"there is no dataset {name!r}", reason="UNKNOWN_DATASET")

    @routes.post(
        "/v1/datasets:inspect", operation_id="inspectDataset", summary="Check a dataset",
        responses=openapi.problems(400),
        openapi_extra=openapi.documents(EXAMPLE, about="A DatasetSpec."),
    )  # fmt: skip
    async def inspect(request: Request) -> Document:
        """Opens its files and answers with columns and counts; creates nothing."""
        document = await read_document(request)
        if isinstance(document, dict) and set(document) <= {"name", "dataset"} and "dataset" in document:
            document = document["dataset"]
        return await data.inspect(as_json(document))

    return routes


def _named(document: Any) -> tuple[str, Any]:
    if not isinstance(document, dict):
        document = {}
    wrong = [Violation(key, "is missing") for key in ("name", "dataset") if key not in document]
    wrong += [Violation(key, "there is no such field") for key in document if key not in ("name", "dataset")]
    if not wrong and not isinstance(document["name"], str):
        wrong.append(Violation("name", "is not a string"))
    if wrong:
        raise InvalidArgument(
            "a dataset is given as name and dataset", reason="INVALID_REQUEST", violations=wrong
        )
    return document["name"], document["dataset"]
