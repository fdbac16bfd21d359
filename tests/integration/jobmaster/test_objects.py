"""A real API server, a real mesh: TrainingJob objects are jobs, and jobs are objects."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from recmesh.client.packing import pack
from recmesh.crd import objects
from recmesh.crd.kinds import FINALIZER
from recmesh.pb import jobmaster_pb2 as pb
from recmesh.runtime.errors import MeshError
from tests.support.kube import KubeCluster, account_of, with_kinds
from tests.support.tiny_jobs import ROWS, tiny_job
from tests.support.training_mesh import TrainingMesh, training_mesh
from tests.support.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    with with_kinds(tmp_path_factory.mktemp("kube") / "cluster") as made:
        made.kubectl("create", "namespace", "ads")
        yield made


@pytest.fixture(scope="module")
def mesh(cluster: KubeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingMesh]:
    rights = account_of(cluster, "jobmaster", namespace="ads", folder=tmp_path_factory.mktemp("account"))
    settings: dict[str, Any] = {
        "RECMESH_JOBMASTER_OBJECTS": "kubernetes", "RECMESH_KUBE_CONFIG": str(rights),
        "RECMESH_KUBE_NAMESPACE": "ads", "RECMESH_STALL_S": "0", "RECMESH_JOB_METRICS_S": "1",
    }
    with training_mesh(tmp_path_factory.mktemp("mesh"), **settings) as made:
        yield made


def small(mesh: TrainingMesh, name: str, **training: Any) -> dict[str, Any]:
    """A job whose code is packed, as `recmesh submit` packs it."""
    job = tiny_job(mesh, name, **training)
    archive = pack(Path(job["model"]["code"]))
    digest = hashlib.sha256(archive).hexdigest()
    folder = mesh.storage / "code"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{digest}.tar.gz").write_bytes(archive)
    job["model"]["code"] = f"sha256:{digest}"
    return job


def thing_of(job: dict[str, Any], *, step_s: float = 0.0) -> dict[str, Any]:
    """A user's object; what its worker takes for a step at least decides how long it lives."""
    spec = {name: value for name, value in job.items() if name != "name"}
    spec["roles"] = {"ps": {"replicas": 1}, "worker": {"replicas": 1, "env": {"STEP_S": str(step_s)}}}
    return {
        "apiVersion": objects.API_VERSION, "kind": "TrainingJob", "spec": spec,
        "metadata": {"name": job["name"], "namespace": "ads"},
    }


def status(cluster: KubeCluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.get("tj", name, "-n", "ads").get("status") or {}
    return found


def until_status(cluster: KubeCluster, name: str, what: Any, *, timeout_s: float = 120.0) -> dict[str, Any]:
    last: dict[str, Any] = {}

    def holds() -> bool:
        last.clear()
        last.update(status(cluster, name))
        return bool(what(last)) or last.get("phase") == "Failed"

    try:
        until(holds, timeout_s=timeout_s, poll_s=0.3)
    except AssertionError:
        raise AssertionError(f"not within {timeout_s:g} s: {json.dumps(last, indent=1)}") from None
    assert what(last), json.dumps(last, indent=1)
    return last


def conditions(told: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {item["type"]: (item["status"], item["reason"]) for item in told.get("conditions", [])}


def reasons(cluster: KubeCluster, name: str) -> set[str]:
    found = cluster.get("events", "-n", "ads", "--field-selector", f"involvedObject.name={name}")["items"]
    return {item["reason"] for item in found}


@pytest.mark.long
def test_an_object_is_trained_to_its_end_and_says_so(cluster: KubeCluster, mesh: TrainingMesh) -> None:
    cluster.kubectl("apply", "--server-side", "-f", "-", body=thing_of(small(mesh, "whole")))
    told = until_status(cluster, "whole", lambda told: told.get("phase") == "Succeeded")
    assert (told["samples"], told["progress"], told["job_id"]) == (ROWS, "100%", "whole")
    assert told["observedGeneration"] == 1 and told["ready_workers"] == "0/0"
    assert conditions(told) == {
        "Accepted": ("True", "Accepted"), "Synced": ("True", "Synced"), "Running": ("False", "Succeeded"),
        "Complete": ("True", "Completed"),
    }
    cluster.kubectl("wait", "--for=condition=Complete", "tj/whole", "-n", "ads", "--timeout=1s")
    until(lambda: {"Planned", "GenerationOpen", "Completed"} <= reasons(cluster, "whole"))
    assert "Completed" in cluster.kubectl("describe", "tj", "whole", "-n", "ads")

    cluster.kubectl("delete", "tj", "whole", "-n", "ads", "--timeout=60s")
    assert "whole" not in [job.job_id for job in mesh.jobs.List(pb.ListRequest(), timeout=10).jobs]


@pytest.mark.long
def test_kubectl_scales_and_deletes_a_job_that_trains(cluster: KubeCluster, mesh: TrainingMesh) -> None:
    job = small(mesh, "scaled", epochs=50)
    cluster.kubectl("apply", "--server-side", "-f", "-", body=thing_of(job, step_s=0.2))
    until_status(cluster, "scaled", lambda told: told.get("ready_workers") == "1/1" and told.get("samples"))
    cluster.kubectl("scale", "tj/scaled", "-n", "ads", "--replicas=2")
    told = until_status(cluster, "scaled", lambda told: told["ready_workers"] == "2/2" and told["phase"] == "Running")
    assert told["workers"] == 2 and told["observedGeneration"] == 2
    assert sum(role.role == "worker" and role.state == "running" for role in mesh.job("scaled").roles) == 2
    row = cluster.kubectl("get", "tj", "scaled", "-n", "ads", "--no-headers").split()
    assert row[:4] == ["scaled", "Running", "2/2", "1/1"] and row[4].endswith("%") and row[5] != "<none>"
    until(lambda: "RoleScaled" in reasons(cluster, "scaled") or "Scaled" in reasons(cluster, "scaled"))

    mesh.services["jobmaster"].kill()
    mesh.services["jobmaster"].start()          # another leader knows the object's job, and makes no second one
    mesh.jobs.Scale(pb.ScaleRequest(job_id="scaled", role="worker", replicas=1), timeout=30)
    assert cluster.get("tj", "scaled", "-n", "ads")["spec"]["roles"]["worker"]["replicas"] == 1
    until_status(cluster, "scaled", lambda told: told["ready_workers"] == "1/1")
    assert [job.job_id for job in mesh.jobs.List(pb.ListRequest(), timeout=10).jobs].count("scaled") == 1

    cluster.kubectl("delete", "tj", "scaled", "-n", "ads", "--timeout=60s")
    assert mesh.jobs.List(pb.ListRequest(), timeout=10).jobs == []
    assert not (mesh.folder / "logs" / "jobs" / "scaled").exists()
    assert not list(mesh.storage.glob("**/scaled/**/*")), "snapshots are left"


def test_a_job_by_rest_is_an_object_first(cluster: KubeCluster, mesh: TrainingMesh) -> None:
    spec = orjson.dumps(small(mesh, "asked", epochs=50) | {
        "roles": {"worker": {"replicas": 1, "cpu": 0.5, "env": {"STEP_S": "0.2"}}}
    }).decode()
    request = pb.SubmitRequest(spec_json=spec, request_id="once", submitter="rest")
    assert mesh.jobs.Submit(request, timeout=60).job_id == "asked"
    assert mesh.jobs.Submit(request, timeout=60).job_id == "asked"
    thing = cluster.get("tj", "asked", "-n", "ads")
    assert thing["metadata"]["finalizers"] == [FINALIZER]
    assert thing["spec"]["roles"]["worker"]["cpu"] == "500m"
    other = pb.SubmitRequest(spec_json=spec, request_id="twice", submitter="rest")
    second = mesh.jobs.Submit(other, timeout=60)
    assert second.job_id.startswith("asked-") and second.name == "asked"
    assert cluster.get("tj", second.job_id, "-n", "ads")["spec"]["name"] == "asked"
    until_status(cluster, "asked", lambda told: told.get("job_id") == "asked")

    for job_id in ("asked", second.job_id):
        mesh.jobs.Delete(pb.JobRequest(job_id=job_id), timeout=60)
    until(lambda: cluster.get("tj", "-n", "ads")["items"] == [])


def test_what_the_mesh_refuses_is_told_and_may_be_mended(cluster: KubeCluster, mesh: TrainingMesh) -> None:
    thing = thing_of(small(mesh, "mended"))
    files = thing["spec"]["data"]["source"]["files"]
    thing["spec"]["data"]["source"]["files"] = ["/nowhere/*.parquet"]
    cluster.kubectl("apply", "--server-side", "-f", "-", body=thing)
    told = until_status(cluster, "mended", lambda told: told.get("phase") == "Refused")
    assert "data.source.files" in told["message"] and conditions(told)["Accepted"][0] == "False"
    assert "job_id" not in told
    thing["spec"]["data"]["source"]["files"] = files
    cluster.kubectl("apply", "--server-side", "-f", "-", body=thing)
    until_status(cluster, "mended", lambda told: told.get("job_id") == "mended")
    thing["spec"]["backoff_limit"] = 3
    said = cluster.kubectl("apply", "--server-side", "-f", "-", body=thing, fails=True)
    assert "spec.backoff_limit" in said and "cannot be changed" in said
    cluster.kubectl("delete", "tj", "mended", "-n", "ads", "--timeout=60s")


@pytest.mark.long
def test_kubectl_suspends_a_job_and_lets_it_go_on(cluster: KubeCluster, mesh: TrainingMesh) -> None:
    cluster.kubectl("apply", "--server-side", "-f", "-", body=thing_of(small(mesh, "paused", epochs=8), step_s=0.1))
    mesh.until_job("paused", lambda job: job.phase == "Running" and job.progress.samples > 0)

    def patch(**fields: Any) -> None:
        cluster.kubectl("patch", "tj", "paused", "-n", "ads", "--type=merge", "-p", json.dumps({"spec": fields}))

    patch(suspend=True)
    cluster.kubectl("wait", "--for=condition=Suspended", "tj/paused", "-n", "ads", "--timeout=50s")
    told = until_status(cluster, "paused", lambda told: told["phase"] == "Suspended")
    assert (told["ready_workers"], told["ready_ps"], told["snapshot"] > 0) == ("0/0", "0/0", True)
    assert all(role.state == "exited" for role in mesh.job("paused").roles)
    mesh.jobs.Resume(pb.JobRequest(job_id="paused"), timeout=30)
    assert cluster.get("tj", "paused", "-n", "ads")["spec"]["suspend"] is False
    told = until_status(cluster, "paused", lambda told: told.get("phase") == "Succeeded")
    assert told["samples"] == told["total"] == 8 * ROWS
    assert conditions(told)["Suspended"] == ("False", "Resumed") and conditions(told)["Complete"][0] == "True"
    assert {"Suspended", "Resumed"} <= reasons(cluster, "paused")
    cluster.kubectl("delete", "tj", "paused", "-n", "ads", "--timeout=60s")


@pytest.mark.long
def test_an_object_of_another_controller_gets_no_job_and_no_word(cluster: KubeCluster, mesh: TrainingMesh) -> None:
    thing = thing_of(small(mesh, "theirs"))
    thing["spec"]["managed_by"] = "kueue.x-k8s.io/multikueue"
    cluster.kubectl("apply", "--server-side", "-f", "-", body=thing)
    cluster.kubectl("apply", "--server-side", "-f", "-", body=thing_of(small(mesh, "ours")))
    until_status(cluster, "ours", lambda told: told.get("phase") == "Succeeded")
    found = cluster.get("tj", "theirs", "-n", "ads")
    assert "status" not in found and "finalizers" not in found["metadata"]
    cluster.kubectl("delete", "tj", "ours", "theirs", "-n", "ads", "--timeout=60s")


def dataset_of(job: dict[str, Any], name: str, **changes: Any) -> dict[str, Any]:
    """The job's data as a TrainingDataset."""
    return {
        "apiVersion": objects.API_VERSION, "kind": "TrainingDataset", "spec": job["data"] | changes,
        "metadata": {"name": name, "namespace": "ads"},
    }


@pytest.mark.long
def test_a_dataset_is_named_by_jobs_held_while_they_live_and_then_let_go(
    cluster: KubeCluster, mesh: TrainingMesh
) -> None:
    def dataset() -> dict[str, Any]:
        found: dict[str, Any] = cluster.get("tds", "clicks", "-n", "ads").get("status") or {}
        return found

    job = small(mesh, "namer", epochs=50)
    thing = thing_of(job, step_s=0.2)
    thing["spec"] = {name: value for name, value in thing["spec"].items() if name != "data"} | {"dataset": "clicks"}
    cluster.kubectl("apply", "--server-side", "-f", "-", body=thing)
    told = until_status(cluster, "namer", lambda told: told.get("reason") == "NoDataset")
    assert told["phase"] == "Pending" and conditions(told)["Accepted"] == ("Unknown", "NoDataset")

    cluster.kubectl("apply", "--server-side", "-f", "-", body=dataset_of(job, "clicks"))
    cluster.kubectl("wait", "--for=condition=Ready", "tds/clicks", "-n", "ads", "--timeout=50s")
    told = dataset()
    assert (told["phase"], told["rows"], told["files"], told["revision"]) == ("Ready", ROWS, 1, 1)
    assert told["size_bytes"] > 0 and told["tasks"] > 0 and told["observedGeneration"] == 1
    until_status(cluster, "namer", lambda told: told.get("ready_workers") == "1/1" and told.get("samples"))
    until(lambda: dataset().get("jobs") == ["namer"])
    row = cluster.kubectl("get", "tds", "clicks", "-n", "ads", "--no-headers").split()
    assert row[:4] == ["clicks", "Ready", "1", str(ROWS)]

    cluster.kubectl("apply", "--server-side", "-f", "-", body=dataset_of(job, "clicks", label="nosuch"))
    until(lambda: dataset().get("phase") == "Refused", timeout_s=60.0)
    assert "nosuch" in dataset()["message"] and dataset()["revision"] == 1
    cluster.kubectl("delete", "tds", "clicks", "-n", "ads", "--wait=false")
    until(lambda: dataset().get("phase") == "Deleting", timeout_s=60.0)
    assert "namer" in dataset()["message"]
    assert "namer" in cluster.kubectl("describe", "tds", "clicks", "-n", "ads").partition("Events:")[2]
    cluster.kubectl("delete", "tj", "namer", "-n", "ads", "--timeout=60s")
    cluster.kubectl("wait", "--for=delete", "tds/clicks", "-n", "ads", "--timeout=60s")


@pytest.mark.long
def test_what_a_job_measures_lies_beside_it_and_goes_with_it(cluster: KubeCluster, mesh: TrainingMesh) -> None:
    cluster.kubectl("apply", "--server-side", "-f", "-", body=thing_of(small(mesh, "seen", epochs=50), step_s=0.1))

    def measured() -> dict[str, Any]:
        found = cluster.get("jm", "-n", "ads")["items"]
        return next((item.get("status") or {} for item in found if item["metadata"]["name"] == "seen"), {})

    until(lambda: measured().get("samples_per_s", 0) > 0 and measured().get("loss") is not None, timeout_s=120.0)
    told = measured()
    assert told["phase"] == "Running" and told["memory_bytes"] > 0
    assert {role["role"] for role in told["roles"]} == {"ps", "worker"}
    row = cluster.kubectl("get", "jm", "seen", "-n", "ads", "--no-headers").split()
    assert row[:2] == ["seen", "Running"]
    cluster.kubectl("delete", "tj", "seen", "-n", "ads", "--timeout=60s")
    cluster.kubectl("wait", "--for=delete", "jm/seen", "-n", "ads", "--timeout=60s")


def answers(cluster: KubeCluster) -> bool:
    try:
        return cluster.kubectl("get", "--raw", "/readyz") == "ok"
    except AssertionError:
        return False


@pytest.mark.long
def test_an_api_server_that_goes_away_costs_a_job_nothing(cluster: KubeCluster, mesh: TrainingMesh) -> None:
    cluster.kubectl("apply", "--server-side", "-f", "-", body=thing_of(small(mesh, "lonely", epochs=8), step_s=0.1))
    mesh.until_job("lonely", lambda job: job.phase == "Running" and job.progress.samples > 0)
    cluster.control("kill", "kube-apiserver")
    try:
        with pytest.raises(MeshError):
            mesh.jobs.Suspend(pb.SuspendRequest(job_id="lonely"), timeout=15)
        job = mesh.until_phase("lonely", "Succeeded")
    finally:
        cluster.control("start", "kube-apiserver")
    until(lambda: answers(cluster))
    assert job.progress.samples == 8 * ROWS and all(role.restarts == 0 for role in job.roles)
    told = until_status(cluster, "lonely", lambda told: told.get("phase") == "Succeeded")
    assert told["samples"] == 8 * ROWS
    cluster.kubectl("delete", "tj", "lonely", "-n", "ads", "--timeout=60s")
