"""KEDA's external scaler, as its operator calls it: metadata in, a rate out. `domain/scaling.py` has their meaning."""

import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from recmesh.pb import externalscaler_pb2 as pb
from recmesh.pb import externalscaler_pb2_grpc as pb_grpc
from recmesh.runtime.errors import InvalidArgument, Violation
from services.forecaster.domain.scaling import Scaling, scaling
from services.forecaster.scaling import Scaler

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["ExternalScaler"].full_name


class KedaServicer(pb_grpc.ExternalScalerServicer):
    """All calls of the service."""

    def __init__(self, scaler: Scaler) -> None:
        self._scaler = scaler

    async def IsActive(self, request: pb.ScaledObjectRef, context: Any) -> pb.IsActiveResponse:
        """Whether there should be any replica."""
        return pb.IsActiveResponse(result=await self._scaler.is_active(_ask(request)))

    async def StreamIsActive(self, request: pb.ScaledObjectRef, context: Any) -> AsyncIterator[pb.IsActiveResponse]:
        """The same, at once and whenever it changes."""
        async for is_active in self._scaler.activity(_ask(request)):
            yield pb.IsActiveResponse(result=is_active)

    async def GetMetricSpec(self, request: pb.ScaledObjectRef, context: Any) -> pb.GetMetricSpecResponse:
        """What one replica bears."""
        return _spec(_ask(request))

    async def StreamMetricSpec(
        self, request: pb.ScaledObjectRef, context: Any
    ) -> AsyncIterator[pb.GetMetricSpecResponse]:
        """The same at once; it stands in the trigger, so it does not change while the stream is open."""
        ask = _ask(request)
        async for _ in self._scaler.held():
            yield _spec(ask)

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Any) -> pb.GetMetricsResponse:
        """The rate that all replicas must bear."""
        ask = _ask(request.scaledObjectRef)
        if request.metricName not in ("", ask.metric_name):
            reason = f"{request.metricName!r} is not {ask.metric_name!r}, which this trigger has"
            raise InvalidArgument("there is no such metric", violations=[Violation("metricName", reason)])
        rate = (await self._scaler.expected(ask)).rate
        return pb.GetMetricsResponse(metricValues=[
            pb.MetricValue(metricName=ask.metric_name, metricValue=math.ceil(rate), metricValueFloat=rate)
        ])  # fmt: skip


def _ask(request: pb.ScaledObjectRef) -> Scaling:
    return scaling(request.scalerMetadata)


def _spec(ask: Scaling) -> pb.GetMetricSpecResponse:
    target = max(1, round(ask.per_replica))         # for an older KEDA, which knows whole numbers only
    return pb.GetMetricSpecResponse(metricSpecs=[
        pb.MetricSpec(metricName=ask.metric_name, targetSize=target, targetSizeFloat=ask.per_replica)
    ])  # fmt: skip


def register(servicer: KedaServicer) -> Callable[[grpc.aio.Server], None]:
    """What adds the servicer to a server."""

    def add(server: grpc.aio.Server) -> None:
        pb_grpc.add_ExternalScalerServicer_to_server(servicer, server)

    return add
