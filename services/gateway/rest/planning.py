"""`/v1/forecasts`, `/v1/rates`, `/v1/plans`, `/v1/mesh`: what forecaster and brain say, and how the services are."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from services.gateway.app.ports import Document
from services.gateway.peers.data import PlanningPeer
from services.gateway.peers.jobs import JobsPeer
from services.gateway.peers.mesh import Mesh
from services.gateway.rest import openapi
from services.gateway.rest.bodies import read_model
from services.gateway.rest.calls import caller_of
from services.gateway.rest.jobs import check_job

MAX_POINTS = 10_000
"""Of one request."""


class RatePoint(BaseModel):
    """Of one step."""

    model_config = ConfigDict(extra="forbid")

    at: float = Field(description="Unix seconds of the step's begin, or of a counter's look", examples=[1790000000])
    value: float = Field(description="Per second, or what the counter showed", examples=[41.5])


class RatesBody(BaseModel):
    """Rates of a series."""

    model_config = ConfigDict(extra="forbid")

    step_s: float = Field(description="Seconds of a step", examples=[60])
    points: list[RatePoint] = Field(min_length=1, max_length=MAX_POINTS)
    counter: bool = Field(False, description="The values are what a counter showed")


def router(
    planning: PlanningPeer, mesh: Mesh, jobs: JobsPeer, *, dashboards: Mapping[str, str], version: str
) -> APIRouter:
    """The routes."""
    routes = APIRouter(prefix="/v1")

    @routes.get(
        "/forecasts", tags=["planning"], operation_id="listSeries", summary="Series of rates",
        responses=openapi.problems(),
    )  # fmt: skip
    async def series(
        prefix: Annotated[str, Query(examples=["model/"])] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Document:
        """Those that forecaster has heard of."""
        return await planning.series(prefix=prefix, limit=limit)

    @routes.get(
        "/forecasts/{series:path}", tags=["planning"], operation_id="forecast",
        summary="What is expected of a series",
        responses=openapi.problems(400, 404),
    )  # fmt: skip
    async def forecast(
        series: Annotated[str, Path(examples=["model/flights"], max_length=200)],
        horizon: Annotated[int, Query(ge=1, le=10_000, description="Steps ahead")] = 24,
        step_s: Annotated[float, Query(ge=0, description="Seconds of a step; 0: as measured")] = 0,
        level: Annotated[float, Query(ge=0.5, le=0.999, description="Of the interval")] = 0.8,
        season_s: Annotated[float, Query(ge=0, description="Seconds of a season; 0: found")] = 0,
    ) -> Document:
        """Mean and interval of each step; of a watched series also how wrong forecasts were before, by lead."""
        return await planning.forecast(series, horizon=horizon, step_s=step_s, level=level, season_s=season_s)

    @routes.get(
        "/rates/{series:path}", tags=["planning"], operation_id="rates", summary="What was measured of a series",
        responses=openapi.problems(400, 404),
    )  # fmt: skip
    async def rates(
        series: Annotated[str, Path(examples=["model/flights"], max_length=200)],
        since: Annotated[float, Query(ge=0, description="Unix seconds")] = 0,
        until: Annotated[float, Query(ge=0, description="Unix seconds; 0: now")] = 0,
        step_s: Annotated[float, Query(ge=0, description="All on this step; 0: as kept, old ones as means")] = 0,
        limit: Annotated[int, Query(ge=1, le=100_000, description="The newest so many")] = 1000,
    ) -> Document:
        """Values per second, oldest first, each over `step_s` from `at` on."""
        return await planning.rates(series, since=since, until=until, step_s=step_s, limit=limit)

    @routes.post(
        "/rates/{series:path}", tags=["planning"], operation_id="tellRates", summary="Tell what was measured",
        description="The same again replaces itself.",
        responses=openapi.problems(400, 403, 413, 503), openapi_extra=openapi.body(RatesBody),
    )  # fmt: skip
    async def tell(
        series: Annotated[str, Path(examples=["shop/orders"], max_length=200)], request: Request
    ) -> Document:
        """How many values were taken."""
        caller_of(request).check_series(series)
        given = await read_model(request, RatesBody)
        points = [(point.at, point.value) for point in given.points]
        return await planning.tell_rates(series, points, step_s=given.step_s, counter=given.counter)

    @routes.get(
        "/plans/{job_id}", tags=["planning"], operation_id="explainPlan",
        summary="Why a job has its resources",
        responses=openapi.problems(404),
    )  # fmt: skip
    async def plan(job_id: Annotated[str, Path(max_length=128)], request: Request) -> Document:
        """The plan, where it came from, and the profiles since."""
        await check_job(request, jobs)
        return await planning.explain(job_id)

    @routes.get(
        "/loans", tags=["planning"], operation_id="listLoans", summary="What training lends to serving",
        responses=openapi.problems(400),
    )  # fmt: skip
    async def loans(
        open_only: Annotated[bool, Query(alias="open", description="Those alone that are not back")] = False,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> Document:
        """The pool as it is now, and the ledger, newest first."""
        return await planning.loans(is_open=open_only, limit=limit)

    @routes.get("/mesh", tags=["mesh"], operation_id="mesh", summary="The services and how they are",
                responses=openapi.problems())  # fmt: skip
    async def services() -> Document:
        """Each service's health, asked now, with the address of its dashboard."""
        found = [asdict(item) for item in await mesh.health()]
        return {
            "version": version,
            "healthy": all(item["status"] == "serving" for item in found),
            "services": [{**item, "dashboard": dashboards.get(item["service"], "")} for item in found],
        }

    return routes
