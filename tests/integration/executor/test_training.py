"""Jobs that read from data executors: real servers, real processes, and executors that die."""

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from recmesh.pb import jobmaster_pb2 as pb
from tests.support.tiny_jobs import ROWS, tiny_job
from tests.support.training_mesh import TrainingMesh, training_mesh

pytestmark = pytest.mark.integration
COUNTED = '''"""Parquet, and who has read which slice, line by line."""

import os

from recmesh.data.fileformats.parquet import Parquet


class Counted(Parquet):
    def reader(self, spec, *, cache_bytes):
        made = super().reader(spec, cache_bytes=cache_bytes)
        read = made.read

        def counted(piece):
            line = f"{os.getpid()} {os.path.basename(piece.uri)} {piece.first_row} {piece.rows}\\n"
            log = os.open(os.path.join(os.path.dirname(__file__), "reads"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(log, line.encode())
            os.close(log)
            return read(piece)

        made.read = counted
        return made
'''


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingMesh]:
    """Beside it lies a package that adds the file format `counted`."""
    folder = tmp_path_factory.mktemp("mesh")
    installed = folder / "packages" / "counted-1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: counted\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[recmesh.file_formats]\ncounted = counted:Counted\n")
    (installed.parent / "counted.py").write_text(COUNTED)
    path = os.pathsep.join([str(installed.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with training_mesh(folder, PYTHONPATH=path) as made:
        yield made


def job_of(mesh: TrainingMesh, name: str, *, executors: int, epochs: int = 1, step_s: float = 0.0, **data: Any) -> Any:
    spec = tiny_job(mesh, name, epochs=epochs)
    # Without a gateway there is nowhere to upload code: workers find it where it lies.
    path = os.pathsep.join([spec["model"].pop("code"), mesh.env["PYTHONPATH"]])
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


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_two_jobs_that_read_alike_share_an_executor_which_reads_each_task_once_for_both(mesh: TrainingMesh) -> None:
    """Once for each order of its rows, that is, for each epoch: what the buffer has room for is kept."""
    epochs = 2
    host_spec = job_of(mesh, "host", executors=1, epochs=1000, step_s=0.2, shared=True)
    own, both = mesh.folder / "own.parquet", mesh.folder / "rows.parquet"
    shutil.copy(both, own)                      # which files are read is not of how they are read
    host_spec["data"]["source"] |= {"format": "counted", "files": [str(own)]}
    host = mesh.submit(host_spec)
    job = mesh.until_job(host, lambda job: ended(job) or decoded(job) > 0)
    [executor] = executors(job)
    guests = []
    for name in ("first", "second"):            # they know of the executor before they read
        spec = job_of(mesh, name, executors=0, epochs=epochs, shared=True)
        spec["data"]["source"] |= {"format": "counted", "files": [str(both)]}
        guests.append(mesh.submit(spec))
    for job_id in guests:
        job = mesh.until_phase(job_id, "Succeeded")
        assert job.progress.samples == epochs * ROWS and executors(job) == []
    mesh.jobs.Stop(pb.StopRequest(job_id=host), timeout=10)
    reads = [line.split() for line in (mesh.folder / "packages" / "reads").read_text().splitlines()]
    of_both = Counter((int(first), int(rows)) for _, name, first, rows in reads if name == both.name)
    assert of_both == {(first, 200): epochs for first in range(0, ROWS, 200)}
    assert {pid for pid, name, *_ in reads if name == both.name} == {executor.handle}
