"""Jobs that read from data executors: real servers, real processes, and executors that die."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from recmesh.pb import jobmaster_pb2 as pb
from tests.support.tiny_jobs import ROWS, tiny_job
from tests.support.training_mesh import TrainingMesh, training_mesh

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingMesh]:
    with training_mesh(tmp_path_factory.mktemp("mesh")) as made:
        yield made


def job_of(mesh: TrainingMesh, name: str, *, executors: int, epochs: int = 1, step_s: float = 0.0, **data: Any) -> Any:
    spec = tiny_job(mesh, name, epochs=epochs)
    # Without a gateway there is nowhere to upload code: workers find it where it lies.
    path = os.pathsep.join([spec["model"].pop("code"), os.environ.get("PYTHONPATH", "")])
    spec["roles"]["worker"]["env"] = {"STEP_S": str(step_s), "PYTHONPATH": path}
    spec["roles"]["ps"]["replicas"] = 1
    spec["roles"]["data"] = {"replicas": executors, "max": 4} | data
    spec["data"]["task_rows"] = 200
    spec["checkpoint"] = {"every_s": 2}
    return spec


def ended(job: pb.Job) -> bool:
    return job.phase in ("Succeeded", "Failed", "Stopped")


def executors(job: pb.Job) -> list[pb.Role]:
    return [role for role in job.roles if role.role == "data"]


def decoded(job: pb.Job) -> int:
    return sum(role.serving.decoded for role in executors(job) if role.state == "running")


def test_rows_come_from_executors_though_one_is_killed_and_every_sample_is_trained_once(mesh: TrainingMesh) -> None:
    job_id = mesh.submit(job_of(mesh, "served", executors=2, epochs=30, step_s=0.02))
    total = 30 * ROWS
    job = mesh.until_job(job_id, lambda job: ended(job) or decoded(job) >= 10)
    assert [role.state for role in executors(job)] == ["running", "running"]
    assert all(role.address for role in executors(job))
    mesh.kill_role(job_id, "data", 0)
    mesh.until_job(job_id, lambda job: ended(job) or (executors(job)[0].restarts == 1 and decoded(job) > 0))
    job = mesh.until_phase(job_id, "Succeeded")
    assert job.progress.samples == job.progress.total == total
    assert job.gen == 1
    assert sum(role.restarts for role in job.roles if role.role == "worker") == 0


def test_executors_come_and_go_while_a_job_trains(mesh: TrainingMesh) -> None:
    job_id = mesh.submit(job_of(mesh, "elastic", executors=1, epochs=40, step_s=0.02))

    def served_by(count: int) -> pb.Job:
        return mesh.until_job(job_id, lambda job: ended(job) or (
            len([role for role in executors(job) if role.state == "running" and role.address]) == count
            == job.wanted["data"] and (not count or decoded(job) > 0)
        ))

    served_by(1)
    mesh.jobs.Scale(pb.ScaleRequest(job_id=job_id, role="data", replicas=2), timeout=10)
    job = served_by(2)
    os.kill(int(executors(job)[1].handle), signal.SIGTERM)      # as its machine would
    mesh.until_job(job_id, lambda job: ended(job) or executors(job)[1].restarts == 1)
    mesh.jobs.Scale(pb.ScaleRequest(job_id=job_id, role="data", replicas=0), timeout=10)
    job = mesh.until_job(job_id, lambda job: ended(job) or all(role.state == "exited" for role in executors(job)))
    assert not ended(job)
    assert [role.exit_reason for role in executors(job)] == ["asked to go", "asked to go"]
    job = mesh.until_phase(job_id, "Succeeded")
    assert job.progress.samples == job.progress.total == 40 * ROWS


def test_two_jobs_that_read_alike_share_an_executor_which_decodes_once(mesh: TrainingMesh) -> None:
    epochs = 12
    first = mesh.submit(job_of(mesh, "host", executors=1, epochs=epochs, step_s=0.05, shared=True))
    mesh.until_job(first, lambda job: ended(job) or decoded(job) > 0)
    second = mesh.submit(job_of(mesh, "guest", executors=0, epochs=epochs, step_s=0.05, shared=True))
    most = 0

    def watched(job: pb.Job) -> bool:
        nonlocal most
        most = max(most, decoded(job))
        return ended(job)

    for job_id in (first, second):
        mesh.until_job(first, watched)
        job = mesh.until_phase(job_id, "Succeeded")
        assert job.progress.samples == epochs * ROWS
        assert len(executors(job)) == (1 if job_id == first else 0)
    assert 0 < most <= epochs * ROWS // 200
