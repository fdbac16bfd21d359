"""`/v1/forecasts` and `/v1/rates`: REST, through gateway's own peer, to forecaster's own gRPC."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from recmesh.runtime.rpc import RpcServer
from services.forecaster import rpc
from services.forecaster.domain.series import Point
from services.gateway.peers.data import PlanningPeer
from services.gateway.peers.mesh import Mesh
from tests.support.forecasts import KnownFuture, SetClock
from tests.support.gateway import gateway
from tests.support.gateway import http as rest
from tests.support.servers import free_port

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
NOW = 1_700_000_040.0


@pytest_asyncio.fixture
async def app(tmp_path: Path) -> AsyncIterator[KnownFuture]:
    made = KnownFuture(tmp_path, SetClock(NOW), lambda at: 100.0)
    yield made
    made.store.close()


@pytest_asyncio.fixture
async def http(app: KnownFuture, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    server = RpcServer("rpc", "127.0.0.1:0", [rpc.register(rpc.ForecasterServicer(app))])
    await server.start()
    mesh = Mesh({"forecaster": server.address}, token=None, tls=None)
    try:
        async with rest(gateway(tmp_path), planning=PlanningPeer(mesh)) as made:
            yield made
    finally:
        await mesh.stop()
        await server.stop()


async def test_series_forecasts_and_rates(app: KnownFuture, http: httpx.AsyncClient) -> None:
    app.measured("model/ctr")
    [known] = (await http.get("/v1/forecasts", params={"prefix": "model/"})).json()["series"]
    assert (known["series"], known["points"], known["step_s"]) == ("model/ctr", 10, 60)
    await app.watch(["model/ctr"], horizon=4)
    end = app.told[0].points[0].at
    app.store.put("model/ctr", 60, [Point(end, 50.0)])
    await app.watch(["model/ctr"], horizon=4)
    told = (await http.get("/v1/forecasts/model%2Fctr", params={"horizon": 3})).json()
    assert (len(told["points"]), told["step_s"], told["model"]) == (3, 60, "Known")
    assert [(each["lead"], each["count"], each["wape"]) for each in told["past"]] == [(1, 1, 1.0)]
    rates = (await http.get("/v1/rates/model/ctr", params={"limit": 2})).json()
    assert rates == {
        "points": [{"at": end - 60, "value": 100.0, "step_s": 60.0}, {"at": end, "value": 50.0, "step_s": 60.0}],
        "step_s": 60.0,
    }
    coarse = (await http.get("/v1/rates/model/ctr", params={"step_s": 600, "since": NOW - 600})).json()
    assert coarse["step_s"] == 600 and all(each["step_s"] == 600 for each in coarse["points"])


async def test_rates_are_told(app: KnownFuture, http: httpx.AsyncClient) -> None:
    body = {"step_s": 60, "points": [{"at": NOW - 120, "value": 7.0}, {"at": NOW - 60, "value": 9.0}]}
    for _ in range(2):
        assert (await http.post("/v1/rates/shop/orders", json=body)).json() == {"stored": 2}
    rates = (await http.get("/v1/rates/shop/orders")).json()
    assert [point["value"] for point in rates["points"]] == [7.0, 9.0]
    for wrong, said in (
        ({"points": body["points"]}, "step_s"), (body | {"step_s": -1}, "step_s"), (body | {"points": []}, "points"),
        (body | {"points": [{"at": NOW - 60, "value": -1.0}]}, "value"),
    ):
        refused = await http.post("/v1/rates/shop/orders", json=wrong)
        assert refused.status_code == 400 and said in refused.text, refused.text


async def test_refusals_are_problems_that_name_the_field(app: KnownFuture, http: httpx.AsyncClient) -> None:
    app.measured("model/ctr")
    unknown = await http.get("/v1/rates/model/ctx")
    assert unknown.status_code == 404 and "did you mean model/ctr" in unknown.text
    wrong = await http.get("/v1/rates/model/ctr", params={"step_s": 7})
    assert wrong.status_code == 400 and "step_s" in wrong.text


async def test_a_forecaster_that_is_down_is_named_within_seconds_with_what_to_do(tmp_path: Path) -> None:
    mesh = Mesh({"forecaster": f"127.0.0.1:{free_port()}"}, token=None, tls=None)
    try:
        async with asyncio.timeout(8), rest(gateway(tmp_path), planning=PlanningPeer(mesh)) as http:
            answers = await asyncio.gather(*(
                http.get(path) for path in ("/v1/forecasts", "/v1/forecasts/topic/flights", "/v1/rates/topic/flights")
            ))    # calls wait 10 s for a server where nothing looks first
    finally:
        await mesh.stop()
    assert {(each.status_code, each.json()["reason"]) for each in answers} == {(503, "SERVICE_AWAY")}
    assert all("forecaster at 127.0.0.1" in each.text and "recmesh logs forecaster" in each.text for each in answers)
