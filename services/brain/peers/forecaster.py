"""forecaster over gRPC: protobuf in and out, nothing else."""

from collections.abc import Sequence

import grpc
import numpy as np

from recmesh.pb import forecaster_pb2, forecaster_pb2_grpc
from recmesh.plugins.planning import Floats

FORECAST_S = 4.0
HISTORY_S = 2.0


class GrpcForecaster:
    """forecaster over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = forecaster_pb2_grpc.ForecasterStub(channel)

    async def forecast(
        self, series: str, *, steps: int, step_s: float, now: float, level: float
    ) -> tuple[Floats, Floats, str]:
        """See `peers.Forecaster`."""
        request = forecaster_pb2.ForecastRequest(series=series, horizon=steps, step_s=step_s, level=level, now=now)
        reply = await self._stub.Forecast(request, timeout=FORECAST_S)
        mean = np.array([point.mean for point in reply.points])
        high = np.array([point.high for point in reply.points])
        return mean, high, reply.model

    async def history(self, series: str, *, since: float, step_s: float) -> Sequence[tuple[float, float]]:
        """See `peers.Forecaster`."""
        request = forecaster_pb2.HistoryRequest(series=series, since=since, step_s=step_s)
        reply = await self._stub.History(request, timeout=HISTORY_S)
        return [(point.at, point.value) for point in reply.points]
