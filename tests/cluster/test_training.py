"""The demo's job as a TrainingJob object, trained by pods from its beginning to its end, with all that befalls it.

One job, and the tests in the order of its life: each takes up where the one before has left it.
"""

import time
from typing import Any

import pytest

from tests.cluster.jobs import EPOCHS, LIFE_S, NAME, ROWS, TrainedJob
from tests.cluster.mesh import SERVICES, STORES, memory
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
MIB = 1 << 20
HOG = "echo 1000 > /proc/1/oom_score_adj; exec python -c 'x = []\nwhile True: x.append(bytearray(1 << 24))'"
"""Fills the memory of a container; the kernel is to choose the role's own process, as if that had done it."""


def test_an_object_becomes_pods_that_train(job: TrainedJob) -> None:
    job.until(lambda: len(job.pods()) == 2 and job.pods("ps"))
    job.say("2 workers and the parameter server run")
    job.until(lambda: job.status().get("samples", 0) > 0)
    job.say("the first samples are told of")
    job.until(lambda: job.status()["phase"] == "Running" and job.status()["ready_workers"] == "2/2")
    job.say_status()
    print(job.mesh.kubectl("get", "pods", "-o", "wide", "-l", f"recmesh.dev/job={NAME}"))
    images = {role: next(iter(job.pods(role).values()))["spec"]["containers"][0]["image"] for role in ("ps", "worker")}
    assert images == {"ps": "recmesh/ps:0.1.0", "worker": "recmesh/worker:0.1.0"}
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
    job.patch(roles={"worker": {"cpu": "300m", "memory": "1200Mi"}})

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
        found = job.mesh.get("pods", name)["status"]["containerStatuses"][0]["state"]
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


def test_a_suspended_job_has_no_pod_and_goes_on_where_it_was(job: TrainedJob) -> None:
    began = time.monotonic()
    job.patch(suspend=True)
    job.mesh.kubectl("wait", "--for=condition=Suspended", f"tj/{NAME}", "--timeout=110s")
    job.until(lambda: job.status()["ready_workers"] == "0/0" and not job.pods() and not job.pods("ps"))
    status = job.status()
    assert status["phase"] == "Suspended" and 0 < status["samples"] < status["total"]
    job.say(f"suspended after {time.monotonic() - began:.1f} s, with {status['samples']:,} samples and no pod")
    job.say_status()
    job.patch(suspend=False)
    took_s = job.until(lambda: job.status()["ready_workers"] == "3/3" and job.samples() > status["samples"])
    assert job.told("Resumed") or job.told("resumed")
    job.say(f"resumed: 3 workers train after {took_s:.1f} s")


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
