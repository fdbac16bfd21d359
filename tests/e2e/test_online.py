"""Online jobs on the composed mesh: workers follow what comes in on a topic, without a stop, and every event is trained
once whatever comes and goes."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.test_topics import Clicks, topic_job
from tests.support.waiting import until
from tests.support.whole_mesh import STEP_S, WholeMesh

pytestmark = [pytest.mark.integration, pytest.mark.e2e]
BATCH_S = 0.5
"""Of a step of 50 events: a worker trains 100 events/s, whatever else the machine does."""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeMesh]:
    made = WholeMesh(tmp_path_factory.mktemp("online"))
    made.home.root.mkdir(parents=True)
    try:
        made.home.config_file.write_text('[env]\nRECMESH_CORES = "4"\n')    # whatever else the machine does
        made.up()
        yield made
    finally:
        made.down()


class Traffic:
    """Sends `rate` events per second until it is closed."""

    def __init__(self, topic: Clicks) -> None:
        self.rate, self._topic, self._over = 0, topic, threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._over.wait(0.5):
            self._topic.send(self.rate // 2)


def online(mesh: WholeMesh, topic: Clicks, **scaling: Any) -> dict[str, Any]:
    spec = topic_job(mesh, topic, step_s=BATCH_S)
    spec["data"]["task_rows"] = 50
    spec["roles"]["ps"] = {"replicas": 1, "cpu": 0.5}
    spec["roles"]["worker"] |= {"replicas": None, "min": 1, "max": 3, "cpu": 0.5}
    spec["scaling"] = {
        "planner": "kale", "step_s": 10, "horizon_s": 60, "hold_s": 10, "lag_slo_s": 20, "drain_s": 20,
    } | scaling
    return spec


def running(mesh: WholeMesh, job_id: str) -> int:
    return sum((item.role, item.state) == ("worker", "running") for item in mesh.job(job_id).roles)


def decided(mesh: WholeMesh, job_id: str) -> list[str]:
    told = [event.data for event in mesh.events(job_id, "job.decided")]
    return [item["decided"] for item in told if item["matter"] == "demand"]


@pytest.mark.long
def test_workers_come_with_the_traffic_and_go_with_it(mesh: WholeMesh) -> None:
    topic = Clicks(mesh, "tides")
    topic.make()
    with Traffic(topic) as traffic:
        traffic.rate = 40
        job_id = mesh.submit(online(mesh, topic))
        until(lambda: mesh.job(job_id).progress.samples >= 50, timeout_s=STEP_S)
        traffic.rate = 240
        until(lambda: running(mesh, job_id) == 3, timeout_s=STEP_S, poll_s=0.5)
        explained = mesh.asked(lambda client: client.plan(job_id))
        assert explained["look"]["planner"] == "kale" and len(explained["look"]["schedule"]) == 6
        assert explained["look"]["why"]
        traffic.rate = 20
        until(lambda: running(mesh, job_id) == 1, timeout_s=2 * STEP_S, poll_s=0.5)
    until(lambda: mesh.job(job_id).progress.samples == topic.sent, timeout_s=STEP_S)
    lines = [line.split(" (")[0] for line in decided(mesh, job_id)]
    assert any(line.endswith("→ 3") for line in lines) and lines[-1].endswith("→ 1")
    assert not mesh.events(job_id, "job.rolled_back"), "nothing was stopped for it"
    mesh.ok("stop", job_id)
    assert mesh.ended(job_id).progress.samples == topic.sent


@pytest.mark.long
def test_a_dry_run_says_what_it_would_do_and_does_nothing(mesh: WholeMesh) -> None:
    topic = Clicks(mesh, "drizzle")
    topic.make()
    with Traffic(topic) as traffic:
        traffic.rate = 240
        job_id = mesh.submit(online(mesh, topic, dry_run=True))
        until(lambda: decided(mesh, job_id) != [], timeout_s=STEP_S)
        assert decided(mesh, job_id)[0].startswith("would be worker ")
        sent = mesh.job(job_id).progress.samples
        until(lambda: mesh.job(job_id).progress.samples >= sent + 1_000, timeout_s=STEP_S)
        assert not mesh.events(job_id, "job.scaled")
    mesh.ok("stop", job_id)


def test_scaling_without_topics_is_refused(mesh: WholeMesh) -> None:
    spec = topic_job(mesh, Clicks(mesh, "none"))
    files = {"files": [str(mesh.folder / "tiny" / "*.parquet")]}
    spec["data"] = {"source": files, "features": spec["data"]["features"]}
    spec["scaling"] = {}
    refused = mesh.run("submit", mesh.write("files.json", json.dumps(spec)))
    assert refused.returncode != 0 and "scaling" in refused.stderr and "topics" in refused.stderr
