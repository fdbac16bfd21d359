"""kill -9 of every process of the mesh while a job trains on real data: the job succeeds, and nothing is lost.

Each job is asked, before the kill, whether it still trains; and afterwards whether it has trained every sample of
every epoch exactly once, by the ledgers of its closing snapshot, and has registered its model.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from recmesh.client.views import Event, Job
from tests.support.waiting import until
from tests.support.whole_mesh import STEP_S, WholeMesh, flights_job, flights_samples, role

pytestmark = [pytest.mark.integration, pytest.mark.e2e, pytest.mark.long]


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeMesh]:
    made = WholeMesh(tmp_path_factory.mktemp("faults"))
    try:
        made.up()
        yield made
    finally:
        made.down()


def started(mesh: WholeMesh, name: str, *, epochs: int = 2) -> str:
    """A job that has trained a good part and has a snapshot, and has the larger part before it."""
    job_id = mesh.submit(flights_job(name, mesh.folder, epochs=epochs))
    mesh.trains(job_id, share=0.1)
    return job_id


def succeeded(mesh: WholeMesh, job_id: str, name: str, *, epochs: int = 2) -> Job:
    """The job, after its end: everything trained, and its model there."""
    job = mesh.ended(job_id)
    assert job.phase == "Succeeded", (job.phase, job.reason, job.message, job.notes)
    assert job.progress.samples == job.progress.total == flights_samples(flights_job(name, mesh.folder, epochs=epochs))
    assert job.progress.quarantined == 0 and job.progress.skipped_nan == 0
    versions = mesh.asked(lambda client: client.model(name))
    assert [version.job_id for version in versions] == [job_id]
    assert unexpected(mesh, job_id, "finisher") == []
    return job


def unexpected(mesh: WholeMesh, job_id: str, kind: str) -> list[int]:
    """Places of a role whose processes ended without being asked, once for each time."""
    return [
        event.data["index"] for event in mesh.events(job_id, "job.role_exited")
        if event.data["role"] == kind and not event.data["expected"]
    ]


def replacements(mesh: WholeMesh, job_id: str, kind: str) -> list[Event]:
    """Starts of processes that took over a place."""
    return [
        event for event in mesh.events(job_id, "job.role_started")
        if event.data["role"] == kind and event.data["restarts"]
    ]


def test_a_killed_worker_is_replaced_and_its_leases_are_queued_again(mesh: WholeMesh) -> None:
    job_id = started(mesh, "without-a-worker")
    victim = role(mesh.job(job_id), "worker", 0)
    os.kill(int(victim.handle), signal.SIGKILL)
    job = succeeded(mesh, job_id, "without-a-worker")
    assert job.gen == 1 and mesh.events(job_id, "job.rolled_back") == []
    assert job.progress.requeues >= 1
    requeued = mesh.events(job_id, "lease.requeued")
    assert requeued and all(event.data["worker"].startswith("0-") for event in requeued)
    assert [event.data["index"] for event in replacements(mesh, job_id, "worker")] == [0]
    assert unexpected(mesh, job_id, "worker") == [0] and unexpected(mesh, job_id, "ps") == []


def test_a_killed_parameter_server_is_a_rollback_and_the_count_is_exact(mesh: WholeMesh) -> None:
    job_id = started(mesh, "without-a-ps")
    before = mesh.job(job_id)
    os.kill(int(role(before, "ps", 1).handle), signal.SIGKILL)
    job = succeeded(mesh, job_id, "without-a-ps")
    assert job.gen > before.gen
    [back] = mesh.events(job_id, "job.rolled_back")
    assert back.data["gen"] == job.gen and back.data["snapshot"] >= before.snapshot
    assert [event.data["index"] for event in replacements(mesh, job_id, "ps")] == [1]
    assert unexpected(mesh, job_id, "ps") == [1] and unexpected(mesh, job_id, "worker") == []
    assert "Recovering" in [step.to_phase for step in job.transitions]


def test_a_damaged_delta_is_passed_over_and_training_goes_on_from_the_snapshot_before(mesh: WholeMesh) -> None:
    name = "with-damage"
    spec = flights_job(name, mesh.folder) | {"checkpoint": {"every_s": 3600, "full_every": 5, "keep": 3}}
    job_id = mesh.submit(spec)
    mesh.trains(job_id, share=0.1, snapshots=0)
    whole, before, newest = (mesh.asked(lambda client: client.checkpoint(job_id)) for _ in range(3))
    (storage,) = mesh.home.root.glob(f"**/checkpoints/{job_id}")
    manifest = json.loads((storage / f"{newest:08}" / "manifest.json").read_text())
    assert [base["snapshot"] for base in manifest["chain"]] == [before, whole]
    copies = list((mesh.home.shm / "ckptcache").glob(f"{job_id}.{newest:08}.*"))
    groups = list(storage.glob(f"{newest:08}/ps-*/group-*.arrow"))
    assert copies and groups
    for path in [*copies, *groups]:
        damage(path)
    assert mesh.is_training(job_id)
    for item in mesh.job(job_id).roles:
        os.kill(int(item.handle), signal.SIGKILL)
    job = succeeded(mesh, job_id, name)
    assert [back.data["snapshot"] for back in mesh.events(job_id, "job.rolled_back")] == [before]
    assert any(f"snapshot {newest} cannot be restored" in note for note in job.notes), job.notes
    kept = [item.snapshot for item in mesh.client.checkpoints(job_id) if item.state == "committed"]
    damage(next(storage.glob(f"{kept[-1]:08}/ps-*/group-*.arrow")))
    assert f"{kept[-1]} is damaged" not in mesh.run("checkpoints", job_id).stdout, "nobody has looked yet"
    found = mesh.run("checkpoints", job_id, "--verify")
    assert found.returncode == 1 and f"{kept[-1]} is damaged" in found.stdout, found.stdout


def damage(path: Path) -> None:
    """Every byte is another; the length stays, for whoever has the file mapped."""
    held = path.read_bytes()
    with path.open("r+b") as file:
        file.write(bytes(byte ^ 0xFF for byte in held))


@pytest.mark.parametrize(
    "victims",
    [
        [["jobmaster"], ["shardsvc"], ["valkey"]],
        [["nats"], ["ckptcache", "brain", "forecaster", "gateway"]],
    ],
    ids=["jobmaster, shardsvc, valkey", "nats, then ckptcache, brain, forecaster and gateway"],
)
def test_training_goes_on_through_the_death_of(mesh: WholeMesh, victims: list[list[str]]) -> None:
    name = f"without-{victims[0][0]}"
    job_id = started(mesh, name, epochs=3)
    processes = {item.handle for item in mesh.job(job_id).roles}
    for together in victims:
        assert mesh.is_training(job_id), "the job trained faster than its surroundings died"
        mesh.kill(*together)
    job = succeeded(mesh, job_id, name, epochs=3)
    assert job.gen == 1, "no parameter server was harmed"
    assert {item.handle for item in job.roles if item.role != "finisher"} == processes
    assert unexpected(mesh, job_id, "worker") == unexpected(mesh, job_id, "ps") == []


def test_a_job_goes_on_after_kill_9_of_everything(mesh: WholeMesh) -> None:
    job_id = started(mesh, "without-anything")
    before = mesh.job(job_id)
    mesh.kill_everything()
    mesh.up()
    until(lambda: mesh.job(job_id).gen > before.gen, timeout_s=STEP_S, poll_s=0.2)
    job = succeeded(mesh, job_id, "without-anything")
    assert [back.data["snapshot"] for back in mesh.events(job_id, "job.rolled_back")] >= [before.snapshot]
    assert job.created == before.created
