"""Real parameter servers come and go under a real job: no sample is lost, none is trained twice, nothing rolls back."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recmesh.pb import jobmaster_pb2 as pb
from tests.support.training_mesh import TrainingMesh, training_mesh
from tests.support.whole_mesh import PACED

pytestmark = [pytest.mark.integration, pytest.mark.long]

ROWS, EPOCHS = 60_000, 16
STEP_S = 0.05
"""Until the last scaling: the job shall not be over before, however long processes take to start."""


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[TrainingMesh]:
    rng = np.random.default_rng(0)
    user, item, x = rng.integers(0, 2000, ROWS), rng.integers(0, 500, ROWS), rng.normal(size=ROWS)
    table = pa.table({"user": user, "item": item, "x": x.astype("float32"), "label": (x > 0).astype("int64")})
    pq.write_table(table, tmp_path / "data.parquet", row_group_size=10_000)
    with training_mesh(tmp_path / "mesh", RECMESH_REPLACEMENT_S="100") as made:
        yield made


def elastic(folder: Path, *, servers: int) -> dict[str, Any]:
    (folder / "paced.py").write_text(PACED)
    pace = {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "STEP_S": str(STEP_S), "HURRY": str(folder / "hurry"),
    }
    return {
        "name": "elastic",
        "model": {"entrypoint": "paced:main", "params": {"embedding_dim": 8, "hidden": [32]}},
        "data": {
            "source": {"files": [str(folder / "data.parquet")]}, "task_rows": 10_000,
            "features": [{"name": "user"}, {"name": "item"}, {"name": "x", "kind": "dense"}],
        },
        "roles": {
            "ps": {"replicas": servers, "env": {"RECMESH_NOTICE_S": "100"}}, "worker": {"replicas": 2, "env": pace},
        },
        "training": {"batch_size": 256, "shard_batches": 8, "epochs": EPOCHS},
        "checkpoint": {"every_s": 5}, "export": None,
    }


def test_servers_from_one_to_three_and_back_while_a_job_trains(mesh: TrainingMesh, tmp_path: Path) -> None:
    job_id = mesh.submit(elastic(tmp_path, servers=1))
    mesh.until_job(job_id, lambda job: job.phase == "Running" and job.progress.samples > 10_000)
    for count in (2, 3, 1):
        mesh.jobs.Scale(pb.ScaleRequest(job_id=job_id, role="ps", replicas=count), timeout=10.0)
        mesh.until_job(job_id, lambda job, count=count: is_settled(mesh, job, count))
        now = mesh.job(job_id).progress.samples
        mesh.until_job(job_id, lambda job, now=now: job.progress.samples > now + 10_000 or job.phase == "Succeeded")
    (tmp_path / "hurry").touch()
    moved = [data for kind, data in events(mesh, job_id) if kind == "job.slots_moved"]
    assert sum(data["slots"] for data in moved) == 2048 + 1365 + 2730
    assert scalings(mesh, job_id) == [(1, 2), (2, 3), (3, 1)]
    job = mesh.until_phase(job_id, "Succeeded", timeout_s=240)
    assert job.progress.samples == job.progress.total == EPOCHS * ROWS
    assert job.gen == 1


def test_a_server_whose_machine_goes_away_is_replaced_first_and_without_a_jobmaster_goes_at_once(
    mesh: TrainingMesh, tmp_path: Path
) -> None:
    job_id = mesh.submit(elastic(tmp_path, servers=2))
    job = mesh.until_job(job_id, lambda job: job.phase == "Running" and job.progress.samples > 10_000)
    leaving = psutil.Process(server(job, 0))
    leaving.terminate()
    job = mesh.until_job(job_id, lambda job: server(job, 2) and not server(job, 0) and job.phase == "Running")
    leaving.wait(timeout=30.0)
    assert job.gen == 1
    assert sum(data["slots"] for kind, data in events(mesh, job_id) if kind == "job.slots_moved") == 2048
    mesh.services["jobmaster"].kill()
    left = psutil.Process(server(job, 1))
    left.terminate()
    left.wait(timeout=15.0)


def server(job: pb.Job, index: int) -> int:
    """The pid of a parameter server; 0: it is not running."""
    alive = [role for role in job.roles if (role.role, role.index, role.state) == ("ps", index, "running")]
    return int(alive[0].handle) if alive else 0


def is_settled(mesh: TrainingMesh, job: pb.Job, count: int) -> bool:
    servers = [role for role in job.roles if role.role == "ps" and role.state != "exited"]
    told = scalings(mesh, job.job_id)
    return job.phase == "Running" and len(servers) == count and bool(told) and told[-1][1] == count


def scalings(mesh: TrainingMesh, job_id: str) -> list[tuple[int, int]]:
    told = [data for kind, data in events(mesh, job_id) if kind == "job.scaled"]
    return [(data["from_replicas"], data["to_replicas"]) for data in told if data["role"] == "ps"]


def events(mesh: TrainingMesh, job_id: str) -> list[tuple[str, Any]]:
    reply = mesh.jobs.Events(pb.EventsRequest(job_id=job_id), timeout=10.0)
    return [(event.type, orjson.loads(event.data_json)) for event in reply.events]
