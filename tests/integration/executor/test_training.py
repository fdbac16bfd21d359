"""Jobs that read from data executors: real servers, real processes, and executors that die."""

import os
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
