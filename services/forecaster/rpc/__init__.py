"""gRPC face of forecaster: decode, call the app, encode."""

from collections.abc import Callable
from typing import Any

import grpc

from recmesh.pb import forecaster_pb2 as pb
from recmesh.pb import forecaster_pb2_grpc as pb_grpc
from services.forecaster import wire
from services.forecaster.app import App

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Forecaster"].full_name


class ForecasterServicer(pb_grpc.ForecasterServicer):
    """One line per method; anything longer belongs in app.py."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def Observe(self, request: pb.ObserveRequest, context: Any) -> pb.ObserveReply:
        """Rates."""
        rates = wire.points(request.points)
        stored = await self._app.observe(request.series, request.step_s, rates, counter=request.counter)
        return pb.ObserveReply(stored=stored)

    async def Forecast(self, request: pb.ForecastRequest, context: Any) -> pb.ForecastReply:
        """What they will be."""
        made = await self._app.forecast(wire.ask(request))
        return wire.forecast_reply(made, await self._app.past_errors(made.series))

    async def Series(self, request: pb.SeriesRequest, context: Any) -> pb.SeriesReply:
        """What is stored."""
        return wire.series_reply(await self._app.series(prefix=request.prefix, limit=request.limit))

    async def History(self, request: pb.HistoryRequest, context: Any) -> pb.HistoryReply:
        """A series."""
        found = await self._app.history(
            request.series, since=request.since, until=request.until, step_s=request.step_s, limit=request.limit
        )
        return wire.history_reply(*found)


def register(servicer: ForecasterServicer) -> Callable[[grpc.aio.Server], None]:
    """What adds the servicer to a server."""

    def add(server: grpc.aio.Server) -> None:
        pb_grpc.add_ForecasterServicer_to_server(servicer, server)

    return add
