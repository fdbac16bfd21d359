"""/v1/serving: what models are asked now, how long they take, and which versions answer."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request

from services.gateway.app.inference import Inference
from services.gateway.app.models import Models
from services.gateway.app.ports import Document
from services.gateway.domain.models import ModelVersion
from services.gateway.domain.statistics import ModelStatistics
from services.gateway.rest import openapi
from services.gateway.rest.calls import caller_of


def router(models: Models, inference: Inference) -> APIRouter:
    """The route."""
    routes = APIRouter(prefix="/v1", tags=["models"])

    @routes.get(
        "/serving", operation_id="serving", summary="How models serve now", responses=openapi.problems(),
    )  # fmt: skip
    async def serving(request: Request) -> Document:
        """Requests per second over the last closed step; counts and percentiles since this gateway's start."""
        sees = caller_of(request).sees
        counted, rates = await inference.statistics(), inference.rates()
        by_name: dict[str, list[ModelVersion]] = {}
        for item in await models.versions():
            if sees(item.name):
                by_name.setdefault(item.name, []).append(item)
        return {
            "step_s": inference.rate_step_s,
            "models": [
                {
                    "name": name, "requests_per_s": rates.get(name, 0.0),
                    "versions": [_version(models, item, counted[item.name, item.version]) for item in versions
                                 if (item.name, item.version) in counted],
                }
                for name, versions in sorted(by_name.items())
            ],
        }  # fmt: skip

    return routes


def _version(models: Models, item: ModelVersion, counted: ModelStatistics) -> dict[str, Any]:
    served = models.serving.find(item.name, item.version)
    p50, p90, p99 = _quantiles(counted, (0.5, 0.9, 0.99))
    return {
        "version": item.version, "state": str(item.state), "reason": item.reason,
        "is_ready": models.serving.is_ready(item.name, item.version),
        "in_flight": served.in_flight if served is not None else 0,
        "requests": counted.success.count + counted.fail.count, "errors": counted.fail.count,
        "samples": counted.samples, "p50_s": p50, "p90_s": p90, "p99_s": p99,
    }  # fmt: skip


def _quantiles(counted: ModelStatistics, shares: Sequence[float]) -> list[float]:
    return [round(counted.latency.quantile(share), 6) for share in shares]
