"""The whole mesh is updated while a job trains and a model is asked: one service after another ends (SIGTERM) and its
next version takes its place, so that for a while any two are one version apart.

The next version says more than this one knows, wherever it may (`tests/support/next_version.py`). Requests go through
what a Service of Kubernetes is to its callers (`tests/support/balancer.py`), and are not repeated.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest

from recmesh.client.rest import Client
from recmesh.runtime.bus import Bus
from recmesh.runtime.events import Event, catalog
from tests.support import next_version
from tests.support.balancer import Balancer
from tests.support.oip_models import torch_model
from tests.support.service_process import ServiceProcess
from tests.support.tiny_jobs import ROWS, tiny_job
from tests.support.training_mesh import TrainingMesh
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.long]

SERVICES = ("forecaster", "brain", "shardsvc", "ckptcache", "jobmaster")
NEXT = ("-m", "tests.support.next_version")
EPOCHS = 40
ASKED = {
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.5]},
        {"name": "id", "datatype": "INT64", "shape": [1], "data": [2]},
    ]
}


class Mesh(TrainingMesh):
    """All services, and two gateways."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, services=SERVICES, RECMESH_GATEWAY_LINGER_S="1.5", RECMESH_GATEWAY_PEER_WAIT_S="50")
        for name in SERVICES:
            address = self.env[f"RECMESH_{name.upper()}_RPC"]
            database = {"RECMESH_DATABASE_URL": f"sqlite:///{folder}/{name}.sqlite"}
            self.services[name] = ServiceProcess(
                name, folder, env=self.env | {"RECMESH_RPC_ADDRESS": address} | database
            )
        self.gateways = [self.gateway(f"gateway-{n}") for n in range(2)]

    def gateway(self, place: str, *, program: tuple[str, ...] = ()) -> ServiceProcess:
        """A replica, not started yet; all have the same storage and a folder each."""
        folder = self.folder / place
        folder.mkdir(exist_ok=True)
        return ServiceProcess("gateway", folder, env=self.env, program=program)

    def start(self) -> None:
        """Servers first, then services, all at once."""
        self.nats.start()
        self.valkey.start()
        everyone = [*self.services.values(), *self.gateways]
        with ThreadPoolExecutor(len(everyone)) as pool:
            list(pool.map(ServiceProcess.start, everyone))

    def close(self) -> None:
        """Nothing of it runs any more."""
        for item in self.gateways:
            item.kill()
        super().close()


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    made = Mesh(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.close()


class Callers:
    """Requests without a pause between them, none repeated: half on connections that stay, half on new ones."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answered = 0
        self.failed: list[str] = []
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(keep,)) for keep in (True, False)]

    def __enter__(self) -> "Callers":
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for each in self._threads:
            each.join()

    def _call(self, keep: bool) -> None:
        client = httpx.Client(base_url=self.url, timeout=30.0, trust_env=False)
        while not self._done.wait(0.02):
            try:
                answer = client.post("/v2/models/tiny/infer", json=ASKED)
                if answer.status_code != 200 or answer.json()["outputs"][0]["data"] != [3.5]:
                    self.failed.append(f"{time.time():.2f} {answer.status_code} {answer.text[:300]}")
                self.answered += 1
            except httpx.HTTPError as error:
                self.failed.append(f"{time.time():.2f} {type(error).__name__}: {error}")
            if not keep:
                client.close()
                client = httpx.Client(base_url=self.url, timeout=30.0, trust_env=False)
        client.close()


def long_job(mesh: Mesh) -> dict[str, Any]:
    """Trains until the file `hurry` is there, and then as fast as it can."""
    spec = tiny_job(mesh, "through-it-all", epochs=EPOCHS)
    code = mesh.folder / "tiny" / "tiny.py"
    text = code.read_text()
    code.write_text(text.replace("due + STEP_S,", 'due + (0 if os.path.exists(os.environ["HURRY"]) else STEP_S),'))
    spec["roles"]["worker"]["env"] = {"STEP_S": "0.25", "HURRY": str(mesh.folder / "hurry")}
    spec["checkpoint"] = {"every_s": 2, "keep": 3}
    return spec


def refused_command(mesh: Mesh, name: str) -> None:
    """A command as any program with a NATS client sends it: a job that cannot be."""
    async def send() -> None:
        bus = Bus(mesh.nats.url, "test")
        await bus.start()
        await bus.publish(Event(catalog.JOB_SUBMIT, name, catalog.JobSubmit(spec={"name": name})))
        await bus.stop()

    asyncio.run(send())


def streams(mesh: Mesh) -> tuple[dict[str, int], int]:
    """How often each command was refused; and how many events were given up."""
    async def read() -> tuple[dict[str, int], int]:
        link = await nats.connect(mesh.nats.url)
        stream = link.jetstream()
        found: dict[str, int] = {}
        reader = await stream.subscribe("recmesh.v1.jobmaster.job.refused.*", ordered_consumer=True)
        while True:
            try:
                message = await reader.next_msg(timeout=1.0)
            except nats.errors.TimeoutError:
                break
            name = message.subject.rpartition(".")[2]
            found[name] = found.get(name, 0) + 1
        dead = (await stream.stream_info("RECMESH_DEAD")).state.messages
        await link.close()
        return found, dead

    return asyncio.run(read())


def version(process: ServiceProcess) -> str:
    """What its page says."""
    address = process.address("http" if process.name == "gateway" else "ops")
    return next_version.VERSION if next_version.VERSION in httpx.get(address, timeout=10.0).text else "this"


def test_a_rolling_update_of_the_whole_mesh_loses_no_job_no_request_and_no_command(mesh: Mesh) -> None:
    folder = torch_model(mesh.storage / "models" / "tiny" / "1")
    urls = [item.address("http") for item in mesh.gateways]
    with Client(urls[0]) as first, Client(urls[1]) as second:
        first.register_model({"name": "tiny", "uri": str(folder), "framework": "torch"})
        for each in (first, second):
            each.load_model("tiny")
        job_id = first.submit(long_job(mesh)).job_id
    mesh.until_job(job_id, lambda job: job.progress.samples > 0)
    with Balancer(urls) as balancer:
        until(lambda: len(balancer.ready()) == 2)
        with Client(balancer.url, timeout_s=60.0) as client, Callers(balancer.url) as callers:
            told = 0

            def use(name: str) -> None:
                """What a user does meanwhile, once; `name` is being replaced."""
                nonlocal told
                refused_command(mesh, f"no-job-{name}")
                assert client.tell_rates("shop", [(told * 60.0, 5.0)], step_s=60.0) == 1
                told += 1
                assert client.job(job_id).phase == "Running"

            for name in SERVICES:
                old = mesh.services[name]
                assert old.stop() == 0, old.log_path.read_text()[-2000:]
                mesh.services[name] = old.as_program(*NEXT, name)
                with ThreadPoolExecutor(1) as pool:
                    using = pool.submit(use, name)      # while it is away
                    mesh.services[name].start()
                    using.result(120)
                assert version(mesh.services[name]) == next_version.VERSION
            for place, gone in enumerate(list(mesh.gateways)):
                fresh = mesh.gateway(f"next-{place}", program=(*NEXT, "gateway"))
                mesh.gateways.append(fresh)
                balancer.add(fresh.start().address("http"))
                until(partial(balancer.routes_to, fresh.address("http")), timeout_s=120)
                routed_no_more = threading.Thread(target=balancer.remove, args=(gone.address("http"),))
                routed_no_more.start()
                assert gone.stop() == 0, gone.log_path.read_text()[-2000:]
                routed_no_more.join()
                use(f"gateway-{place}")
            back = mesh.services["brain"]               # an update that is taken back: the database is a newer one's
            assert back.stop() == 0
            mesh.services["brain"] = back.as_program("-m", "services.brain").start()
            assert version(mesh.services["brain"]) != next_version.VERSION
            use("brain-again")
            assert client.job(job_id).phase == "Running", "the job was over before the update was"
            (mesh.folder / "hurry").touch()
            job = mesh.until_phase(job_id, "Succeeded")
            points = client.rates("shop", limit=1000)["points"]
    assert job.progress.samples == job.progress.total == ROWS * EPOCHS
    assert job.gen == 1 and {role.restarts for role in job.roles} <= {0}
    assert callers.failed == [] and balancer.unanswered == 0
    assert callers.answered > 100
    assert len(points) == told
    refused, dead = streams(mesh)
    assert refused == {f"no-job-{name}": 1 for name in (*SERVICES, "gateway-0", "gateway-1", "brain-again")}
    assert dead == len(refused), "what was refused is put aside, and nothing else was given up"
