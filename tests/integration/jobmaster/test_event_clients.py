"""Programs that have a NATS client and nothing of recmesh submit, watch and stop jobs: the examples, as they are."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.bus import Bus
from recmesh.runtime.events import access
from tests.support.tiny_jobs import tiny_job
from tests.support.training_mesh import TrainingMesh, training_mesh

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[3] / "examples" / "events"
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingMesh]:
    with training_mesh(tmp_path_factory.mktemp("mesh")) as made:
        yield made


def python(_: Path) -> Sequence[str]:
    return [sys.executable, str(EXAMPLES / "jobs.py")]


def javascript(folder: Path) -> Sequence[str]:
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("node and npm are not on this machine")
    for name in ("jobs.mjs", "package.json"):
        shutil.copy(EXAMPLES / name, folder / name)
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], cwd=folder, capture_output=True, text=True,
        check=False, timeout=180,
    )
    if done.returncode:
        pytest.skip(f"npm cannot install `nats` here: {done.stderr.strip().splitlines()[-1:]}")
    return ["node", str(folder / "jobs.mjs")]


def cli(_: Path) -> Sequence[str]:
    if not shutil.which("nats"):
        pytest.skip("the `nats` command is not on this machine")
    return ["sh", str(EXAMPLES / "jobs.sh")]


def job_of(mesh: TrainingMesh, name: str) -> dict[str, Any]:
    """It would train for minutes."""
    spec = tiny_job(mesh, name, workers=1, epochs=100)
    path = os.pathsep.join([spec["model"].pop("code"), os.environ.get("PYTHONPATH", "")])
    spec["roles"]["worker"]["env"] = {"STEP_S": "0.1", "PYTHONPATH": path}
    return spec


def run(mesh: TrainingMesh, command: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "HOME": str(mesh.folder), "NATS_URL": mesh.nats.url}
    return subprocess.run(
        [*command, *arguments], env=env, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


@pytest.mark.long
@pytest.mark.parametrize("client", [python, javascript])
def test_a_program_with_a_nats_client_submits_watches_and_stops_a_job(
    mesh: TrainingMesh, tmp_path: Path, client: Any
) -> None:
    command = client(tmp_path)
    name = f"by-{client.__name__}"
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job_of(mesh, name)))
    submitted = run(mesh, command, "submit", str(file))
    assert submitted.returncode == 0, submitted.stderr
    job_id = submitted.stdout.strip()
    assert mesh.job(job_id).spec_json and job_id == name

    env = {"PATH": os.environ["PATH"], "HOME": str(mesh.folder), "NATS_URL": mesh.nats.url}
    with subprocess.Popen([*command, "watch", job_id], env=env, stdout=subprocess.PIPE, text=True) as watching:
        try:
            mesh.until_phase(job_id, "Running")
            stopped = run(mesh, command, "stop", job_id)
            assert (stopped.returncode, stopped.stdout.strip()) == (0, "Stopped"), stopped.stderr
            said, _ = watching.communicate(timeout=PATIENCE_S)
        finally:
            watching.kill()
    assert watching.returncode == 2
    lines = [line.split(" ", 1) for line in said.splitlines()]
    phases = [json.loads(data)["to_phase"] for event, data in lines if event == "job.transitioned"]
    assert {"job.submit", "job.submitted", "audit.recorded"} == {event for event, _ in lines[:3]}
    assert phases[-1] == "Stopped" and "Running" in phases
    assert "by events" in json.dumps([json.loads(data) for _, data in lines])

    wrong = job_of(mesh, f"{name}-wrong") | {"surprise": 1}
    file.write_text(json.dumps(wrong))
    refused = run(mesh, command, "submit", str(file))
    assert refused.returncode == 1 and "surprise" in refused.stderr
    unknown = run(mesh, command, "stop", "no-such-job")
    assert unknown.returncode == 1 and "NO_SUCH_JOB" in unknown.stderr
    told = [(each.verb, each.object, each.outcome, each.via) for each in asyncio.run(audit(mesh))
            if client.__name__ in each.actor]  # fmt: skip
    assert told == [
        ("submit", job_id, "done", "event"), ("stop", job_id, "done", "event"),
        ("submit", f"{name}-wrong", "refused", "event"), ("stop", "no-such-job", "refused", "event"),
    ]


def test_the_nats_command_submits_watches_and_stops_a_job(mesh: TrainingMesh, tmp_path: Path) -> None:
    command = cli(tmp_path)
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job_of(mesh, "by-cli")))
    submitted = run(mesh, command, "submit", str(file))
    assert submitted.returncode == 0, submitted.stderr
    mesh.until_job("by-cli", lambda job: job.phase == "Running")
    env = {"PATH": os.environ["PATH"], "HOME": str(mesh.folder), "NATS_URL": mesh.nats.url}
    with subprocess.Popen([*command, "watch", "by-cli"], env=env, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert run(mesh, command, "stop", "by-cli").returncode == 0
            mesh.until_job("by-cli", lambda job: job.phase == "Stopped")
            said: list[str] = []
            assert watching.stdout is not None
            for line in watching.stdout:
                said.append(line)
                if "Stopped" in line:
                    break
        finally:
            watching.kill()
    assert any("job.submitted" in line for line in said)


async def audit(mesh: TrainingMesh) -> list[access.AuditRecorded]:
    bus = Bus(mesh.nats.url, "tests")
    await bus.start()
    found = [event.data async for _, event in bus.events(access.AUDIT_RECORDED.subject, to_end=True)]
    await bus.stop()
    return found
