"""forecaster as a process, over a real nats-server."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import httpx
import psutil
import pytest

from recmesh.pb import externalscaler_pb2, externalscaler_pb2_grpc
from recmesh.pb import forecaster_pb2 as pb
from recmesh.pb import forecaster_pb2_grpc as pb_grpc
from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, NotFound
from recmesh.runtime.events import Event, catalog
from recmesh.runtime.rpc import channel
from tests.support.servers import NatsServer, nats
from tests.support.service_process import ServiceProcess, service
from tests.support.waiting import until

__all__ = ["nats"]
pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
HOUR = 3600.0
PATIENCE_S = 90.0
"""The first forecast waits for an import of seconds."""
Stub: TypeAlias = "pb_grpc.ForecasterAsyncStub"  # it exists for the type checker only


def daily(hour: int) -> float:
    return 100 + 50 * math.sin(2 * math.pi * hour / 24) + hour % 3


@pytest.fixture
def forecaster(nats: NatsServer, tmp_path: Path) -> Iterator[ServiceProcess]:
    env = {
        "RECMESH_NATS_URL": nats.url, "RECMESH_FORECAST_WATCH": '["qps"]', "RECMESH_FORECAST_EVERY_S": "1",
        "RECMESH_KEDA_ADDRESS": "127.0.0.1:0", "RECMESH_API_KEY": "mesh",
        "RECMESH_RATE_DAYS": "100000", "RECMESH_RATE_IDLE_DAYS": "100000",  # the tests' moments are near the epoch
    }  # fmt: skip
    with service("forecaster", tmp_path / "forecaster", env=env) as process:
        yield process


@contextlib.asynccontextmanager
async def connected(process: ServiceProcess) -> AsyncIterator[Stub]:
    async with channel(process.address(), token="mesh") as link:
        yield pb_grpc.ForecasterStub(link)


@contextlib.asynccontextmanager
async def on_bus(nats: NatsServer) -> AsyncIterator[Bus]:
    bus = Bus(nats.url, "test")
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()


async def observed(stub: Stub, series: str, hours: range) -> None:
    points = [pb.Point(at=hour * HOUR, value=daily(hour)) for hour in hours]
    await stub.Observe(pb.ObserveRequest(series=series, step_s=HOUR, points=points))


async def test_rates_heard_on_the_bus_become_a_seasonal_forecast_that_is_told(
    nats: NatsServer, forecaster: ServiceProcess
) -> None:
    async with on_bus(nats) as bus, connected(forecaster) as stub:
        points = [(hour * HOUR, daily(hour)) for hour in range(96)]
        event = Event(catalog.RATE_OBSERVED, "qps", catalog.RateObserved(series="qps", step_s=HOUR, points=points))
        await bus.publish(event)
        told = bus.events(catalog.FORECAST_UPDATED.subject, to_end=False)
        _, update = await asyncio.wait_for(anext(told), PATIENCE_S)
        await told.aclose()
        assert (update.data.series, update.data.start, update.data.horizon) == ("qps", 96 * HOUR, 24)
        reply = await stub.Forecast(pb.ForecastRequest(series="qps", horizon=30, level=0.9), timeout=PATIENCE_S)
        assert "day-naive" in reply.model and reply.season_s == 24 * HOUR and reply.drift == "none"
        assert [point.at for point in reply.points] == [(96 + step) * HOUR for step in range(30)]
        assert all(point.low <= point.mean <= point.high for point in reply.points)
        assert all(abs(point.mean - daily(96 + step)) < 5 for step, point in enumerate(reply.points[:24]))
        assert reply.error_wape < 0.02
        assert reply.history == 96


async def test_what_a_counter_shows_becomes_rates_in_spite_of_its_reset(
    nats: NatsServer, forecaster: ServiceProcess
) -> None:
    async with connected(forecaster) as stub:
        shown = [pb.Point(at=60.0 * at, value=value) for at, value in enumerate([600, 720, 60, 180])]
        request = pb.ObserveRequest(series="served", step_s=60, points=shown[:3], counter=True)
        assert (await stub.Observe(request)).stored == 2
        request = pb.ObserveRequest(series="served", step_s=60, points=shown[2:], counter=True)
        assert (await stub.Observe(request)).stored == 1
        rates = (await stub.History(pb.HistoryRequest(series="served"))).points
        assert [(point.at, point.value) for point in rates] == [(0, 2), (60, 1), (120, 2)]


async def test_the_same_rates_again_change_nothing_and_survive_kill_9(forecaster: ServiceProcess) -> None:
    async with connected(forecaster) as stub:
        for _ in range(2):
            await observed(stub, "qps", range(48))
    forecaster.kill()
    forecaster.start()
    async with connected(forecaster) as stub:
        (info,) = (await stub.Series(pb.SeriesRequest())).series
        assert (info.series, info.points, info.last, info.last_value) == ("qps", 48, 47 * HOUR, daily(47))
        history = await stub.History(pb.HistoryRequest(series="qps", since=40 * HOUR, until=42 * HOUR))
        assert [point.at for point in history.points] == [40 * HOUR, 41 * HOUR]


async def test_refusals_say_what_would_have_worked(forecaster: ServiceProcess) -> None:
    async with connected(forecaster) as stub:
        await observed(stub, "model.ctr.requests", range(10, 58))
        with pytest.raises(NotFound, match=r"did you mean model\.ctr\.requests"):
            await stub.Forecast(pb.ForecastRequest(series="model.ctr.request"))
        for request, error in (
            (pb.ForecastRequest(series="model.ctr.requests", step_s=1800), InvalidArgument),
            (pb.ForecastRequest(series="model.ctr.requests", level=2), InvalidArgument),
            (pb.ForecastRequest(series="model.ctr.requests", now=1), FailedPrecondition),
            (pb.ForecastRequest(series="model.ctr.requests", now=2e9), FailedPrecondition),
        ):
            with pytest.raises(error):
                await stub.Forecast(request)
        with pytest.raises(InvalidArgument, match=r"points\[0\].value"):
            await stub.Observe(pb.ObserveRequest(series="x", step_s=1, points=[pb.Point(at=1, value=-1)]))


async def test_a_short_history_gets_a_flat_forecast_that_says_so(forecaster: ServiceProcess) -> None:
    async with connected(forecaster) as stub:
        await observed(stub, "new", range(5))
        reply = await stub.Forecast(pb.ForecastRequest(series="new", horizon=3), timeout=PATIENCE_S)
        assert "no season" in reply.note
        assert len({point.mean for point in reply.points}) == 1
        late = await stub.Forecast(pb.ForecastRequest(series="new", horizon=1, now=7 * HOUR), timeout=PATIENCE_S)
        assert [point.at for point in late.points] == [7 * HOUR]


async def test_a_model_process_that_is_killed_comes_back(forecaster: ServiceProcess) -> None:
    async with connected(forecaster) as stub:
        await observed(stub, "qps2", range(48))
        await stub.Forecast(pb.ForecastRequest(series="qps2"), timeout=PATIENCE_S)
        workers = [
            child for child in psutil.Process(forecaster.pid).children() if "spawn_main" in " ".join(child.cmdline())
        ]
        assert workers
        for worker in workers:
            worker.kill()

        async def answered() -> bool:
            with contextlib.suppress(Exception):
                await stub.Forecast(pb.ForecastRequest(series="qps2"), timeout=PATIENCE_S)
                return True
            return False

        assert await answered() or await answered()


async def test_nothing_is_left_running_after_kill_9_and_after_sigterm(forecaster: ServiceProcess) -> None:
    began = psutil.Process(forecaster.pid).create_time()
    family = psutil.Process(forecaster.pid).children(recursive=True)
    assert family
    forecaster.kill()
    await asyncio.to_thread(until, lambda: not any(_lives(child) for child in family))
    assert not _semaphores_since(began)
    forecaster.start()
    family = psutil.Process(forecaster.pid).children(recursive=True)
    assert await asyncio.to_thread(forecaster.stop) == 0
    await asyncio.to_thread(until, lambda: not any(_lives(child) for child in family))


def _semaphores_since(moment: float) -> list[Path]:
    return [path for path in Path("/dev/shm").glob("sem.mp-*") if path.stat().st_ctime >= moment]


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def test_keda_needs_no_token_and_gets_what_the_models_say(forecaster: ServiceProcess) -> None:
    this_hour = time.time() // HOUR
    async with connected(forecaster) as stub:
        await observed(stub, "model/ctr", range(int(this_hour) - 96, int(this_hour)))
    trigger = externalscaler_pb2.ScaledObjectRef(scalerMetadata={
        "series": "model/ctr", "leadTime": "2h", "quantile": "0.5", "targetPerReplica": "10", "activation": "50",
    })  # fmt: skip
    async with grpc.aio.insecure_channel(forecaster.address("keda")) as link:
        scaler: Any = externalscaler_pb2_grpc.ExternalScalerStub(link)
        assert (await scaler.IsActive(trigger, timeout=PATIENCE_S)).result
        [value] = (await scaler.GetMetrics(
            externalscaler_pb2.GetMetricsRequest(scaledObjectRef=trigger), timeout=PATIENCE_S
        )).metricValues  # fmt: skip
        assert min(map(daily, range(24))) - 5 < value.metricValueFloat < max(map(daily, range(24))) + 5
        mesh: Any = pb_grpc.ForecasterStub(link)       # nothing else is served there
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await mesh.Series(pb.SeriesRequest(), timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    async with grpc.aio.insecure_channel(forecaster.address()) as link:
        scaler = externalscaler_pb2_grpc.ExternalScalerStub(link)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scaler.IsActive(trigger, timeout=PATIENCE_S)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_its_page_shows_series_and_forecasts(forecaster: ServiceProcess) -> None:
    async with connected(forecaster) as stub:
        await observed(stub, "shown-series", range(48))
        await stub.Forecast(pb.ForecastRequest(series="shown-series"), timeout=PATIENCE_S)
    async with httpx.AsyncClient(base_url=forecaster.address("ops")) as http:
        page = (await http.get("/")).text
        assert "shown-series" in page and "day-naive" in page
        assert "recmesh_forecaster_backtest_wape_count{model=" in (await http.get("/metrics")).text
