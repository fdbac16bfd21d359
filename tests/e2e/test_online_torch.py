"""An online job whose model is MMoE in torch, on a topic with skewed partitions: two labels, workers and parameter
servers that come and go while it trains."""

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg

from recmesh.cli.mesh import state
from tests.e2e.test_online import Traffic, running
from tests.e2e.test_topics import Clicks
from tests.support.waiting import until
from tests.support.whole_mesh import STEP_S, WholeMesh

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.long]
BATCH, BATCH_S = 64, 0.32
"""A worker trains 200 events/s, whatever else the machine does."""
LOW, HIGH = 60, 320
"""Events per second: one worker is enough; two are needed."""

MODEL = '''"""MMoE of the zoo, at a steady pace."""

import time

from recmesh.zoo.torch.mmoe import main as train


class Paced:
    """The session; a step takes `step_s` at least."""

    def __init__(self, session, step_s):
        self._session, self._step_s = session, step_s

    def __getattr__(self, name):
        return getattr(self._session, name)

    def steps(self):
        due = 0.0
        for step in self._session.steps():
            time.sleep(max(0.0, due - time.monotonic()))
            due = time.monotonic() + self._step_s
            yield step


def main(job):
    """Trains it."""
    job.session = Paced(job.session, job.params.pop("step_s"))
    train(job)
'''


class Views(Clicks):
    """Eight partitions, seven of ten events in the first; what is clicked, and bought, depends on the item."""

    partitions = 8

    def event(self, number: int) -> dict[str, Any]:
        draw = random.Random(number)
        item = draw.randrange(40)
        clicked, bought = (draw.random() < (0.8 if item % of == 0 else 0.2) for of in (2, 5))
        return {"item": item, "hour": draw.randrange(24), "clicked": int(clicked), "bought": int(bought)}


class Heard:
    """`job.measured` of all jobs, from the bus: it is too frequent for the history."""

    def __init__(self, mesh: WholeMesh) -> None:
        self.minutes: list[dict[str, Any]] = []
        self._mesh, self._over = mesh, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)

    def __enter__(self) -> "Heard":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    async def _listen(self) -> None:
        port = state.load(self._mesh.home.mesh_file).ports["nats"]
        connection = await nats.connect(f"nats://127.0.0.1:{port}", token=self._mesh.home.secrets()["nats"])
        await connection.subscribe("recmesh.v1.jobmaster.job.measured.>", cb=self._hear)
        await asyncio.to_thread(self._over.wait)
        await connection.close()

    async def _hear(self, message: Msg) -> None:
        self.minutes.append(json.loads(message.data))

    def auc(self, label: str) -> list[float]:
        """By minute; those without are left out."""
        return [minute["auc"][label] for minute in self.minutes if label in minute["auc"]]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeMesh]:
    made = WholeMesh(tmp_path_factory.mktemp("views"))
    made.home.root.mkdir(parents=True)
    try:
        made.home.config_file.write_text('[env]\nRECMESH_CORES = "8"\n')    # whatever else the machine does
        made.up()
        yield made
    finally:
        made.down()


def views_job(mesh: WholeMesh, topic: Views) -> dict[str, Any]:
    code = mesh.folder / "paced_mmoe"
    code.mkdir()
    (code / "paced_mmoe.py").write_text(MODEL)
    return {
        "name": topic.name,
        "model": {
            "entrypoint": "paced_mmoe:main", "code": str(code),
            "params": {
                "embedding_dim": 4, "experts": 2, "expert_hidden": [8], "tower_hidden": [4], "step_s": BATCH_S,
            },
        },
        "data": {
            "streams": [{"sources": [{
                "jetstream": f"{topic.name}-*", "start": "earliest",
                "types": dict.fromkeys(("item", "hour", "clicked", "bought"), "int"),
            }]}],
            "labels": ["clicked", "bought"], "features": [{"name": "item"}, {"name": "hour"}], "task_rows": BATCH,
        },
        "training": {
            "batch_size": BATCH, "shard_batches": 2, "optimizer": {"kind": "adagrad", "lr": 0.1},
        },
        "roles": {"ps": {"min": 1, "max": 2, "cpu": 0.5}, "worker": {"min": 1, "max": 2, "cpu": 0.5}},
        "scaling": {
            "planner": "kale", "step_s": 10, "horizon_s": 40, "hold_s": 10, "lag_slo_s": 20, "drain_s": 20,
            "workers_per_ps": 1,
        },
        "checkpoint": {"every_s": 5, "keep": 1},
        "export": None,
    }


def of_role(mesh: WholeMesh, job_id: str, role: str) -> int:
    return sum((item.role, item.state) == (role, "running") for item in mesh.job(job_id).roles)


def test_workers_and_servers_come_and_go_while_mmoe_learns_two_labels(mesh: WholeMesh) -> None:
    topic = Views(mesh, "views")
    topic.make()
    with Heard(mesh) as heard, Traffic(topic) as traffic:
        traffic.rate = LOW
        job_id = mesh.submit(views_job(mesh, topic))
        until(lambda: mesh.job(job_id).progress.samples >= BATCH, timeout_s=STEP_S)
        until(lambda: running(mesh, job_id) == 1, timeout_s=STEP_S, poll_s=0.5)
        traffic.rate = HIGH
        until(lambda: running(mesh, job_id) == 2 == of_role(mesh, job_id, "ps"), timeout_s=STEP_S, poll_s=0.5)
        until(lambda: _slots_have_moved(mesh, job_id), timeout_s=STEP_S, poll_s=0.5)
        traffic.rate = LOW // 3
        until(lambda: running(mesh, job_id) == 1 == of_role(mesh, job_id, "ps"), timeout_s=2 * STEP_S, poll_s=0.5)
        until(lambda: any(value > 0.6 for value in heard.auc("clicked")), timeout_s=STEP_S)
        until(lambda: any(value > 0.6 for value in heard.auc("bought")), timeout_s=STEP_S)
    until(lambda: mesh.job(job_id).progress.samples == topic.sent, timeout_s=STEP_S)
    counts = [(event.data["role"], event.data["to_replicas"]) for event in mesh.events(job_id, "job.scaled")]
    for role in ("worker", "ps"):
        held = [count for name, count in counts if name == role]
        assert (2, 1) in pairwise(held), "backlog of a slow machine may call for the second once more"
    assert not mesh.events(job_id, "job.rolled_back"), "nothing was stopped for it"
    assert mesh.job(job_id).gen == 1
    mesh.ok("stop", job_id)
    assert mesh.ended(job_id).progress.samples == topic.sent


def _slots_have_moved(mesh: WholeMesh, job_id: str) -> bool:
    return bool(mesh.events(job_id, "job.slots_moved"))
