"""Jobs on a topic of the mesh's own NATS: events that come while they train, and processes that die then."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as Connection
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from recmesh.cli.mesh import state
from recmesh.client import Client
from tests.support.oip_models import torch_model
from tests.support.servers import NatsServer, nats_server
from tests.support.tiny_jobs import tiny_job
from tests.support.waiting import until
from tests.support.whole_mesh import STEP_S, WholeMesh, role

pytestmark = [pytest.mark.integration, pytest.mark.e2e]
PARTITIONS = 3
TOKEN = "of-a-server-of-ones-own"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeMesh]:
    made = WholeMesh(tmp_path_factory.mktemp("topics"))
    made.home.root.mkdir(parents=True)
    (made.home.root / "config.toml").write_text(f'[env]\nRECMESH_TOPICS_CLICKS = "{TOKEN}"\n')
    try:
        made.up()
        yield made
    finally:
        made.down()


class Clicks:
    """A topic of several partitions, of which the first has most of the traffic."""

    partitions = PARTITIONS

    def __init__(self, mesh: WholeMesh, name: str, *, server: NatsServer | None = None) -> None:
        """`server`: not the mesh's own."""
        self.name, self.sent, self._mesh, self._server = name, 0, mesh, server

    async def _connect(self) -> Connection:
        if self._server is not None:
            return await nats.connect(self._server.url, token=TOKEN)
        port = state.load(self._mesh.home.mesh_file).ports["nats"]
        return await nats.connect(f"nats://127.0.0.1:{port}", token=self._mesh.home.secrets()["nats"])

    def make(self) -> None:
        asyncio.run(self._make())

    async def _make(self) -> None:
        connection = await self._connect()
        for partition in range(self.partitions):
            await connection.jetstream().add_stream(
                name=f"{self.name}-{partition}", subjects=[f"{self.name}.{partition}"], allow_direct=True
            )
        await connection.close()

    def send(self, count: int) -> None:
        asyncio.run(self._send(count))

    async def _send(self, count: int) -> None:
        connection = await self._connect()
        stream = connection.jetstream()
        waiting = [await self._one(stream, number) for number in range(self.sent, self.sent + count)]
        await asyncio.gather(*waiting)
        await connection.close()
        self.sent += count

    async def _one(self, stream: JetStreamContext, number: int) -> "asyncio.Future[Any]":
        partition = 0 if number % 10 < 7 else 1 + number % (self.partitions - 1)
        return await stream.publish_async(f"{self.name}.{partition}", json.dumps(self.event(number)).encode())

    def event(self, number: int) -> dict[str, Any]:
        return {"number": float(number), "item": number % 97, "label": float(number % 2), "beside": "not needed"}

    def offsets(self, group: str) -> dict[str, int]:
        """What the group has committed, by stream."""
        return asyncio.run(self._offsets(group))

    async def _offsets(self, group: str) -> dict[str, int]:
        connection = await self._connect()
        try:
            bucket = await connection.jetstream().key_value("recmesh_offsets")
            streams = [f"{self.name}-{partition}" for partition in range(PARTITIONS)]
            return {stream: int((await bucket.get(f"{group}.{stream}")).value or b"0") for stream in streams}
        except NotFoundError:
            return {}
        finally:
            await connection.close()


def topic_job(mesh: WholeMesh, topic: Clicks, *, step_s: float = 0.0, **more: Any) -> dict[str, Any]:
    spec = tiny_job(mesh, topic.name)
    source = {
        "jetstream": f"{topic.name}-*", "start": "earliest",
        "types": {"number": "float", "item": "int", "label": "float"},
    }
    spec["data"] = {"streams": [{"sources": [source | more]}], "features": spec["data"]["features"], "task_rows": 200}
    spec["roles"]["worker"]["env"] = {"STEP_S": str(step_s)}
    spec["checkpoint"] = {"every_s": 1, "keep": 1}      # so that the oldest snapshot soon has all
    return spec


@pytest.mark.long
def test_every_event_is_trained_once_whatever_dies_while_it_comes(mesh: WholeMesh) -> None:
    topic = Clicks(mesh, "clicks")
    topic.make()
    topic.send(3_000)
    job_id = mesh.submit(topic_job(mesh, topic, step_s=0.02, group="ads"))
    until(lambda: mesh.job(job_id).progress.samples >= 500, timeout_s=STEP_S)
    os.kill(int(role(mesh.job(job_id), "worker", 0).handle), signal.SIGKILL)
    topic.send(500)
    mesh.kill("shardsvc")
    topic.send(500)
    before = mesh.job(job_id)
    os.kill(int(role(before, "ps", 1).handle), signal.SIGKILL)
    until(lambda: mesh.job(job_id).gen > before.gen, timeout_s=STEP_S)
    mesh.kill("nats")
    until(lambda: mesh.job(job_id).progress.samples >= 2_000, timeout_s=STEP_S)
    mesh.kill("valkey")
    topic.send(1_000)
    until(lambda: mesh.job(job_id).progress.samples == topic.sent, timeout_s=STEP_S)
    until(lambda: mesh.job(job_id).progress.lag_messages == 0, timeout_s=STEP_S)
    progress = mesh.job(job_id).progress
    assert (progress.partitions, progress.total) == (PARTITIONS, 0)
    assert "none" in next(line for line in mesh.ok("describe", job_id).splitlines() if line.startswith("Lag"))
    until(lambda: sum(topic.offsets("ads").values()) == topic.sent + PARTITIONS, timeout_s=STEP_S)
    mesh.ok("stop", job_id)
    job = mesh.ended(job_id)
    assert (job.phase, job.progress.samples) == ("Stopped", topic.sent)
    following = mesh.submit(topic_job(mesh, topic, start="group", group="ads") | {"name": "following"})
    topic.send(200)
    until(lambda: mesh.job(following).progress.samples >= 200, timeout_s=STEP_S)
    mesh.ok("stop", following)
    assert mesh.ended(following).progress.samples == 200, "it went on where the other job had come to"


@pytest.mark.long
def test_a_topic_of_another_server_is_read_by_a_variable_that_workers_are_given_too(
    mesh: WholeMesh, tmp_path: Path
) -> None:
    with nats_server(tmp_path / "nats", token=TOKEN) as server:
        topic = Clicks(mesh, "elsewhere", server=server)
        topic.make()
        topic.send(600)
        address = server.url.replace("nats://", "nats://${RECMESH_TOPICS_CLICKS}@")
        job_id = mesh.submit(topic_job(mesh, topic, servers=address))
        until(lambda: mesh.job(job_id).progress.samples == topic.sent, timeout_s=STEP_S)
        mesh.ok("stop", job_id)
        assert mesh.ended(job_id).progress.samples == topic.sent
        assert TOKEN not in mesh.ok("describe", job_id, "--json")


def test_a_topic_that_is_not_there_is_refused(mesh: WholeMesh) -> None:
    spec = topic_job(mesh, Clicks(mesh, "nothing"))
    refused = mesh.run("submit", mesh.write("nothing.json", json.dumps(spec)))
    assert refused.returncode != 0 and "nothing-*" in refused.stderr


@pytest.mark.long
def test_what_a_model_answered_is_trained_with_what_became_of_it(mesh: WholeMesh) -> None:
    """The loop: raw columns are served and logged, labels posted, both joined, and a job trains on the samples."""
    folder = torch_model(mesh.home.storage / "models" / "served" / "1")
    card = json.loads((folder / "model.json").read_text())
    features = [{"name": "id", "column": "item", "buckets": 50}, {"name": "x", "kind": "dense", "column": "number"}]
    card["transform"] = {"version": 1, "features": features, "int_columns": []}
    (folder / "model.json").write_text(json.dumps(card))
    with Client.find(home=mesh.home.root) as client:
        client.register_model(
            {"name": "served", "uri": str(folder), "framework": "torch", "serving": {"log": {"topic": "shown"}}}
        )
        until(lambda: client.model("served")[-1].state == "ready", timeout_s=STEP_S)
        for number in range(300):
            answer = client.predict("served", [{"item": number, "number": number / 2}], request_id=f"r{number}")
            assert answer["outputs"][0]["data"] == [number % 50 + number / 2]
    labels = "\n".join(json.dumps({"id": f"r{number}", "value": number % 2}) for number in range(200))
    for _ in range(2):
        assert mesh.ok("label", "--file", mesh.write("labels.jsonl", labels)).startswith("200 labels are stored")
    join = {
        "name": "loop", "window": "10m", "label": "label", "topic": {"topic": "joined"},
        "samples": {"topic": "shown", "key": "recmesh_id"},
        "labels": {"topic": "labels", "key": "id", "value": "value"},
    }
    counts = json.loads(mesh.ok("join", mesh.write("loop.json", json.dumps(join)), "--to-end", "--json"))
    assert (counts["labelled"], counts["defaulted"], counts["orphan"]) == (200, 100, 0)
    job_id = mesh.submit(topic_job(mesh, Clicks(mesh, "joined")))
    until(lambda: mesh.job(job_id).progress.samples == 300, timeout_s=STEP_S)
    mesh.ok("stop", job_id)
    assert mesh.ended(job_id).progress.samples == 300
