"""The model that the job has exported, served by pods: whole in an HN's, then split and in those of a CN and an HN."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from recmesh.client.rows import predictions, request_for
from recmesh.spec.dataset import DatasetSpec
from tests.cluster.jobs import FLIGHTS, NAME, ROWS, TrainedJob, training_job
from tests.cluster.mesh import SERVICES, Mesh, memory
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
PODS_S = 240.0
FED = "fed"
FED_EPOCHS = 5
"""So that it trains while every service is rolled out anew."""
IMAGES = {"ps": "recmesh/ps:0.1.0", "worker": "recmesh/worker:0.1.0", "data": "recmesh/data:0.1.0"}
"""Of its roles."""
EXAMPLES = 4


@dataclass
class Served:
    """The model, as its clients and as kubectl see it."""

    mesh: Mesh
    request: dict[str, Any] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    """What the whole model has answered."""

    def ask(self) -> list[str]:
        """Predictions for the same rows, through the gateway's Service."""
        with self.mesh.client() as client:
            return list(predictions(client.infer(NAME, self.request)))

    def pods(self) -> dict[str, Any]:
        """Those of CNs and HNs that do not end, by name."""
        found = self.mesh.get("pods", labels="app.kubernetes.io/managed-by=recmesh-gateway")["items"]
        return {
            item["metadata"]["name"]: item for item in found
            if "deletionTimestamp" not in item["metadata"] and item["status"].get("phase") in ("Pending", "Running")
        }

    def names(self, kind: str) -> set[str]:
        """Of its pods that are ready."""
        return {
            name for name, pod in self.pods().items() if pod["metadata"]["labels"]["recmesh.dev/kind"] == kind and any(
                item["type"] == "Ready" and item["status"] == "True" for item in pod["status"].get("conditions", [])
            )
        }

    def until(self, condition: Callable[[], object]) -> float:
        """Seconds; AssertionError shows pods and what the gateway wrote."""
        began = time.monotonic()
        try:
            until(condition, timeout_s=PODS_S, poll_s=0.5)
        except AssertionError as error:
            pods = "app.kubernetes.io/managed-by=recmesh-gateway"
            shown = [self.mesh.kubectl("get", "pods", "-o", "wide"), self.mesh.logs(pods, lines=40),
                     self.mesh.logs("app.kubernetes.io/name=gateway", lines=40)]  # fmt: skip
            raise AssertionError("\n".join([str(error), *shown])) from None
        return time.monotonic() - began

    @contextmanager
    def under_requests(self) -> Iterator["Asked"]:
        """One after another, each by a connection of its own, without a second try."""
        address, key = self.mesh.address("gateway"), self.mesh.secret("public-api-key")
        asked, ended = Asked(), threading.Event()

        def ask() -> None:
            once = httpx.Limits(max_keepalive_connections=0)
            headers = {"Authorization": f"Bearer {key}"}
            with httpx.Client(headers=headers, trust_env=False, timeout=30, limits=once) as http:
                while not ended.is_set():
                    began = time.monotonic()
                    try:
                        answer = http.post(f"{address}/v2/models/{NAME}/infer", json=self.request)
                        right = answer.status_code == 200 and list(predictions(answer.json())) == self.told
                        asked.failures += [] if right else [f"{answer.status_code} {answer.text[:200]}"]
                    except httpx.TransportError as error:
                        asked.failures.append(f"{type(error).__name__}: {error}")
                    asked.times.append(time.monotonic() - began)
                    ended.wait(0.02)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        try:
            until(lambda: len(asked.times) > 10, timeout_s=60)
            yield asked
            more = len(asked.times) + 10
            until(lambda: len(asked.times) > more, timeout_s=60)
        finally:
            ended.set()
            thread.join(60)


@dataclass
class Asked:
    """What came of requests."""

    times: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def served(mesh: Mesh) -> Served:
    rows = pq.read_table(FLIGHTS / "flights.parquet").slice(500_000, EXAMPLES).to_pylist()
    data = DatasetSpec.parse(training_job()["spec"]["data"])
    names = {column for feature in data.features for column in feature.source_columns}
    made = Served(mesh)
    with mesh.client() as client:
        made.until(lambda: any(each.state == "ready" for each in client.model(NAME)))
        made.request = request_for(
            client.model_metadata(NAME), [{name: row[name] for name in names} for row in rows], data=data
        )
    made.told = made.ask()
    return made


@pytest.fixture(scope="module")
def fed(mesh: Mesh, job: TrainedJob) -> TrainedJob:
    """A short job beside, whose rows come from a data executor."""
    made = TrainedJob(mesh, FED)
    thing = training_job(
        FED, epochs=FED_EPOCHS, ps={"replicas": 1, "cpu": "200m", "memory": "768Mi"},
        worker={"replicas": 1, "cpu": "300m", "memory": "1Gi"}, data={"replicas": 1, "cpu": "200m", "memory": "1Gi"},
    )  # fmt: skip
    thing["spec"]["export"] = {"serve": False}
    del thing["spec"]["evaluation"]
    made.apply(thing)
    made.until(lambda: all(made.pods(role) for role in IMAGES))
    for role, image in IMAGES.items():
        assert {pod["spec"]["containers"][0]["image"] for pod in made.pods(role).values()} <= {image}
    made.until(lambda: _decoded(made) > 0)
    return made


def test_a_pod_serves_the_model_and_it_answers_through_the_gateways_service(job: TrainedJob, served: Served) -> None:
    assert len(served.told) == EXAMPLES and all(0 < float(each) < 1 for each in served.told)
    kinds = [pod["metadata"]["labels"]["recmesh.dev/kind"] for pod in served.pods().values()]
    assert kinds == ["hn"], kinds          # a whole model
    job.say(f"predictions through the gateway's Service, by an HN's pod: {', '.join(served.told)}")


def test_the_split_model_is_served_by_a_cn_and_an_hn_pod(job: TrainedJob, served: Served, fed: TrainedJob) -> None:
    with served.mesh.client() as client:
        folder = f"/storage/{client.model(NAME)[0].uri.removeprefix('/storage/')}"
        began = time.monotonic()
        print(served.mesh.kubectl("exec", "deploy/gateway", "--", "recmesh", "partition", folder, timeout_s=300))
        job.say(f"split in the gateway's pod within {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        client.load_model(NAME)
        job.say(f"loaded in halves within {time.monotonic() - began:.1f} s")
    served.until(lambda: len(served.names("cn")) == len(served.names("hn")) == 1)
    assert served.ask() == served.told     # digit for digit
    print(served.mesh.kubectl("get", "pods", "-o", "wide", "-l", "app.kubernetes.io/managed-by=recmesh-gateway"))
    job.say(f"the same predictions by a CN's and an HN's pod: {', '.join(served.ask())}")
    for pod in served.pods().values():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False and spec["securityContext"]["runAsNonRoot"] is True
        owner = pod["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["name"]) == ("Deployment", "gateway")


def test_an_hn_pod_that_is_deleted_serves_until_another_does(job: TrainedJob, served: Served) -> None:
    before = served.names("hn")
    with served.under_requests() as asked:
        served.mesh.kubectl("delete", "pod", *before, "--wait=false")
        took_s = served.until(lambda: served.names("hn") - before)
        gone_s = served.until(lambda: not before & set(_all_pods(served.mesh)))
    job.say(
        f"HN's pod deleted: another ready after {took_s:.1f} s, it is gone after {took_s + gone_s:.1f} s; "
        f"{len(asked.times)} requests, {len(asked.failures)} failed, slowest {max(asked.times) * 1e3:.0f} ms"
    )
    assert asked.failures == []


def test_an_hn_pod_that_is_struck_down_is_replaced(job: TrainedJob, served: Served) -> None:
    before = served.names("hn")
    with served.under_requests() as asked:
        served.mesh.kubectl("delete", "pod", *before, "--grace-period=0", "--force", "--wait=false")
        took_s = served.until(lambda: served.names("hn") - before)

        def answers() -> bool:
            failed, count = len(asked.failures), len(asked.times)
            until(lambda: len(asked.times) > count + 20, timeout_s=60)
            return len(asked.failures) == failed

        answers_s = served.until(answers)
    job.say(
        f"HN's pod ended at once: another ready after {took_s:.1f} s, all requests answered since "
        f"{took_s + answers_s:.1f} s; {len(asked.failures)} of {len(asked.times)} failed"
    )
    assert served.ask() == served.told


def test_pods_of_models_outlive_their_gateways_pod(job: TrainedJob, served: Served) -> None:
    before = {pod["metadata"]["uid"] for pod in served.pods().values()}
    took_s = served.mesh.end_pods_of("gateway")
    ready_s = served.until(lambda: any(each.state == "ready" for each in _models(served.mesh)))
    assert served.ask() == served.told
    pods = served.pods().values()
    assert {pod["metadata"]["uid"] for pod in pods} == before
    assert all(pod["status"]["containerStatuses"][0]["restartCount"] == 0 for pod in pods)
    job.say(
        f"gateway's pod deleted: another ready after {took_s:.1f} s, its model after {took_s + ready_s:.1f} s, "
        "by the same pods of CN and HN"
    )


def test_a_rollout_of_every_service_costs_no_request_and_no_pod_of_a_job(
    job: TrainedJob, served: Served, fed: TrainedJob
) -> None:
    mesh = served.mesh
    kinds = {name: "daemonset" if name == "ckptcache" else "deployment" for name in SERVICES}
    old = {pod["metadata"]["uid"] for name in SERVICES for pod in mesh.pods(name)}
    roles = {pod["metadata"]["uid"] for role in IMAGES for pod in fed.pods(role).values()}
    assert len(roles) == len(IMAGES) and fed.status()["phase"] == "Running", "the job is too short for this machine"
    began = time.monotonic()
    with served.under_requests() as asked:
        for name, kind in kinds.items():
            mesh.kubectl("rollout", "restart", f"{kind}/{name}")
        for name, kind in kinds.items():
            mesh.kubectl("rollout", "status", f"{kind}/{name}", f"--timeout={PODS_S:.0f}s", timeout_s=PODS_S + 30)
        took_s = time.monotonic() - began
        served.until(lambda: not old & {pod["metadata"]["uid"] for name in SERVICES for pod in mesh.pods(name)})
        on_s = fed.goes_on()
    still = {pod["metadata"]["uid"] for role in IMAGES for pod in fed.pods(role).values()}
    job.say(
        f"all services rolled out anew in {took_s:.1f} s, more was trained {on_s:.1f} s later by the same pods; "
        f"{len(asked.times)} requests, {len(asked.failures)} failed, slowest {max(asked.times) * 1e3:.0f} ms"
    )
    assert asked.failures == []
    assert still == roles or fed.status()["phase"] == "Succeeded"
    assert served.ask() == served.told


def test_rows_of_a_job_come_from_a_data_executor_in_a_pod(fed: TrainedJob) -> None:
    fed.until(lambda: fed.status().get("phase") == "Succeeded")
    assert fed.status()["samples"] == fed.status()["total"] == ROWS * FED_EPOCHS
    fed.say(f"{FED}: {ROWS * FED_EPOCHS:,} samples, once each, read by a data executor's pod")


def test_the_command_line_gets_there_by_port_forward(mesh: Mesh, tmp_path: Path) -> None:
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.symlink_to(Path(mesh.cluster.kubectl_path).resolve())
    key = tmp_path / "key"
    key.write_text(mesh.secret("public-api-key"))
    key.chmod(0o600)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("RECMESH_")},
        "PATH": f"{kubectl.parent}:{os.environ['PATH']}", "KUBECONFIG": str(mesh.cluster.kubeconfig),
        "RECMESH_CONTEXTS": str(tmp_path / "contexts.json"),
    }

    def recmesh(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "recmesh.cli.main", *arguments], cwd=tmp_path, env=environment, capture_output=True,
            text=True, timeout=180, check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    print("\n" + recmesh("context", "add", "lab", "--namespace", "recmesh", "--api-key-file", str(key)))
    began = time.monotonic()
    jobs = {each["job_id"]: each for each in json.loads(recmesh("--context", "lab", "jobs", "-o", "json"))["jobs"]}
    took_s = time.monotonic() - began
    assert jobs[NAME]["phase"] == "Succeeded"
    print(recmesh("--context", "lab", "models"))
    print(f"recmesh --context lab jobs: {took_s:.1f} s")
    print(memory())


def _decoded(job: TrainedJob) -> int:
    """Tasks that its data executors have read."""
    with job.mesh.client() as client:
        return sum(each.serving.decoded for each in client.job(job.name).roles if each.serving)


def _models(mesh: Mesh) -> list[Any]:
    with mesh.client() as client:
        return list(client.model(NAME))


def _all_pods(mesh: Mesh) -> list[str]:
    return [item["metadata"]["name"] for item in mesh.get("pods")["items"]]
