"""Workers that are told to go, and workers that get slow, on real servers and processes: nothing is lost or awaited."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from recmesh.pb import jobmaster_pb2 as pb
from tests.support.tiny_jobs import BATCH, ROWS, tiny_job
from tests.support.training_mesh import TrainingMesh, training_mesh
from tests.support.waiting import until

pytestmark = pytest.mark.integration

LEASE_TTL_S = 3600.0
"""Longer than any test: whatever waits for a lease to expire fails by its timeout."""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingMesh]:
    settings = {
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
    return next(role for role in job.roles if (role.role, role.index) == ("worker", index))


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
    epochs, step_s = 60, 0.05
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


