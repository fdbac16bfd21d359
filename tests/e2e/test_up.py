"""`recmesh` as a person runs it: the real servers, the six services, the command line."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recmesh.cli.exit_codes import ExitCode
from recmesh.cli.mesh import exits, stop
from recmesh.cli.mesh.home import Home
from recmesh.cli.mesh.table import SERVICES
from recmesh.runtime.process import ProcessHandle, find
from tests.support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.e2e]

ROWS = "origin,distance,label\n" + "".join(f"{'JFK' if n % 3 else 'SFO'},{n},{n % 2}\n" for n in range(500))
START_S = 300.0
"""Six services on a busy machine."""


class Mesh:
    """A data folder and the command line over it."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder / "mesh")
        self.folder = folder

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("RECMESH_")}
        return subprocess.run(
            [sys.executable, "-m", "recmesh.cli.main", *arguments], cwd=self.folder, capture_output=True,
            text=True, check=False, timeout=START_S + 60, env=env | {"RECMESH_HOME": str(self.home.root)},
        )  # fmt: skip

    def ok(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def up(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ok("up", "--json", "--timeout", str(START_S)))
        return found

    def component(self, name: str) -> ProcessHandle:
        return next(handle for handle in find(self.home.components) if handle.name == name)

    def pid(self, name: str) -> int | None:
        return next((handle.pid for handle in find(self.home.components) if handle.name == name), None)

    def is_ready(self) -> bool:
        return self.run("status").returncode == 0

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    made = Mesh(tmp_path_factory.mktemp("e2e"))
    made.write("rows.csv", ROWS)
    made.write(
        "data.yaml",
        "source: {format: csv, files: [rows.csv]}\n"
        "features: [{name: origin}, {name: distance, kind: dense}]\n",
    )
    try:
        made.up()
        yield made
    finally:
        stop.down(made.home)


def get(url: str) -> tuple[int, str]:
    with urllib.request.urlopen(url, timeout=20) as response:
        return response.status, response.read().decode()


def test_every_service_is_ready_and_shows_its_dashboard(mesh: Mesh) -> None:
    found = mesh.up()
    assert found["ran_already"] and found["ready"]
    assert set(found["components"]) == {"nats", "valkey", *SERVICES}
    for service in SERVICES:
        address = found["components"][service]["addresses"]["http"]
        assert get(f"{address}/readyz")[0] == 200
        status, page = get(f"{address}/")
        assert status == 200 and service in page.lower()


def test_the_gateway_sees_all_services_healthy(mesh: Mesh) -> None:
    body = json.loads(get(f"{mesh.up()['gateway']}/v1/mesh")[1])
    assert body["healthy"] and {item["service"] for item in body["services"]} >= set(SERVICES) - {"gateway"}


def test_a_second_up_prints_the_addresses(mesh: Mesh) -> None:
    text = mesh.ok("up")
    assert "is running" in text and "REST API  http://127.0.0.1:" in text


@pytest.mark.long
@pytest.mark.parametrize("service", ["nats", "valkey", "brain", "gateway"])
def test_what_is_killed_comes_back_at_the_same_address(mesh: Mesh, service: str) -> None:
    before = mesh.up()["components"][service]
    mesh.component(service).kill()
    until(lambda: mesh.pid(service) != before["pid"], timeout_s=START_S)
    until(mesh.is_ready, timeout_s=START_S, poll_s=0.5)
    after = mesh.up()["components"][service]
    assert after["addresses"] == before["addresses"] and after["pid"] != before["pid"]
    assert (service, "killed by SIGKILL") in [
        (end["name"], end["reason"]) for end in exits.read(mesh.home.exits_file, last=20)
    ]


@pytest.mark.long
def test_what_was_acknowledged_survives_kill_9_of_everything(mesh: Mesh) -> None:
    mesh.ok("dataset", "register", "data.yaml", "--name", "kept")
    keeper = stop.supervisor(mesh.home)
    assert keeper
    everything = [keeper, *stop.living(mesh.home)]
    for handle in everything:
        os.kill(handle.start.shim_pid, signal.SIGKILL)
    for handle in everything:
        handle.kill()
    until(lambda: not any(handle.alive() for handle in everything))
    mesh.up()
    assert "kept" in [item["name"] for item in json.loads(mesh.ok("dataset", "list", "--json"))]


def test_logs_of_a_service_are_shown(mesh: Mesh) -> None:
    assert "ready" in mesh.ok("logs", "brain", "--tail", "50")
    assert mesh.run("logs", "nobody").returncode == ExitCode.NOT_FOUND


@pytest.mark.parametrize(
    ("change", "path", "code"),
    [
        ("model.zoo=nonsense", "model.zoo", ExitCode.USAGE),
        ('data.source.files=["nowhere.csv"]', "data.source.files", ExitCode.USAGE),
        ('data.source={"files": ["broken.parquet"]}', "broken.parquet", ExitCode.USAGE),
        ("data.label=nothing", "data.label", ExitCode.USAGE),
        ("roles.worker.max=0", "roles.worker", ExitCode.USAGE),
    ],
    ids=["unknown model", "missing file", "unreadable Parquet", "wrong column", "no worker"],
)
def test_a_bad_job_is_refused_with_the_field_and_nothing_is_created(
    mesh: Mesh, change: str, path: str, code: ExitCode
) -> None:
    (mesh.folder / "broken.parquet").write_bytes(b"PAR1 this is no parquet file PAR1")
    mesh.write(
        "job.yaml",
        "name: e2e\nmodel: {zoo: torch_dcn_v2}\ndata:\n  source: {format: csv, files: [rows.csv]}\n"
        "  features: [{name: origin}, {name: distance, kind: dense}]\n",
    )
    before = json.loads(mesh.ok("jobs", "--json"))["jobs"]
    result = mesh.run("submit", "job.yaml", "--set", change)
    assert result.returncode == code, (result.stdout, result.stderr)
    assert result.stderr.startswith("error: ") and path in result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads(mesh.ok("jobs", "--json"))["jobs"] == before


def test_a_dry_run_creates_nothing(mesh: Mesh) -> None:
    mesh.write(
        "good.yaml",
        "name: e2e\nmodel: {zoo: torch_dcn_v2}\ndata:\n  source: {format: csv, files: [rows.csv]}\n"
        "  features: [{name: origin}, {name: distance, kind: dense}]\n",
    )
    assert "nothing was created" in mesh.ok("submit", "good.yaml", "--dry-run")
    assert json.loads(mesh.ok("jobs", "--json"))["jobs"] == []


def test_datasets_are_inspected(mesh: Mesh) -> None:
    assert "500" in mesh.ok("dataset", "inspect", "data.yaml")


@pytest.mark.parametrize("verb", ["describe", "events", "checkpoints", "stop"])
def test_a_job_that_is_not_there_is_not_found(mesh: Mesh, verb: str) -> None:
    result = mesh.run(verb, "nobody")
    assert result.returncode == ExitCode.NOT_FOUND and result.stderr.startswith("error: ")


def test_down_leaves_nothing_running(mesh: Mesh) -> None:
    assert "is down" in mesh.ok("down")
    assert stop.living(mesh.home) == [] and stop.supervisor(mesh.home) is None
    assert not mesh.home.shm.exists()
    assert mesh.run("jobs").returncode == ExitCode.UNREACHABLE
