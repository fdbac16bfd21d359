"""Everybody who measures rates tells them, and forecaster has them: over a real nats-server, each source's own code."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from recmesh.partitions import series_of
from recmesh.pb import forecaster_pb2 as pb
from recmesh.pb import forecaster_pb2_grpc as pb_grpc
from recmesh.runtime.bus import Bus
from recmesh.runtime.events import catalog
from recmesh.runtime.events.rates import MAX_POINTS, MAX_SERIES, rates_events
from recmesh.runtime.rpc import channel
from services.gateway.app.observation import Observation
from services.gateway.domain.statistics import Outcome
from services.gateway.events.facts import Facts
from services.jobmaster.app.telling import Telling
from services.shardsvc.app import Lags
from services.shardsvc.events import teller
from tests.support.job_world import JobWorld
from tests.support.servers import NatsServer, nats_server
from tests.support.service_process import ServiceProcess, service
from tests.unit.shardsvc.conftest import world
from tests.unit.shardsvc.test_app import JOB, request
from tests.unit.shardsvc.topic_world import World, clicks

__all__ = ["world"]
pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def forecaster(nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    env = {"RECMESH_NATS_URL": nats.url, "RECMESH_RATE_DAYS": "100000", "RECMESH_RATE_IDLE_DAYS": "100000"}
    with service("forecaster", tmp_path_factory.mktemp("forecaster"), env=env) as process:
        yield process


@pytest_asyncio.fixture
async def bus(nats: NatsServer) -> AsyncIterator[Bus]:
    made = Bus(nats.url, "test")
    await made.start()
    yield made
    await made.stop()


async def heard(forecaster: ServiceProcess, series: str, count: int) -> list[tuple[float, float]]:
    """The first values of a series, once there are so many."""
    async with asyncio.timeout(PATIENCE_S), channel(forecaster.address()) as link:
        stub: Any = pb_grpc.ForecasterStub(link)
        while True:
            found = (await stub.Series(pb.SeriesRequest(prefix=series, limit=1000))).series
            if any(each.series == series and each.points >= count for each in found):
                history = await stub.History(pb.HistoryRequest(series=series))
                return [(point.at, point.value) for point in history.points]
            await asyncio.sleep(0.1)


class At:
    """A clock that is set."""

    def __init__(self, at: float) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(0)


async def test_arrivals_of_topics_and_their_partitions(forecaster: ServiceProcess, bus: Bus, world: World) -> None:
    first = world.replicas[0]
    lags = Lags(
        first.tasks, first.runs.latest, clock=world.clock, emit=teller(bus), opened=lambda source: world.topic
    )
    world.clock.at = begin = 1_700_000_000.0
    world.send(3)
    await first.runs.open(request(clicks(), epochs=1))
    await first.runs.progress(JOB)
    await lags.look()
    for _ in range(4):                          # as often as it looks: twice in a window
        world.clock.at += 5.0
        world.send(10)
        world.send(5, partition=1)
        await lags.look()
    assert await heard(forecaster, "topic/clicks", 2) == [(begin, 3.0), (begin + 10, 3.0)]
    assert await heard(forecaster, "topic/clicks/0", 2) == [(begin, 2.0), (begin + 10, 2.0)]
    assert await heard(forecaster, "topic/clicks/1", 2) == [(begin, 1.0), (begin + 10, 1.0)]


async def test_samples_of_jobs(forecaster: ServiceProcess, bus: Bus) -> None:
    world = JobWorld()
    telling = Telling(world.jobs.context, "ctr-1")
    world.publish = bus.publish  # type: ignore[method-assign]  # instead of its list
    sending = asyncio.create_task(telling.send_all())
    for step in range(3):
        telling.rate(100.0 + step, at=5.0 * step, step_s=5.0)
    assert await heard(forecaster, "job/ctr-1/samples", 3) == [(0.0, 100.0), (5.0, 101.0), (10.0, 102.0)]
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def test_requests_of_models_silence_among_them(forecaster: ServiceProcess, bus: Bus) -> None:
    clock = At(1000.0)
    observation = Observation(clock=clock, rate_step_s=10.0, tell_rates=Facts(bus).rates)
    observation.watch("idle")
    for _ in range(20):
        observation.add(Outcome(at=clock.now(), model="ctr", version="1", samples=1, total_s=0.01))
    clock.at += 20.0
    await observation.tell()
    assert await heard(forecaster, "model/ctr", 2) == [(1000.0, 2.0), (1010.0, 0.0)]
    assert await heard(forecaster, "model/idle", 2) == [(1000.0, 0.0), (1010.0, 0.0)]


async def test_thousands_of_series_come_in_few_events_and_survive_kill_9(
    forecaster: ServiceProcess, bus: Bus
) -> None:
    rates = {f"topic/t/{number}": [(10.0 * step, float(number)) for step in range(3)] for number in range(2_000)}
    events = list(rates_events("test", 10.0, rates))
    assert len(events) == 4
    for event in events[:2]:
        await bus.publish(event)
    assert await heard(forecaster, "topic/t/999", 3) == rates["topic/t/999"]
    forecaster.kill()
    for event in events[2:]:
        await bus.publish(event)
    forecaster.start()
    for number in (0, 999, 1999):
        assert await heard(forecaster, f"topic/t/{number}", 3) == rates[f"topic/t/{number}"]


async def test_a_wrong_series_does_not_keep_others_of_its_event_from_being_stored(
    forecaster: ServiceProcess, bus: Bus
) -> None:
    wrong = {"x" * 201: [(0.0, 1.0)], "": [(0.0, 1.0)], "negative": [(0.0, -1.0)]}
    _, longest = series_of(f"kafka:{'x' * 249}/7")
    [event] = rates_events("test", 10.0, wrong | {"beside": [(0.0, 2.0)], longest: [(0.0, 3.0)]})
    await bus.publish(event)
    assert await heard(forecaster, "beside", 1) == [(0.0, 2.0)]
    assert await heard(forecaster, longest, 1) == [(0.0, 3.0)]


async def test_events_of_rates_keep_their_bounds_and_all_points() -> None:
    rates = {"long": [(float(at), 1.0) for at in range(12_001)]} | {f"s{n}": [(0.0, 1.0)] for n in range(1_200)}
    events = list(rates_events("test", 1.0, rates))
    assert all(isinstance(event.data, catalog.RatesObserved) for event in events)
    assert all(len(event.data.series) <= MAX_SERIES for event in events)
    assert all(sum(len(each.points) for each in event.data.series) <= MAX_POINTS for event in events)
    found: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        for each in event.data.series:
            found.setdefault(each.series, []).extend(each.points)
    assert found == rates
