"""Real jobs on real servers and processes; whatever is killed, the number of samples is right."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.runtime.errors import InvalidArgument
from tests.support.training_mesh import TrainingMesh, training_mesh

pytestmark = pytest.mark.integration

ROWS = 60_000


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingMesh]:
    folder = tmp_path_factory.mktemp("mesh")
    rng = np.random.default_rng(0)
    user, item, x = rng.integers(0, 2000, ROWS), rng.integers(0, 500, ROWS), rng.normal(size=ROWS)
    label = ((user % 7 + item % 5 + x) > 5).astype("int64")
    table = pa.table({"user": user, "item": item, "x": x.astype("float32"), "label": label})
    pq.write_table(table, folder / "data.parquet", row_group_size=10_000)
    with training_mesh(folder) as made:
        yield made


def tiny(mesh: TrainingMesh, name: str, *, epochs: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "model": {"zoo": "torch_dcn_v2", "params": {"embedding_dim": 8, "hidden": [32]}},
        "data": {
            "source": {"files": [str(mesh.folder / "data.parquet")]}, "task_rows": 10_000,
            "features": [{"name": "user"}, {"name": "item"}, {"name": "x", "kind": "dense"}],
        },
        "roles": {"ps": {"replicas": 2}, "worker": {"replicas": 2}},
        "training": {"batch_size": 256, "shard_batches": 8, "epochs": epochs},
        "checkpoint": {"every_s": 2}, "export": None,
    } | changes


def trained(job: pb.Job, samples: int) -> bool:
    return job.phase == "Running" and job.progress.samples >= samples


@pytest.mark.long
def test_kill_9_of_every_part_one_after_another_loses_no_sample(mesh: TrainingMesh) -> None:
    job_id = mesh.submit(tiny(mesh, "survivor", epochs=10))

    def goes_on(samples: int = 30_000) -> None:
        """Trains that many more; an early success is a success."""
        now = mesh.until_job(job_id, lambda job: job.phase != "Recovering").progress.samples
        mesh.until_job(job_id, lambda job: trained(job, now + samples) or job.phase == "Succeeded")

    goes_on()
    mesh.kill_role(job_id, "worker", 0)
    goes_on()
    mesh.until_job(job_id, lambda job: job.snapshot > 0)
    mesh.kill_role(job_id, "ps", 1)
    mesh.until_job(job_id, lambda job: job.gen == 2)
    goes_on()
    mesh.services["jobmaster"].kill()
    mesh.services["jobmaster"].start()
    goes_on()
    for name in ("shardsvc", "ckptcache"):
        mesh.services[name].kill()
        mesh.services[name].start()
        goes_on()
    for server in (mesh.nats, mesh.valkey):
        server.restart()
        goes_on()
    job = mesh.until_phase(job_id, "Succeeded", timeout_s=240)
    assert job.progress.samples == job.progress.total == 10 * ROWS
    assert job.gen == 2


@pytest.mark.long
def test_scaling_stop_and_logs_of_a_running_job(mesh: TrainingMesh) -> None:
    job_id = mesh.submit(tiny(mesh, "elastic", epochs=200))

    def workers(job: pb.Job) -> list[int]:
        return [role.index for role in job.roles if role.role == "worker" and role.state == "running"]

    mesh.until_job(job_id, lambda job: trained(job, 10_000) and workers(job) == [0, 1])
    mesh.jobs.Scale(pb.ScaleRequest(job_id=job_id, role="worker", replicas=1), timeout=10)

    def kinds() -> list[str]:
        return [event.type for event in mesh.jobs.Events(pb.EventsRequest(job_id=job_id), timeout=10).events]

    # Its phase is Running also before the change begins, when one worker drains already.
    mesh.until_job(job_id, lambda job: workers(job) == [0] and "job.scaled" in kinds())
    mesh.jobs.Stop(pb.StopRequest(job_id=job_id, reason="seen enough"), timeout=10)
    job = mesh.until_phase(job_id, "Stopped")
    assert job.snapshot > 0
    assert job.message == "seen enough"
    logs = mesh.jobs.Logs(pb.LogsRequest(job_id=job_id, index=-1), timeout=10).logs
    assert {log.role for log in logs} == {"ps", "worker"}
    assert kinds()[0] == "job.submitted"
    mesh.jobs.Delete(pb.JobRequest(job_id=job_id), timeout=60)
    assert job_id not in [job.job_id for job in mesh.jobs.List(pb.ListRequest(), timeout=10).jobs]


def test_a_job_with_a_wrong_column_and_a_missing_file_is_refused_and_creates_nothing(mesh: TrainingMesh) -> None:
    spec = tiny(mesh, "refused")
    spec["data"]["features"].append({"name": "clicks"})
    with pytest.raises(InvalidArgument) as refused:
        mesh.submit(spec)
    assert [item.path for item in refused.value.violations] == ["data.features.clicks"]
    missing = tiny(mesh, "refused")
    missing["data"]["source"]["files"] = ["/nowhere/at/all.parquet"]
    with pytest.raises(InvalidArgument) as refused:
        mesh.submit(missing)
    assert [item.path for item in refused.value.violations] == ["data.source.files"]
    assert "refused" not in [job.job_id for job in mesh.jobs.List(pb.ListRequest(), timeout=10).jobs]


@pytest.mark.long
def test_a_mistake_in_the_users_code_fails_the_job_with_its_message(mesh: TrainingMesh, tmp_path: Path) -> None:
    model = {"entrypoint": "nowhere.at.all:main"}
    job_id = mesh.submit(tiny(mesh, "mistaken", model=model))
    job = mesh.until_phase(job_id, "Failed")
    assert job.reason == "UserError"
    assert "nowhere" in job.message
    assert all(role.state == "exited" for role in job.roles)


@pytest.mark.long
def test_a_clean_stop_of_jobmaster_leaves_training_alone(mesh: TrainingMesh) -> None:
    job_id = mesh.submit(tiny(mesh, "calm", epochs=4))
    before = mesh.until_job(job_id, lambda job: trained(job, 10_000))
    assert mesh.services["jobmaster"].stop() in (0, -signal.SIGTERM)
    mesh.services["jobmaster"].start()
    job = mesh.until_phase(job_id, "Succeeded")
    assert job.progress.samples == 4 * ROWS
    assert [role.incarnation for role in job.roles] == [role.incarnation for role in before.roles]
    assert job.gen == 1
