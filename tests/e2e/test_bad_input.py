"""What a person may get wrong, beyond `test_up.py`: one clear error that names field and reason, an exit code that
is not 0, and nothing created or left running.
"""

import contextlib
import io
import json
import mmap
import os
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recmesh.cli.exit_codes import ExitCode
from recmesh.runtime.errors import InvalidArgument
from tests.support.waiting import until
from tests.support.whole_mesh import FLIGHTS, STEP_S, WholeMesh, flights_job, flights_samples

pytestmark = [pytest.mark.integration, pytest.mark.e2e]

KEY = "the-key-of-this-mesh"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeMesh]:
    made = WholeMesh(tmp_path_factory.mktemp("bad-input"), RECMESH_API_KEY=KEY)
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def unborn(tmp_path: Path) -> Iterator[WholeMesh]:
    """A mesh that shall not come up."""
    made = WholeMesh(tmp_path)
    made.home.root.mkdir()
    try:
        yield made
    finally:
        made.down()


def small_job(mesh: WholeMesh, name: str) -> dict[str, Any]:
    spec = flights_job(name, mesh.folder, rows=0.02, epochs=1, step_s=0.0)
    spec["roles"] = {"ps": {"replicas": 1}, "worker": {"replicas": 1}}
    return spec


def submitted(mesh: WholeMesh, spec: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    return mesh.run("submit", mesh.write(f"{spec['name']}.json", json.dumps(spec)), *options)


def refused(result: subprocess.CompletedProcess[str], code: ExitCode, *words: str) -> None:
    """One block on stderr, and this exit code."""
    assert result.returncode == code, (result.stdout, result.stderr)
    assert result.stderr.startswith("error: ") and result.stderr.count("error: ") == 1
    assert all(word in result.stderr for word in words), result.stderr
    assert "Traceback" not in result.stderr + result.stdout


# -- a model ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("entrypoint", "reason"),
    [("nowhere:main", "there is no module nowhere"), ("paced:nothing", "paced has no function nothing")],
    ids=["module", "function"],
)
def test_an_entry_point_that_is_not_there_fails_the_job_with_its_name(
    mesh: WholeMesh, entrypoint: str, reason: str
) -> None:
    spec = small_job(mesh, f"no-{entrypoint.replace(':', '-')}")
    spec["model"]["entrypoint"] = entrypoint
    result = submitted(mesh, spec, "--wait")
    assert result.returncode == ExitCode.JOB_FAILED, (result.stdout, result.stderr)
    assert "model.entrypoint" in result.stdout and reason in result.stdout.splitlines()[-1]
    assert "Traceback" not in result.stdout + result.stderr
    job = mesh.job(spec["name"])
    assert (job.phase, job.reason) == ("Failed", "UserError")
    assert reason in mesh.ok("describe", spec["name"])
    until(lambda: not mesh.roles(), timeout_s=STEP_S)
    assert spec["name"] not in [model.name for model in mesh.client.models()]


# -- data -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": [{"name": "planet"}]}, ["data.features.planet", "there is no column 'planet'"]),
        ({"features": [{"name": "from", "column": "planet"}]}, ["data.features.from.column", "'planet'"]),
        ({"features": [{"name": "origin", "kind": "dense"}]}, ["data.features.origin", "is of type string"]),
        ({"weight": "heft"}, ["data.weight", "there is no column 'heft'"]),
    ],
    ids=["feature", "column of a feature", "type", "weight"],
)
def test_a_wrong_column_is_named_with_those_that_there_are(
    mesh: WholeMesh, change: dict[str, Any], words: list[str]
) -> None:
    spec = small_job(mesh, "wrong-column")
    spec["data"] |= change
    refused(submitted(mesh, spec), ExitCode.USAGE, *words)
    assert "wrong-column" not in [job.name for job in mesh.client.jobs().jobs]


def test_a_missing_file_of_the_evaluation_is_named(mesh: WholeMesh) -> None:
    spec = small_job(mesh, "unjudged")
    spec["evaluation"] = {"data": spec["data"] | {"source": {"format": "parquet", "files": ["gone.parquet"]}}}
    result = submitted(mesh, spec)
    assert result.returncode != 0
    refused(result, ExitCode(result.returncode), "evaluation.data", "gone.parquet")
    assert "unjudged" not in [job.name for job in mesh.client.jobs().jobs]


@pytest.mark.long
def test_a_file_that_goes_away_during_training_fails_the_job_with_its_name(mesh: WholeMesh) -> None:
    data = mesh.folder / "going.parquet"
    shutil.copy(FLIGHTS, data)
    spec = flights_job("vanishing", mesh.folder)
    spec["data"]["source"]["files"] = [str(data)]
    job_id = mesh.submit(spec)
    mesh.trains(job_id, share=0.02, snapshots=0)
    data.unlink()
    job = mesh.ended(job_id)
    assert (job.phase, job.reason) == ("Failed", "UserError")
    assert "going.parquet" in job.message and "gone" in job.message
    until(lambda: not mesh.roles(), timeout_s=STEP_S)


# -- the API ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["wrong", ""], ids=["a wrong key", "no key"])
def test_without_the_right_api_key_nothing_is_told_and_nothing_done(mesh: WholeMesh, key: str) -> None:
    """Of whoever has not the mesh's folder: in that a key for its owner lies."""
    elsewhere = {"RECMESH_API_KEY": key, "RECMESH_URL": mesh.client.url, "RECMESH_HOME": str(mesh.folder / "another")}
    spec = small_job(mesh, "uninvited")
    file = mesh.write("uninvited.json", json.dumps(spec))
    for command in (["jobs"], ["submit", file], ["dataset", "list"], ["models"]):
        refused(mesh.run(*command, **elsewhere), ExitCode.REFUSED, "API key")
    assert "uninvited" not in [job.name for job in mesh.client.jobs().jobs]


@pytest.mark.parametrize("name", ["../escaped.py", "/tmp/escaped.py", "a/../../escaped.py"])
def test_code_with_a_path_outside_is_refused_and_not_stored(mesh: WholeMesh, name: str) -> None:
    stored = mesh.home.storage / "code"
    before = sorted(stored.glob("*")) if stored.exists() else []
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = 5
        archive.addfile(member, io.BytesIO(b"x = 1"))
    with pytest.raises(InvalidArgument, match=r"escaped\.py"):
        mesh.client.upload_code(buffer.getvalue())
    assert (sorted(stored.glob("*")) if stored.exists() else []) == before
    assert not Path("/tmp/escaped.py").exists() and list(mesh.home.root.rglob("escaped.py")) == []


def test_code_with_a_link_outside_is_refused_before_it_is_sent(mesh: WholeMesh) -> None:
    code = mesh.folder / "linked"
    code.mkdir()
    (code / "main.py").write_text("def main(job): pass")
    (code / "passwords").symlink_to("/etc/passwd")
    spec = small_job(mesh, "linked")
    spec["model"] |= {"entrypoint": "main:main", "code": str(code)}
    refused(submitted(mesh, spec), ExitCode.USAGE, "passwords")
    assert "linked" not in [job.name for job in mesh.client.jobs().jobs]


# -- the machine ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gateway.http", "nats"])
def test_a_port_that_is_taken_is_named_with_who_has_it_and_nothing_runs(unborn: WholeMesh, name: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        table = f"nats = {port}" if name == "nats" else f'services = {{"{name}" = {port}}}'
        (unborn.home.root / "config.toml").write_text(f"[ports]\n{table}\n")
        refused(unborn.run("up"), ExitCode.REFUSED, f"port {port} for {name} is taken", f"pid {os.getpid()}", "[ports]")
    assert unborn.is_empty()


@pytest.fixture
def tiny(unborn: WholeMesh) -> Iterator[WholeMesh]:
    """A mesh whose data folder is on a file system of 8 MiB."""
    with mounted(unborn.home.root, mebibytes=8):
        yield unborn
        unborn.down()


@contextlib.contextmanager
def mounted(folder: Path, *, mebibytes: int) -> Iterator[None]:
    """A small file system at `folder`; skips where none can be mounted."""
    if os.getuid():
        pytest.skip("mounting a small file system needs root")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(ballast: Path) -> None:
    """Write until nothing more fits, whatever others write or remove meanwhile."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(mmap.PAGESIZE)):
            pass


def test_a_data_folder_on_a_full_file_system_is_refused_and_nothing_runs(tiny: WholeMesh) -> None:
    refused(tiny.run("up"), ExitCode.REFUSED, f"the data folder {tiny.home.root} is full", "MiB")
    fill(tiny.home.root / "ballast")
    refused(tiny.run("up"), ExitCode.REFUSED, f"the data folder {tiny.home.root}", "No space left on device")
    assert tiny.is_empty()


@pytest.mark.long
def test_storage_that_runs_full_is_told_in_the_job_which_goes_on_once_there_is_room(tmp_path: Path) -> None:
    mesh = WholeMesh(tmp_path)
    with mounted(mesh.home.storage, mebibytes=24):
        try:
            mesh.up()
            spec = flights_job("crowded", mesh.folder)
            job_id = mesh.submit(spec)
            mesh.trains(job_id, share=0.05)
            ballast = mesh.home.storage / "ballast"
            fill(ballast)
            until(lambda: "storage is full" in mesh.job(job_id).message, timeout_s=STEP_S, poll_s=0.2)
            assert "storage is full" in mesh.ok("describe", job_id)
            # Nothing is lost, and nothing committed that is not whole: it waits.
            until(lambda: mesh.job(job_id).progress.share == 1, timeout_s=STEP_S, poll_s=0.2)
            assert mesh.job(job_id).phase == "Running"
            ballast.unlink()
            job = mesh.ended(job_id)
            assert job.phase == "Succeeded", (job.reason, job.message)
            assert job.progress.samples == job.progress.total == flights_samples(spec)
            assert "full" not in job.message
        finally:
            mesh.down()


def test_a_key_is_needed_to_listen_beyond_this_machine(unborn: WholeMesh) -> None:
    refused(unborn.run("up", "--listen", "0.0.0.0"), ExitCode.REFUSED, "API key", "RECMESH_API_KEY")
    assert unborn.is_empty()


def test_a_mesh_that_is_not_there_is_told_by_every_verb(unborn: WholeMesh) -> None:
    file = unborn.write("job.json", json.dumps(small_job(unborn, "nowhere")))
    for command in (["submit", file], ["jobs"], ["top"], ["models"]):
        result = unborn.run(*command)
        refused(result, ExitCode(result.returncode), "recmesh up")
        assert result.returncode in (ExitCode.NOT_FOUND, ExitCode.UNREACHABLE)
    assert unborn.is_empty()
