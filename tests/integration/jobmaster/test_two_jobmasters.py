"""Two jobmasters on the same stores: one leads, the other refuses to act, and the lease says which."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.pb.jobmaster_pb2_grpc import JobsStub
from recmesh.runtime.errors import MeshError, Unavailable
from recmesh.runtime.rpc import sync_channel
from tests.support.servers import free_port
from tests.support.service_process import ServiceProcess
from tests.support.tiny_jobs import ROWS, tiny_job
from tests.support.training_mesh import TrainingMesh, training_mesh
from tests.support.waiting import until

pytestmark = pytest.mark.integration

EPOCHS = 30
"""At two workers and a twentieth of a second for each step: half a minute at least."""


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[TrainingMesh]:
    with training_mesh(tmp_path) as made:
        yield made


@pytest.fixture
def second(mesh: TrainingMesh) -> Iterator[ServiceProcess]:
    """Another jobmaster on the same stores and data folder."""
    address = f"127.0.0.1:{free_port()}"
    env = mesh.env | {
        "RECMESH_DATA_DIR": str(mesh.folder), "RECMESH_RPC_ADDRESS": address, "RECMESH_JOBMASTER_RPC": address,
    }
    folder = mesh.folder / "second"
    folder.mkdir()
    process = ServiceProcess("jobmaster", folder, env=env)
    try:
        yield process.start()
    finally:
        process.kill()


def leads(jobs: Any) -> bool:
    try:
        jobs.List(pb.ListRequest(), timeout=2.0)
    except MeshError:
        return False
    return True


def test_one_leads_at_a_time_and_no_sample_is_lost_or_trained_twice(
    mesh: TrainingMesh, second: ServiceProcess
) -> None:
    spec = tiny_job(mesh, "contested", epochs=EPOCHS)
    # Without a gateway there is nowhere to upload code: workers find it where it lies.
    path = os.pathsep.join([spec["model"].pop("code"), os.environ.get("PYTHONPATH", "")])
    spec["roles"]["worker"]["env"] = {"STEP_S": "0.05", "PYTHONPATH": path}
    job_id = mesh.submit(spec)
    before = mesh.until_job(job_id, lambda job: job.phase == "Running" and job.progress.samples > 0)
    channel = sync_channel(second.address())
    try:
        other: Any = JobsStub(channel)
        with pytest.raises(Unavailable, match="does not lead"):
            other.List(pb.ListRequest(), timeout=5.0)
        with pytest.raises(Unavailable, match="does not lead"):
            other.Stop(pb.StopRequest(job_id=job_id), timeout=5.0)
        with pytest.raises(Unavailable, match="does not lead"):
            other.Submit(pb.SubmitRequest(spec_json="{}"), timeout=5.0)

        # The leader stands still for longer than its lease: the other takes over, and its return changes nothing.
        first = mesh.services["jobmaster"].pid
        os.kill(first, signal.SIGSTOP)
        try:
            until(lambda: leads(other), timeout_s=120.0)
        finally:
            os.kill(first, signal.SIGCONT)
        until(lambda: not leads(mesh.jobs), timeout_s=120.0)
        assert leads(other)
        taken: pb.Job = other.Get(pb.JobRequest(job_id=job_id), timeout=10.0)
        assert taken.phase in ("Running", "Succeeded") and taken.gen == before.gen
        with pytest.raises(Unavailable, match="does not lead"):
            mesh.jobs.Stop(pb.StopRequest(job_id=job_id), timeout=5.0)

        # A leader of the same machine that is dead is replaced at once.
        second.kill()
        until(lambda: leads(mesh.jobs), timeout_s=120.0)
        job = mesh.until_phase(job_id, "Succeeded", timeout_s=300.0)
    finally:
        channel.close()
    assert job.progress.samples == job.progress.total == ROWS * EPOCHS
    assert job.gen == before.gen == 1
    assert {role.handle for role in job.roles} == {role.handle for role in before.roles}
    assert all(role.restarts == 0 for role in job.roles)
