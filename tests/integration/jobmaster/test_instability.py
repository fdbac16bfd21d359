"""Workers that are told to go, and workers that get slow, on real servers and processes: nothing is lost or awaited."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recmesh.formats.snapshot.reading import open_folder, read_table
from recmesh.pb import jobmaster_pb2 as pb
from tests.support.tiny_jobs import BATCH, ROWS, tiny_job
from tests.support.training_mesh import TrainingMesh, training_mesh
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.long]

LEASE_TTL_S = 3600.0
"""Longer than any test: whatever waits for a lease to expire fails by its timeout."""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingMesh]:
    settings: dict[str, Any] = {
        "RECMESH_LEASE_TTL_S": str(LEASE_TTL_S), "RECMESH_STRAGGLER_WINDOW_S": "3", "RECMESH_STRAGGLER_COOLDOWN_S": "2",
        "RECMESH_BACKUP_WORTH_S": "5", "RECMESH_HEARTBEAT_S": "0.5",
    }
    with training_mesh(tmp_path_factory.mktemp("instability"), **settings) as made:
        yield made


def paced(mesh: TrainingMesh, name: str, *, workers: int, epochs: int, step_s: float = 0.05) -> dict[str, Any]:
    spec = tiny_job(mesh, name, workers=workers, epochs=epochs, shard_batches=32)
    # Without a gateway there is nowhere to upload code: workers find it where it lies.
    path = os.pathsep.join([spec["model"].pop("code"), os.environ.get("PYTHONPATH", "")])
    spec["roles"]["worker"]["env"] = {"STEP_S": str(step_s), "PYTHONPATH": path}
    spec["roles"]["ps"]["replicas"] = 1
    return spec


def worker(job: pb.Job, index: int) -> pb.Role:
    found: pb.Role = next(role for role in job.roles if (role.role, role.index) == ("worker", index))
    return found


def told(mesh: TrainingMesh, job_id: str, kind: str) -> list[dict[str, Any]]:
    events = mesh.jobs.Events(pb.EventsRequest(job_id=job_id), timeout=10.0).events
    return [orjson.loads(event.data_json) for event in events if event.type == kind]


def test_workers_that_are_told_to_go_leave_nothing_behind_and_are_replaced_at_once(mesh: TrainingMesh) -> None:
    epochs = 20
    job_id = mesh.submit(paced(mesh, "notices", workers=2, epochs=epochs) | {"backoff_limit": 0})
    for index in (0, 1, 0):
        before = mesh.until_job(
            job_id, lambda job, index=index: job.phase == "Running" and worker(job, index).samples > 4 * BATCH
        )
        assert before.progress.samples < before.progress.total
        os.kill(int(worker(before, index).handle), signal.SIGTERM)
        mesh.until_job(
            job_id, lambda job, before=before, index=index: worker(job, index).state == "running"
            and worker(job, index).handle != worker(before, index).handle
        )
    job = mesh.until_phase(job_id, "Succeeded")
    assert job.progress.samples == job.progress.total == ROWS * epochs
    assert job.progress.requeues >= 3, "each returned the rest of its leases"
    assert [item["index"] for item in told(mesh, job_id, "job.role_notified")] == [0, 1, 0]
    assert all(item["expected"] for item in told(mesh, job_id, "job.role_exited") if item["role"] == "worker")
    assert job.gen == 1


@contextlib.contextmanager
def throttled(pid: int, *, share: float, period_s: float = 0.5) -> Iterator[None]:
    """The process runs for a share of each period: stopped, continued, stopped."""
    end = threading.Event()

    def turn() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not end.is_set():
                os.kill(pid, signal.SIGSTOP)
                end.wait(period_s * (1 - share))
                os.kill(pid, signal.SIGCONT)
                time.sleep(period_s * share)

    thread = threading.Thread(target=turn, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def test_a_slow_worker_is_answered_and_holds_up_neither_the_job_nor_its_end(mesh: TrainingMesh) -> None:
    epochs, step_s = 40, 0.05
    job_id = mesh.submit(paced(mesh, "straggler", workers=3, epochs=epochs, step_s=step_s))
    before = mesh.until_job(
        job_id, lambda job: job.phase == "Running" and all(worker(job, i).samples > 4 * BATCH for i in range(3))
    )
    victim = worker(before, 2)
    began = time.monotonic()
    with throttled(int(victim.handle), share=0.05):
        until(lambda: bool(told(mesh, job_id, "job.straggler_detected")), timeout_s=60.0)
        job = mesh.until_phase(job_id, "Succeeded")
        took_s = time.monotonic() - began
    assert job.progress.samples == job.progress.total == ROWS * epochs
    assert {item["index"] for item in told(mesh, job_id, "job.straggler_detected")} == {2}
    assert [item["answer"] for item in told(mesh, job_id, "job.straggler_detected")][:1] == ["smaller shards"]
    assert told(mesh, job_id, "job.decided") and told(mesh, job_id, "job.effect_observed")
    assert job.gen == 1 and worker(job, 2).restarts == 0, "neither the job nor the worker was started again"
    # Alone on what it held when it was slowed, the worker would have needed 32 batches of a second each.
    alone_s = 32 * step_s / 0.05
    rest_s = (job.progress.total - before.progress.samples) / BATCH * step_s / 2
    assert took_s < max(rest_s, 10.0) * 2 + alone_s / 2, (took_s, rest_s)




GROWING = '''"""A table that gets a row of a kibibyte for every sample."""

import os
import time

import numpy as np

from recmesh.trainer.session import EmbeddingTable


class Growing:
    framework = "torch"
    tables = (EmbeddingTable("item", 128),)
    dense = ()

    def predict(self, batch, rows, index, dense):
        return np.full(batch.size, 0.5, np.float32)


def main(job):
    job.attach(Growing())
    for step in job.session.steps():
        time.sleep(float(os.environ.get("STEP_S", "0")))
        step.push({"item": np.ones_like(step.rows["item"])}, {}, loss=0.5)
'''
GROWN_ROWS = 400_000


def growing(
    mesh: TrainingMesh, name: str, *, memory: str, memory_max: str, step_s: float = 0.0
) -> dict[str, Any]:
    """Its rows take 400 MiB and more: values and Adagrad's state."""
    code = mesh.folder / "growing"
    code.mkdir(exist_ok=True)
    (code / "growing.py").write_text(GROWING)
    numbers = np.arange(GROWN_ROWS)
    pq.write_table(pa.table({"item": numbers, "label": (numbers % 2).astype("float32")}), mesh.folder / "ids.parquet")
    path = os.pathsep.join([str(code), os.environ.get("PYTHONPATH", "")])
    return {
        "name": name,
        "model": {"entrypoint": "growing:main"},
        "data": {
            "source": {"format": "parquet", "files": [str(mesh.folder / "ids.parquet")]},
            "features": [{"name": "item"}], "task_rows": 50_000,
        },
        "training": {"batch_size": 500, "shard_batches": 8, "optimizer": {"kind": "adagrad", "lr": 0.01}},
        "roles": {
            "ps": {"replicas": 1, "memory": memory, "memory_max": memory_max},
            "worker": {"replicas": 2, "env": {"PYTHONPATH": path, "STEP_S": str(step_s)}},
        },
        "checkpoint": {"every_s": 2}, "export": None,
    }


def test_a_server_that_runs_out_of_memory_comes_back_with_more_from_the_last_snapshot(tmp_path: Path) -> None:
    with training_mesh(tmp_path, RECMESH_MEMORY_HORIZON_S="0") as mesh:  # no forecast: it must die of it
        job_id = mesh.submit(growing(mesh, "hungry", memory="320Mi", memory_max="2Gi", step_s=0.05))
        job = mesh.until_phase(job_id, "Succeeded", timeout_s=300.0)
        exits = told(mesh, job_id, "job.role_exited")
        deaths = [item for item in exits if item["role"] == "ps" and not item["expected"]]
        assert deaths and all("OOMKilled" in item["reason"] for item in deaths)
        raised = told(mesh, job_id, "job.memory_raised")
        assert len(raised) == len(deaths) and raised[0]["cause"] == "oom"
        assert raised[0]["from_bytes"] == 320 << 20 and raised[-1]["to_bytes"] > 450 << 20
        assert job.gen == 1 + len(deaths)
        back = told(mesh, job_id, "job.rolled_back")
        assert back and back[-1]["snapshot"] > 0, "it did not begin anew"
        assert job.progress.samples == job.progress.total == GROWN_ROWS
        assert counted(mesh, job) == GROWN_ROWS, "every id has its row, once"
        assert [item["matter"] for item in told(mesh, job_id, "job.decided")] == ["memory"] * len(deaths)


def test_a_server_that_would_run_out_of_memory_gets_more_while_it_trains(tmp_path: Path) -> None:
    with training_mesh(tmp_path, RECMESH_MEMORY_LEAD_S="20", RECMESH_MEMORY_SETTLE_S="5") as mesh:
        job_id = mesh.submit(growing(mesh, "foreseen", memory="500Mi", memory_max="2Gi", step_s=0.1))
        job = mesh.until_phase(job_id, "Succeeded", timeout_s=300.0)
        raised = told(mesh, job_id, "job.memory_raised")
        assert raised and raised[0]["cause"] == "forecast"
        assert job.gen == 1 and not told(mesh, job_id, "job.rolled_back"), "it never died of it"
        assert counted(mesh, job) == GROWN_ROWS


def counted(mesh: TrainingMesh, job: pb.Job) -> int:
    """Rows of the closing snapshot that were trained exactly once; AssertionError when there is any other."""
    folder = mesh.storage / "checkpoints" / job.job_id / f"{job.snapshot:08d}"
    rows = read_table(open_folder(folder), "item")
    assert (rows.updates == 1).all() and (rows.frequency == 1).all()
    return len(rows.ids)
