"""A real job on this machine that is suspended and resumed: by call, by event, over the death of its jobmaster."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import FailedPrecondition
from recmesh.runtime.events import Event, catalog
from tests.support.tiny_jobs import ROWS, tiny_job
from tests.support.training_mesh import TrainingMesh, training_mesh

pytestmark = [pytest.mark.integration, pytest.mark.long]

EPOCHS = 10


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[TrainingMesh]:
    with training_mesh(tmp_path) as made:
        yield made


def job(mesh: TrainingMesh) -> dict[str, Any]:
    spec = tiny_job(mesh, "paused", epochs=EPOCHS)
    path = os.pathsep.join([spec["model"].pop("code"), os.environ.get("PYTHONPATH", "")])
    spec["roles"]["worker"]["env"] = {"STEP_S": "0.05", "PYTHONPATH": path}
    spec["checkpoint"] = {"every_s": 3600}
    return spec


def test_a_suspended_job_holds_no_process_and_ends_with_every_sample_once(mesh: TrainingMesh) -> None:
    job_id = mesh.submit(job(mesh))
    before = mesh.until_job(job_id, lambda job: job.phase == "Running" and job.progress.samples > 0)
    mesh.jobs.Suspend(pb.SuspendRequest(job_id=job_id, reason="for a while"), timeout=10)
    still = mesh.until_job(job_id, lambda job: job.phase == "Suspended")
    assert still.snapshot > 0 and 0 < still.progress.samples < ROWS * EPOCHS and still.message == "for a while"
    pids = [int(role.handle) for role in still.roles if role.handle]
    assert {role.state for role in still.roles} == {"exited"} and len(pids) >= len(before.roles)
    assert not any(psutil.pid_exists(pid) for pid in pids)

    mesh.services["jobmaster"].kill()
    mesh.services["jobmaster"].start()
    assert mesh.until_job(job_id, lambda job: True).phase == "Suspended"
    asyncio.run(_tell(mesh, job_id, catalog.JOB_RESUME, catalog.JobResume()))
    done = mesh.until_phase(job_id, "Succeeded", timeout_s=300.0)
    assert done.progress.samples == done.progress.total == ROWS * EPOCHS
    with pytest.raises(FailedPrecondition, match="trains no more"):
        mesh.jobs.Suspend(pb.SuspendRequest(job_id=job_id), timeout=10)


async def _tell(mesh: TrainingMesh, job_id: str, kind: Any, data: Any) -> None:
    """As any program with a NATS client."""
    bus = Bus(mesh.nats.url, "tests")
    await bus.start()
    try:
        await bus.publish(Event(kind, job_id, data))
    finally:
        await bus.stop()
