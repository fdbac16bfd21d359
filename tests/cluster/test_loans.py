"""Room of a worker's pod that an HN's pod has through a forecast peak: lent by a TrainingJob, and returned."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from recmesh.client.rest import Client
from recmesh.runtime.errors import MeshError
from tests.cluster.jobs import FLIGHTS, TrainedJob, training_job
from tests.cluster.mesh import READY_S, Mesh
from tests.support.split_models import expected, torch_model
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
JOB, MODEL = "lends", "loaned"
FOLDER, FILE = "/storage/loaned", "/storage/datasets/lends.parquet"
POOL = {
    "own": 1, "most": 1, "drain_s": 40, "start_s": 40, "return_s": 20, "hold_s": 10, "notice_s": 10, "slack_s": 120,
    "step_s": 1, "unit": {"cpu": 0.25},
}  # fmt: skip
SEASON_S, PEAK_S, STEP_S, AHEAD_S = 900.0, 60.0, 10.0, 90.0
"""Of rates: as in tests/e2e/test_loans.py."""
PEAK_PER_S = 4000.0
"""Some times what an HN bears. It does not come: the more was told, the longer nothing is certain afterwards."""
LOOKS_S = 30.0
"""Over several of the gateway's, one each 10 s, it is learned what a request takes."""


class Asking:
    """Requests one after another, and those that were not answered rightly."""

    def __init__(self, mesh: Mesh) -> None:
        self.count, self.failures = 0, list[str]()
        self._mesh, self._ended = mesh, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Asking":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)

    def _run(self) -> None:
        asked = {"inputs": [
            {"name": "id", "datatype": "INT64", "shape": [1], "data": [7]},
            {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]},
        ]}  # fmt: skip
        with self._mesh.client() as client:
            while not self._ended.wait(0.1):
                try:
                    answer = client.infer(MODEL, asked)["outputs"][0]["data"]
                    self.failures += [] if answer == [expected(7, 1.0)] else [str(answer)]
                except MeshError as error:
                    self.failures.append(error.message)
                self.count += 1


def asked(mesh: Mesh, question: Callable[[Client], Any]) -> Any:
    """The answer; brain is replaced meanwhile."""
    found: list[Any] = []

    def answers() -> bool:
        try:
            with mesh.client() as client:
                found[:] = [question(client)]
        except MeshError:
            return False
        return True

    until(answers, timeout_s=READY_S, poll_s=1)
    return found[0]


def pool(mesh: Mesh) -> dict[str, Any]:
    found: dict[str, Any] = asked(mesh, lambda client: client.loans()["pool"])
    return found


def hns(mesh: Mesh) -> set[str]:
    """Pods of the model's HNs that have their node and do not end."""
    return {
        item["metadata"]["name"] for item in mesh.get("pods", labels="recmesh.dev/kind=hn")["items"]
        if item["metadata"]["name"].startswith(f"{MODEL}-") and "deletionTimestamp" not in item["metadata"]
        and item["status"].get("phase") == "Running"
    }  # fmt: skip


def decided(mesh: Mesh) -> tuple[int, int]:
    """How many workers the job had, and has for the loan: as it was told, for it tries other counts beside."""
    told = [event.data for event in asked(mesh, lambda client: client.events(JOB)) if event.type == "job.decided"]
    [line] = [each["decided"] for each in told if each["matter"] == "loan"]
    found = re.fullmatch(r"worker (\d+) → (\d+): it lends 1, 1 are lent now", line)
    assert found, line
    return int(found[1]), int(found[2])


@pytest.fixture
def lends(mesh: Mesh, tmp_path: Path) -> Iterator[TrainedJob]:
    """brain may lend, a model serves, a job of two workers trains; all of it is gone at the end."""
    mesh.kubectl("set", "env", "deploy/brain", f"RECMESH_LOANS={json.dumps(POOL)}")
    job = TrainedJob(mesh, JOB)
    try:
        mesh.kubectl("exec", "deploy/shardsvc", "--", "mkdir", "-p", "/storage/datasets", FOLDER)
        storage = mesh.pods("shardsvc")[0]["metadata"]["name"]
        mesh.kubectl("cp", str(FLIGHTS / "flights.parquet"), f"{storage}:{FILE}")
        mesh.kubectl("cp", str(torch_model(tmp_path / "1", post=True)), f"{storage}:{FOLDER}/1")
        mesh.kubectl("rollout", "status", "deploy/brain", "--timeout=100s")
        serving = {"split": "always", "scaling": {"hn": {"min": 1, "max": 2}, "hold_s": 10}}
        registered = {"name": MODEL, "uri": f"{FOLDER}/1", "framework": "torch", "serving": serving}
        asked(mesh, lambda client: client.register_model(registered))
        thing = training_job(
            JOB, ps={"replicas": 1, "cpu": "200m", "memory": "768Mi"},
            worker={"min": 1, "max": 3, "cpu": "250m", "memory": "1Gi", "memory_max": "2Gi"},
        )  # fmt: skip
        thing["spec"]["data"]["source"]["files"] = [FILE]
        thing["spec"] |= {"export": {"serve": False}, "priority": -10}    # before other jobs of the mesh
        del thing["spec"]["evaluation"]
        job.apply(thing)
        job.until(lambda: job.samples() > 0 and len(job.pods()) > 1)
        until(lambda: asked(mesh, lambda client: client.model(MODEL))[-1].state == "ready", timeout_s=READY_S, poll_s=1)
        yield job
    finally:
        mesh.kubectl("set", "env", "deploy/brain", "RECMESH_LOANS-")
        mesh.kubectl("delete", "tj", JOB, "--ignore-not-found", "--timeout=100s")
        mesh.kubectl("exec", "deploy/shardsvc", "--", "rm", "-rf", FOLDER, FILE)
        mesh.kubectl("rollout", "status", "deploy/brain", "--timeout=100s")
        with suppress(MeshError), mesh.client() as client:      # it may not have come so far
            client.unload_model(MODEL)


def test_an_hns_pod_has_the_room_of_a_workers_pod_through_a_peak_and_gives_it_back(
    mesh: Mesh, lends: TrainedJob
) -> None:
    with Asking(mesh) as requests:
        time.sleep(LOOKS_S)
        first = hns(mesh)
        now = time.time()
        peak_at = now + AHEAD_S
        moments = [now - at for at in range(int(8 * SEASON_S), int(STEP_S), -int(STEP_S))]
        points = [(at, PEAK_PER_S if (at - peak_at) % SEASON_S < PEAK_S else 8.0) for at in moments]
        asked(mesh, lambda client: client.tell_rates(f"model/{MODEL}", points, step_s=STEP_S))
        lends.until(lambda: pool(mesh)["lent"] == 1)
        lends.say(f"one unit is lent {peak_at - time.time():.0f} s ahead of the peak")
        assert time.time() < peak_at and hns(mesh) == first, "serving waits until it is lent"
        before, during = decided(mesh)
        assert before == during + 1 and len(lends.pods()) == during
        lends.until(lambda: len(hns(mesh)) == 2)
        lends.say(f"another HN's pod runs {peak_at - time.time():.0f} s ahead of the peak")
        lends.until(lambda: pool(mesh)["lent"] == 0 and pool(mesh)["returning"] == 0)
        lends.say(f"returned {time.time() - peak_at:.0f} s after the peak's begin")
        assert len(hns(mesh)) == 1
        lends.until(lambda: len(lends.pods()) > during)
        lends.say(f"the worker's pod is back; {requests.count} requests, {len(requests.failures)} failed")
    [loan] = [each for each in asked(mesh, lambda client: client.loans()["loans"]) if each["planned"] > now]
    told = (loan["job_id"], loan["state"], loan["cause"], loan.get("late", False))
    assert told == (JOB, "returned", "FORECAST", False)
    assert loan["lent"] < peak_at < loan["ended"] <= loan["due"]
    assert requests.failures == [] and requests.count > 100
    events = asked(mesh, lambda client: client.events(JOB))
    assert not [event for event in events if event.type == "job.rolled_back"], "nothing was stopped for it"
