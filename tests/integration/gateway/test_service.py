"""The whole gateway as a process beside a real NATS: restarts, refusals, events."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

from recmesh.pb import gateway_pb2, gateway_pb2_grpc
from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import Unauthenticated
from recmesh.runtime.events import Event, catalog
from recmesh.runtime.rpc import sync_channel
from services.gateway.events.history import JobHistory
from tests.support.gateway import gateway, http
from tests.support.oip_models import torch_model
from tests.support.servers import NatsServer, free_port, nats_server
from tests.support.waiting import until

pytestmark = pytest.mark.integration

TOKEN = "mesh-token"


class Service:
    """`python -m services.gateway`."""

    def __init__(self, root: Path, nats: NatsServer, **env: str) -> None:
        self.rpc, self.http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.http}"
        self._env = {
            "PATH": os.environ["PATH"], "RECMESH_NATS_URL": nats.url, "RECMESH_DATA_DIR": str(root),
            "RECMESH_API_KEY": TOKEN, "RECMESH_RPC_ADDRESS": self.rpc, "RECMESH_HTTP_ADDRESS": self.http,
            **env,
        }  # fmt: skip
        self.log = root / f"gateway-{self.http.rpartition(':')[2]}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.gateway"], env=self._env, stdout=log, stderr=log
            )

    def ended(self) -> tuple[int, str]:
        """The exit code, and what it said."""
        assert self.process is not None
        return self.process.wait(240), self.log.read_text()

    def end(self, signum: int) -> int:
        assert self.process is not None
        self.process.send_signal(signum)
        return self.process.wait(30)

    def serves(self, model: str) -> None:
        """Returns once the model is ready; fails with the gateway's log when it cannot be loaded."""
        until(lambda: self._state(model) in ("ready", "failed"), timeout_s=240.0)
        assert self._state(model) == "ready", self.log.read_text()[-4000:]

    def _state(self, model: str) -> Any:
        return httpx.get(f"{self.url}/v1/models/{model}", timeout=10.0).json().get("state")

    def answers(self, path: str) -> bool:
        try:
            return httpx.get(self.url + path, timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False


@contextmanager
def running(service: Service) -> Iterator[Service]:
    service.start()
    try:
        until(lambda: service.answers("/readyz"), timeout_s=240.0)
        yield service
    finally:
        if service.process is not None and service.process.poll() is None:
            service.end(signal.SIGKILL)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_server(tmp_path / "nats") as server:
        yield server


def predictions(service: Service) -> Any:
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]},
        {"name": "id", "datatype": "INT64", "shape": [1], "data": [2]},
    ]
    reply = httpx.post(f"{service.url}/v2/models/tiny/infer", json={"inputs": inputs}, timeout=30.0)
    return reply.json()["outputs"][0]["data"]


@pytest.mark.long
def test_a_registered_model_survives_kill_9_of_the_gateway(tmp_path: Path, nats: NatsServer) -> None:
    torch_model(tmp_path / "storage/models/tiny/1")
    with running(Service(tmp_path, nats)) as service:
        wanted = gateway_pb2.RegisterRequest(
            name="tiny", uri=str(tmp_path / "storage/models/tiny/1"), framework="torch", load=True, request_id="r"
        )
        with sync_channel(service.rpc, token=TOKEN) as channel:
            stub = gateway_pb2_grpc.ModelsStub(channel)
            assert stub.Register(wanted).version == stub.Register(wanted).version == "1"
        with sync_channel(service.rpc, token="wrong") as channel, pytest.raises(Unauthenticated):
            gateway_pb2_grpc.ModelsStub(channel).Register(wanted)
        service.serves("tiny")
        assert predictions(service) == [3.5]
        assert service.process is not None
        children = psutil.Process(service.process.pid).children()
        assert len(children) == 1
        service.end(signal.SIGKILL)
        until(lambda: not children[0].is_running())     # the model server ends with its gateway
        service.start()
        until(lambda: service.answers("/readyz"), timeout_s=240.0)
        service.serves("tiny")
        assert predictions(service) == [3.5]
        page = httpx.get(service.url, timeout=10.0).text
        assert "tiny" in page and "/docs" in page
        assert "recmesh_gateway_infer_seconds" in httpx.get(f"{service.url}/metrics", timeout=10.0).text
        assert service.end(signal.SIGTERM) == 0


def register(service: Service, folder: Path) -> str:
    """The version that the model of this folder got."""
    wanted = gateway_pb2.RegisterRequest(name="tiny", uri=str(folder), framework="torch", load=True)
    with sync_channel(service.rpc, token=TOKEN) as channel:
        version: str = gateway_pb2_grpc.ModelsStub(channel).Register(wanted).version
    return version


@pytest.mark.long
def test_what_one_gateway_is_told_another_one_does_too_and_no_request_fails(tmp_path: Path, nats: NatsServer) -> None:
    folders = [torch_model(tmp_path / f"storage/models/tiny/{bias}", bias=bias) for bias in (0, 10)]
    traffic = "/v1/models/tiny/traffic"
    with running(Service(tmp_path, nats)) as first, running(Service(tmp_path, nats)) as second:
        register(first, folders[0])
        for service in (first, second):
            service.serves("tiny")
            assert predictions(service) == [3.5]
        register(second, folders[1])             # the new version takes the place of the old one in both
        for service in (second, first):
            while (answer := predictions(service)) != [13.5]:
                assert answer == [3.5]
        rules = {"versions": "all", "weights": {"1": 1, "2": 0}}
        assert httpx.put(second.url + traffic, json=rules, timeout=30.0).status_code == 200
        for service in (first, second):
            until(lambda service=service: predictions(service) == [3.5], timeout_s=240.0)  # type: ignore[misc]  # a lambda with a default
            assert httpx.get(service.url + traffic, timeout=10.0).json()["weights"] == {"1": 1.0, "2": 0.0}
        first.end(signal.SIGKILL)                # whatever it knew: the other one has it, and goes on
        assert httpx.put(second.url + traffic, json={"versions": "all"}, timeout=30.0).status_code == 200
        assert predictions(second) == [3.5]      # of all, the one that was loaded last
        reply = httpx.post(f"{second.url}/v2/repository/models/tiny/unload", json={}, timeout=60.0)
        assert reply.status_code == 200
        first.start()
        until(lambda: first.answers("/readyz"), timeout_s=240.0)
        assert httpx.get(f"{first.url}/v2/models/tiny/ready", timeout=10.0).status_code != 200
        assert httpx.post(f"{first.url}/v2/repository/models/tiny/load", json={}, timeout=240.0).status_code == 200
        until(lambda: second.answers("/v2/models/tiny/ready"), timeout_s=240.0)
        assert predictions(second) == [13.5]


@pytest.mark.long
def test_a_taken_port_and_a_missing_key_end_with_one_clear_line(tmp_path: Path, nats: NatsServer) -> None:
    with running(Service(tmp_path, nats)) as service:
        second = Service(tmp_path, nats, RECMESH_HTTP_ADDRESS=service.http)
        second.start()
        code, said = second.ended()
        assert code == 75
        assert f"{service.http} is already in use" in said
    open_one = Service(tmp_path, nats, RECMESH_HTTP_ADDRESS="0.0.0.0:0")
    open_one.start()
    code, said = open_one.ended()
    assert code == 78
    assert "RECMESH_PUBLIC_API_KEY must be set" in said


@pytest_asyncio.fixture
async def bus(nats: NatsServer) -> AsyncIterator[Bus]:
    made = Bus(nats.url, "jobmaster")
    await made.start()
    yield made
    await made.stop()


@pytest.mark.asyncio
async def test_a_job_s_events_are_listed_and_streamed_from_where_a_reader_left(tmp_path: Path, bus: Bus) -> None:
    def scaled(job_id: str, replicas: int) -> Event[catalog.JobScaled]:
        data = catalog.JobScaled(role="worker", from_replicas=1, to_replicas=replicas)
        return Event(catalog.JOB_SCALED, job_id, data)

    for number, job_id in enumerate(["a", "b", "a", "a"]):
        await bus.publish(scaled(job_id, number))
    history = JobHistory(bus)
    async with http(gateway(tmp_path), events=history) as client:
        listed = (await client.get("/v1/jobs/a/events")).json()["events"]
        rest = (await client.get(f"/v1/jobs/a/events?after={listed[0]['sequence']}&limit=1")).json()["events"]
    assert [item["type"] for item in listed] == ["job.scaled"] * 3
    assert rest == listed[1:2]
    live = history.live("a", after=listed[1]["sequence"])
    assert await anext(live) == listed[2]
    await bus.publish(scaled("a", 9))
    newest = await anext(live)
    assert newest is not None and newest["data"]["to_replicas"] == 9
    await live.aclose()
