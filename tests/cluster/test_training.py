"""The demo's job as a TrainingJob object, trained by pods from its beginning to its end, with all that befalls it.

One job, and the tests in the order of its life: each takes up where the one before has left it.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
import yaml

from recmesh.client.rows import predictions, request_for
from recmesh.spec.dataset import DatasetSpec
from tests.cluster.mesh import SERVICES, STORES, Mesh, memory
from tests.support.overlays import ROOT
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
FLIGHTS = ROOT / "examples" / "flights"
FILE = "/storage/datasets/flights.parquet"
NAME = "late-flights"
ROWS, EPOCHS = 480_000, 50
STARTS_S, LIFE_S = 240.0, 1800.0
MIB = 1 << 20
HOG = "echo 1000 > /proc/1/oom_score_adj; exec python -c 'x = []\nwhile True: x.append(bytearray(1 << 24))'"
"""Fills the memory of a container; the kernel is to choose the role's own process, as if that had done it."""


def training_job() -> dict[str, Any]:
    """examples/flights/job.yaml as an object; longer, and with sizes for a node of two cores that has the mesh, too."""
    spec = yaml.safe_load((FLIGHTS / "job.yaml").read_text())
    spec["data"]["source"]["files"] = [FILE]
    spec["training"]["epochs"] = EPOCHS
    spec["roles"] = {
        "ps": {"replicas": 1, "cpu": "300m", "memory": "768Mi"},
        "worker": {"replicas": 2, "max": 3, "cpu": "250m", "memory": "1Gi", "memory_max": "2Gi"},
    }
    return {
        "apiVersion": "recmesh.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": spec.pop("name")},
        "spec": spec,
    }


@dataclass
class TrainedJob:
    """The job as kubectl shows it."""

    mesh: Mesh
    applied: float = field(default_factory=time.monotonic)

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.mesh.get("tj", NAME).get("status") or {}
        return found

    def pods(self, role: str = "worker") -> dict[str, Any]:
        """Those that run and do not end, by name."""
        found = self.mesh.get("pods", "-l", f"recmesh.dev/job={NAME},recmesh.dev/role={role}")["items"]
        return {
            item["metadata"]["name"]: item for item in found
            if item["status"].get("phase") == "Running" and "deletionTimestamp" not in item["metadata"]
        }

    def told(self, text: str) -> bool:
        """Whether an Event of the object says so."""
        events = self.mesh.get("events.v1.events.k8s.io")["items"]
        return any(text in str(item.get("note")) for item in events if item["regarding"].get("name") == NAME)

    def until(self, condition: Callable[[], object], *, timeout_s: float = STARTS_S) -> float:
        """Seconds; AssertionError shows the job and its pods, and at once where it has failed."""
        began = time.monotonic()

        def holds() -> object:
            assert self.status().get("phase") not in ("Failed", "Refused", "Stopped"), "it has failed"
            return condition()

        try:
            until(holds, timeout_s=timeout_s, poll_s=0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.shown()}") from None
        return time.monotonic() - began

    def shown(self) -> str:
        run = self.mesh.cluster.try_kubectl
        asked = (("get", "tj", "-o", "wide"), ("get", "pods", "-o", "wide"), ("describe", "tj", NAME),
                 ("describe", "pods", "-l", f"recmesh.dev/job={NAME}"))
        texts = [(done := run("-n", "recmesh", *each)).stdout + done.stderr for each in asked]
        texts += [self.mesh.logs(f"{label}={name}", lines=60) for label, name in (
            ("recmesh.dev/job", NAME), ("app.kubernetes.io/name", "jobmaster"),
        )]
        return "\n".join(texts)

    def goes_on(self) -> float:
        """Seconds until more is trained than before."""
        before = self.status().get("samples", 0)
        return self.until(lambda: self.status().get("samples", 0) > before or self.status()["phase"] == "Succeeded")

    def say(self, text: str) -> None:
        """A line of the run, with its time since `kubectl apply`."""
        print(f"{time.monotonic() - self.applied:7.1f} s  {text}", flush=True)

    def say_status(self) -> None:
        """As a user looks at it."""
        print(self.mesh.kubectl("get", "tj", "-o", "wide"), flush=True)


@pytest.fixture(scope="module")
def job(mesh: Mesh) -> Iterator[TrainedJob]:
    """Its file is put on the storage as a user would; then the object is applied."""
    mesh.kubectl("exec", "deploy/shardsvc", "--", "mkdir", "-p", "/storage/datasets")
    pod = mesh.pods("shardsvc")[0]["metadata"]["name"]
    mesh.kubectl("cp", str(FLIGHTS / "flights.parquet"), f"{pod}:{FILE}")
    made = TrainedJob(mesh)
    mesh.cluster.kubectl("-n", "recmesh", "apply", "-f", "-", given=orjson.dumps(training_job()).decode())
    print()
    yield made


def test_an_object_becomes_pods_that_train(job: TrainedJob) -> None:
    job.until(lambda: len(job.pods()) == 2 and job.pods("ps"))
    job.say("2 workers and the parameter server run")
    job.until(lambda: job.status().get("samples", 0) > 0)
    job.say("the first samples are told of")
    job.until(lambda: job.status()["phase"] == "Running" and job.status()["ready_workers"] == "2/2")
    job.say_status()
    print(job.mesh.kubectl("get", "pods", "-o", "wide", "-l", f"recmesh.dev/job={NAME}"))
    owner = next(iter(job.pods().values()))["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("TrainingJob", NAME)


def test_kubectl_scale_starts_another_worker(job: TrainedJob) -> None:
    job.mesh.kubectl("scale", f"tj/{NAME}", "--replicas=3")
    began = time.monotonic()
    job.until(lambda: len(job.pods()) == 3)
    created_s = time.monotonic() - began
    job.until(lambda: job.status()["ready_workers"] == "3/3")
    job.say(f"kubectl scale: a third pod after {created_s:.1f} s, it trains after {time.monotonic() - began:.1f} s")
    job.say_status()


def test_a_pod_is_resized_in_place_without_a_restart(job: TrainedJob) -> None:
    before = {item["metadata"]["uid"] for item in job.pods().values()}
    wanted = '{"spec": {"roles": {"worker": {"cpu": "300m", "memory": "1200Mi"}}}}'
    job.mesh.kubectl("patch", "tj", NAME, "--type=merge", "-p", wanted)

    def given(pod: dict[str, Any]) -> dict[str, str]:
        limits: dict[str, str] = pod["status"]["containerStatuses"][0].get("resources", {}).get("limits", {})
        return limits

    took_s = job.until(lambda: all(
        given(pod) == {"cpu": "300m", "memory": "1200Mi"} for pod in job.pods().values()
    ))
    pods = job.pods()
    restarts = sum(pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods.values())
    assert {item["metadata"]["uid"] for item in pods.values()} == before and restarts == 0
    name = next(iter(pods))
    limit = job.mesh.kubectl("exec", name, "--", "sh", "-c", (
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max"
    ))
    assert int(limit) == 1200 * MIB       # the kernel's own word
    job.say(f"3 workers resized in place within {took_s:.1f} s, no restart")


def test_a_worker_that_the_kernel_kills_for_memory_is_replaced_by_one_with_more(job: TrainedJob) -> None:
    name = sorted(job.pods())[0]
    job.mesh.cluster.try_kubectl("-n", "recmesh", "exec", name, "--", "sh", "-c", HOG)

    def end() -> dict[str, Any]:
        found = job.mesh.get("pod", name)["status"]["containerStatuses"][0]["state"]
        ended: dict[str, Any] = found.get("terminated") or {}
        return ended

    job.until(lambda: end().get("reason") == "OOMKilled")
    job.say(f"{name}: OOMKilled, exit code {end()['exitCode']}")
    took_s = job.until(lambda: f"{NAME}-worker-0-2" in job.pods())
    limit = job.pods()[f"{NAME}-worker-0-2"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    assert limit == "1800Mi", limit       # half as much again (RECMESH_MEMORY_FACTOR)
    assert job.told("OOMKilled")
    job.say(f"another runs after {took_s:.1f} s, with {limit}; the object says why")
    job.until(lambda: job.status()["ready_workers"] == "3/3")


def test_a_deleted_pod_drains_and_is_replaced(job: TrainedJob) -> None:
    name = sorted(job.pods())[-1]
    job.mesh.kubectl("delete", "pod", name, "--wait=false")
    took_s = job.until(lambda: f"{NAME}-worker-2-2" in job.pods())
    job.say(f"{name} deleted: another runs after {took_s:.1f} s")
    job.goes_on()


@pytest.mark.parametrize("name", [*STORES, *SERVICES])
def test_training_survives_the_end_of_a_services_pod(job: TrainedJob, name: str) -> None:
    before = {pod["metadata"]["uid"] for role in ("worker", "ps") for pod in job.pods(role).values()}
    assert len(before) == 4 and job.status()["phase"] == "Running", "the job is too short for this machine"
    took_s = job.mesh.end_pods_of(name)
    job.mesh.until_ready(*STORES, *SERVICES)
    on_s = job.goes_on()
    still = {pod["metadata"]["uid"] for role in ("worker", "ps") for pod in job.pods(role).values()}
    job.say(f"{name}: another pod ready after {took_s:.1f} s, more was trained {on_s:.1f} s later")
    if job.status()["phase"] == "Running":
        assert before <= still, "pods of the job were replaced"
    key = job.mesh.secret("public-api-key")
    until(lambda: job.mesh.ask("gateway", "/v1/jobs", key=key)[0] == 200, timeout_s=60, poll_s=0.5)


def test_it_ends_with_every_sample_once(job: TrainedJob) -> None:
    print(memory())
    job.until(lambda: job.status()["phase"] == "Succeeded", timeout_s=LIFE_S)
    status = job.status()
    job.say(f"{status['phase']}: {status['samples']:,} of {status['total']:,} samples, {status['metrics']}")
    job.say_status()
    assert status["samples"] == status["total"] == ROWS * EPOCHS
    assert status["progress"] == "100%" and status["ready_workers"] == "0/0"
    job.mesh.kubectl("wait", "--for=condition=Complete", f"tj/{NAME}", "--timeout=5s")
    assert job.pods() == {} and job.pods("ps") == {}


def test_the_model_answers_through_the_gateways_service(job: TrainedJob) -> None:
    rows = pq.read_table(FLIGHTS / "flights.parquet").slice(500_000, 4).to_pylist()
    data = DatasetSpec.parse(training_job()["spec"]["data"])
    names = {column for feature in data.features for column in feature.source_columns}
    with job.mesh.client() as client:
        until(lambda: any(each.state == "ready" for each in client.models()), timeout_s=120, poll_s=1)
        request = request_for(
            client.model_metadata(NAME), [{name: row[name] for name in names} for row in rows], data=data
        )
        told = list(predictions(client.infer(NAME, request)))
    assert len(told) == len(rows) and all(0 < float(each) < 1 for each in told)
    job.say(f"predictions through the gateway's Service: {', '.join(told)}")
