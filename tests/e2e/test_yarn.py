"""A job trained in containers of a real YARN by real services: scaled, its jobmaster killed, counted to the end."""

import json
import os
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.runtime.yarn.board import Board
from tests.support.tiny_jobs import ROWS, tiny_job
from tests.support.training_mesh import TrainingMesh, training_mesh
from tests.support.waiting import until
from tests.support.yarn import MASTER, USER, YarnCluster

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EPOCHS = 15


@pytest.fixture
def mesh(yarn_cluster: YarnCluster, tmp_path: Path) -> Iterator[TrainingMesh]:
    settings: dict[str, Any] = {
        "JOBMASTER_CLUSTER": "yarn", "YARN_URL": yarn_cluster.url, "YARN_USER": USER, "YARN_PYTHON": sys.executable,
        "YARN_PREFIX": f"t{uuid.uuid4().hex[:8]}-", "YARN_PROPERTIES": json.dumps(dict(MASTER)),
        "YARN_FOLDER": str(tmp_path / "board"),
    }
    with training_mesh(tmp_path / "mesh", **{f"RECMESH_{name}": value for name, value in settings.items()}) as made:
        yield made
    for name in Board(settings["YARN_FOLDER"]).services():      # of a test that failed
        request = urllib.request.Request(
            f"{yarn_cluster.url}/app/v1/services/{name}?user.name={USER}", method="DELETE"
        )
        urllib.request.urlopen(request, timeout=60).close()


def alive(job: pb.Job, role: str) -> list[str]:
    return [each.handle for each in job.roles if each.role == role and each.state == "running"]


def test_a_job_is_trained_in_yarns_containers_and_every_sample_once(mesh: TrainingMesh, tmp_path: Path) -> None:
    spec = tiny_job(mesh, "hadoop", epochs=EPOCHS)
    path = os.pathsep.join([spec["model"].pop("code"), os.environ.get("PYTHONPATH", "")])
    spec["roles"]["worker"]["env"] = {"STEP_S": "0.1", "PYTHONPATH": path}
    spec["roles"]["ps"]["replicas"] = 1
    job_id = mesh.submit(spec)
    began = mesh.until_job(job_id, lambda job: job.phase == "Running" and job.progress.samples > 0, timeout_s=240)
    assert all(handle.startswith("application_") for handle in [*alive(began, "worker"), *alive(began, "ps")])
    servers = alive(began, "ps")

    mesh.services["jobmaster"].kill()
    mesh.services["jobmaster"].start()
    mesh.jobs.Scale(pb.ScaleRequest(job_id=job_id, role="worker", replicas=3), timeout=30.0)
    scaled = mesh.until_job(job_id, lambda job: len(alive(job, "worker")) == 3, timeout_s=120)
    assert alive(scaled, "ps") == servers               # found again, untouched

    ended = mesh.until_phase(job_id, "Succeeded", timeout_s=300)
    assert ended.progress.samples == ROWS * EPOCHS
    mesh.jobs.Delete(pb.JobRequest(job_id=job_id), timeout=30.0)
    until(lambda: not Board(str(tmp_path / "board")).services(), timeout_s=60.0)    # nothing is left behind
