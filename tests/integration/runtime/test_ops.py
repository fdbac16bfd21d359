"""The ops page over a real socket: probes, live refresh, escaping, refusals."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from recmesh.runtime.errors import InvalidArgument
from recmesh.runtime.lifecycle import PortTaken
from recmesh.runtime.ops import Cell, Chart, Log, OpsServer, Page, Recorder, Table, Tile, Tiles, Tone, router, state
from recmesh.runtime.ops.panels import Value
from recmesh.runtime.settings import ServiceSettings
from recmesh.runtime.telemetry import Metrics
from tests.support.servers import free_port

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

EVIL = '"><script>alert(1)</script>'


def page(rows: Any = lambda: [], **options: Any) -> Page:
    return Page("tests", [
        Tiles("", lambda: [Tile("jobs", 3, "note", Tone.OK, spark=[1, 2, float("nan")])]),
        Table("rows", ["name", "state"], rows),
        Chart("rate", lambda: {"a": [(1.0, 2.0), (2.0, float("inf"))], "b": []}, "per second"),
        Log("log", lambda: ["one line"]),
    ], refresh_s=0.02, **options)


@asynccontextmanager
async def shown(shown_page: Page, **options: Any) -> AsyncIterator[OpsServer]:
    server = OpsServer("tests", options.pop("address", "127.0.0.1:0"), shown_page, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def get(server: OpsServer, path: str, **options: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        return await client.get(server.address + path, **options)


async def events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for line in lines:
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, orjson.loads(line[6:])


async def test_readyz_follows_the_lifecycle_and_the_services_own_objection() -> None:
    objection = ""
    async with shown(page(), readiness=lambda: objection) as server:
        assert (await get(server, "/readyz")).status_code == 503
        server.set_ready(True)
        assert (await get(server, "/readyz")).json() == {"ready": True, "reason": ""}
        objection = "NATS is away"
        answer = await get(server, "/readyz")
        assert answer.status_code == 503 and answer.json()["reason"] == "NATS is away"
        assert (await get(server, "/healthz")).text == "ok"


async def test_metrics_are_those_of_the_registry() -> None:
    registry = CollectorRegistry()
    Metrics("tests", registry=registry).counter("things", "Things").inc(3)
    async with shown(page(), metrics=registry) as server:
        assert "recmesh_tests_things_total 3.0" in (await get(server, "/metrics")).text


async def test_a_page_links_to_its_dashboard_where_grafana_is_named() -> None:
    async with shown(page(), grafana="https://grafana.example/") as server:
        assert 'href="https://grafana.example/d/recmesh-tests"' in (await get(server, "/")).text
    with pytest.raises(InvalidArgument, match="RECMESH_GRAFANA_URL"):
        ServiceSettings.from_env({"RECMESH_GRAFANA_URL": "javascript:alert(1)"}, "RECMESH_")


async def test_metrics_say_whether_the_service_takes_work() -> None:
    objection = ""
    async with shown(page(), readiness=lambda: objection, metrics=CollectorRegistry()) as server:
        assert "recmesh_ready 0.0" in (await get(server, "/metrics")).text
        server.set_ready(True)
        assert "recmesh_ready 1.0" in (await get(server, "/metrics")).text
        objection = "NATS is away"
        assert "recmesh_ready 0.0" in (await get(server, "/metrics")).text


async def test_every_value_is_escaped() -> None:
    evil = page(lambda: [[EVIL, Cell(EVIL, Tone.BAD)], [Cell("x", href="javascript:alert(1)"), state(EVIL)]],
                subtitle=EVIL, links={EVIL: "http://127.0.0.1/"})
    async with shown(evil) as server:
        text = (await get(server, "/")).text
        assert "<script>alert" not in text and "javascript:" not in text
        assert "&lt;script&gt;" in text
        assert "default-src 'none'" in (await get(server, "/")).headers["content-security-policy"]


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    async with shown(page()) as server:
        text = (await get(server, "/")).text
        assert "http://" not in text and "https://" not in text
        for path in ("ops.css", "ops.js", "uPlot.iife.min.js", "uPlot.min.css", "mark.svg", "uPlot.LICENSE.txt"):
            assert (await get(server, f"/static/{path}")).status_code == 200, path
        assert (await get(server, "/static/../server.py")).status_code == 404


async def test_a_viewer_gets_all_panels_then_only_what_changed() -> None:
    rows = [["first", state("Running")]]
    async with shown(page(lambda: rows)) as server, httpx.AsyncClient(trust_env=False, timeout=20) as client:
        async with client.stream("GET", server.address + "/events") as response:
            heard = events(response.aiter_lines())
            assert (await anext(heard))[0] == "hello"
            name, panels = await anext(heard)
            assert name == "panels" and set(panels) == {"0", "1", "2", "3"}
            assert panels["2"]["chart"] == {"names": ["a", "b"], "series": [[[1.0, 2.0], [2.0, None]], [[], []]]}
            rows.append(["second", state("Failed")])
            name, panels = await anext(heard)
            assert set(panels) == {"1"}
            assert "second" in panels["1"]["html"] and "pill bad" in panels["1"]["html"]


async def test_a_viewer_comes_back_after_the_service_restarted() -> None:
    address = f"127.0.0.1:{free_port()}"
    shapes = []
    for _ in range(2):
        async with shown(page(), address=address) as server:
            async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
                async with client.stream("GET", server.address + "/events") as response:
                    shapes.append((await anext(events(response.aiter_lines())))[1]["shape"])
    assert shapes[0] == shapes[1]


async def test_stopping_lets_viewers_go_instead_of_waiting_for_them() -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        async with shown(page()) as server:
            response = await client.send(client.build_request("GET", server.address + "/events"), stream=True)
            heard = events(response.aiter_lines())
            await anext(heard)
        assert [name async for name, _ in heard if name == "hello"] == []
        await response.aclose()


async def test_a_panel_that_fails_says_so_and_hides_no_other() -> None:
    def broken() -> Any:
        raise LookupError(EVIL)

    async with shown(page(broken)) as server:
        text = (await get(server, "/")).text
        assert "cannot be read" in text and "LookupError" in text and "<script>alert" not in text
        assert "one line" in text


async def test_a_foreign_host_name_is_refused_on_loopback() -> None:
    async with shown(page()) as server:
        assert (await get(server, "/", headers={"Host": "evil.example"})).status_code == 421
        assert (await get(server, "/", headers={"Host": f"localhost:{server.port}"})).status_code == 200


async def test_beyond_loopback_the_page_asks_for_the_key_and_probes_do_not() -> None:
    async with shown(page(), address="0.0.0.0:0", token="right", metrics_token="metrics") as server:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False) as client:
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.get("/")).status_code == 401
            assert (await client.get("/", auth=("any", "wrong"))).status_code == 401
            assert (await client.get("/", auth=("any", "right"))).status_code == 200
            assert (await client.get("/events", headers={"Authorization": "Bearer no"})).status_code == 401
            assert (await client.get("/metrics")).status_code == 401
            for path, status in (("/metrics", 200), ("/", 401), ("/data", 401), ("//metrics", 401)):
                of_metrics = {"Authorization": "Bearer metrics"}
                assert (await client.get(path, headers=of_metrics)).status_code == status, path
            assert (await client.get("/metrics", headers={"Authorization": "Bearer right"})).status_code == 200


async def test_beyond_loopback_there_is_no_page_without_a_key() -> None:
    with pytest.raises(InvalidArgument, match="can be reached from other machines") as caught:
        OpsServer("tests", "0.0.0.0:0", page())
    assert caught.value.violations[0].path == "http_address"


async def test_a_taken_port_is_named() -> None:
    async with shown(page()) as server:
        with pytest.raises(PortTaken, match=str(server.port)):
            async with shown(page(), address=f"127.0.0.1:{server.port}"):
                pass


@pytest.mark.parametrize("address", ["8080", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:http"])
async def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgument, match="is not host:port"):
        async with shown(page(), address=address):
            pass


async def test_the_page_can_be_mounted_into_another_application() -> None:
    app = FastAPI()
    app.mount("/ops", router("gateway", page()))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        assert "one line" in (await client.get("/ops/")).text
        assert (await client.get("/ops/static/ops.css")).status_code == 200


async def test_a_recorder_keeps_the_newest_values() -> None:
    figures = {"rate": 0.0}

    def probe() -> dict[str, float]:
        figures["rate"] += 1
        return figures

    recorder = Recorder("tests", probe, every_s=0.0, capacity=5)
    await recorder.start()
    async with asyncio.timeout(20):
        while figures["rate"] < 9:   # noqa: ASYNC110 (the recorder's own task makes it true)
            await asyncio.sleep(0)
    await recorder.stop()
    assert len(recorder.points()["rate"]) == 5
    assert recorder.recent("rate", 2)[-1] == figures["rate"]


async def test_a_chart_says_where_its_scale_does_not_begin_at_zero() -> None:
    charts = [Chart("AUC", lambda: {"late": [(1.0, 0.7)]}, from_zero=False), Chart("pace", dict)]
    async with shown(Page("small", charts)) as server, httpx.AsyncClient(trust_env=False, timeout=20) as client:
        async with client.stream("GET", server.address + "/events") as response:
            heard = events(response.aiter_lines())
            await anext(heard)
            _, panels = await anext(heard)
    assert [panels[key]["chart"].get("from_zero", True) for key in ("0", "1")] == [False, True]


def of_jobs() -> Page:
    """Two jobs, one of which may be chosen."""
    rows: list[list[Value]] = [["a b", Cell("one", Tone.OK)], [Cell("c", href="/elsewhere"), "two"], ["", "of none"]]
    lines = {"a b": [(1.0, 1.0)], "a b late": [(1.0, 2.0)], "a bc": [(1.0, 3.0)], "c": [(1.0, 4.0)]}
    return Page("tests", [
        Table("jobs", ["job", "what"], lambda: rows, chosen_by="job", limit=1),
        Chart("pace", lambda: lines, chosen_by="job"),
        Chart("steps", dict, of_choice=lambda choice: {choice.get("job", "newest"): [(1.0, 1.0)]}),
    ], choices=("job",), refresh_s=0.02)  # fmt: skip


async def test_a_job_has_a_page_of_its_own_with_its_rows_and_lines_alone() -> None:
    async with shown(of_jobs()) as server:
        everything = await get(server, "/")
        assert 'href="./?job=a%20b"' in everything.text
        found = (await get(server, "/data", params={"job": "a b"})).json()
        assert found["jobs"] == [{"job": "a b", "what": "one"}]
        assert sorted(found["pace"]) == ["a b", "a b late"] and list(found["steps"]) == ["a b"]
        other = await get(server, "/", params={"job": "c"})
        assert 'href="/elsewhere"' in other.text and "one" not in other.text, "a way that is given stays, and the limit"
        nobody = (await get(server, "/data", params={"job": "nobody"})).json()
        assert nobody["jobs"] == [] and nobody["pace"] == {}


class SetClock:
    """Stands still until it is set; to sleep is to set it."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        await asyncio.sleep(0)


async def test_a_recorder_leaves_a_gap_where_a_figure_was_not_told() -> None:
    clock = SetClock()

    def probe() -> dict[str, float]:
        return {"always": 1.0} if 6 < clock.at < 40 else {"always": 1.0, "rate": clock.at}

    recorder = Recorder("tests", probe, every_s=2.0, clock=clock)
    await recorder.start()
    async with asyncio.timeout(20):
        while clock.at < 45:   # noqa: ASYNC110 (the recorder's own task moves it)
            await asyncio.sleep(0)
    await recorder.stop()
    values = [value for _, value in recorder.points()["rate"]]
    assert values[:5] == [0.0, 2.0, 4.0, 6.0, None] and values[5] == 40.0
    assert None not in [value for _, value in recorder.points()["always"]]
