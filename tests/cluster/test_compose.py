"""The mesh of infra/compose.yaml, as a laptop has it: up in containers, a job trained, its model asked, down."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from recmesh.client.rest import Client
from recmesh.client.rows import predictions, request_for
from recmesh.spec.dataset import DatasetSpec
from tests.cluster.jobs import FLIGHTS
from tests.support.overlays import ROOT
from tests.support.servers import free_port
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
FILE = ROOT / "infra" / "compose.yaml"
IMAGES = ("stores", "brain", "forecaster", "shardsvc", "ckptcache", "gateway", "jobmaster-local")
UP_S, JOB_S = 300, 600.0


class Compose:
    """A project of its own, on a free port."""

    def __init__(self, folder: Path) -> None:
        self.port, self._name, self._folder = free_port(), f"recmesh-test-{os.getpid()}", folder
        keys = subprocess.run(["sh", ROOT / "infra" / "keys"], capture_output=True, text=True, check=True).stdout
        self.env = dict(line.split("=", 1) for line in keys.splitlines())
        (folder / "env").write_text(keys)
        (folder / "port.yaml").write_text(
            f'services: {{gateway: {{ports: !override ["127.0.0.1:{self.port}:8000"]}}}}\n'
        )

    def run(self, *arguments: str, timeout_s: float = 120.0) -> str:
        """What it prints; AssertionError with what it says when it fails."""
        files = ["-f", str(FILE), "-f", str(self._folder / "port.yaml")]
        done = subprocess.run(
            ["docker", "compose", "-p", self._name, "--env-file", str(self._folder / "env"), *files, *arguments],
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )
        assert done.returncode == 0, f"docker compose {' '.join(arguments)}: {done.stdout}{done.stderr}"
        return done.stdout

    def client(self) -> Client:
        return Client(f"http://127.0.0.1:{self.port}", api_key=self.env["RECMESH_PUBLIC_API_KEY"])


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    """Up; nothing of it is left."""
    if not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("`docker compose` is not on this machine")
    if subprocess.run(["docker", "info"], capture_output=True).returncode:
        pytest.skip("docker does not answer")
    done = subprocess.run([ROOT / "infra" / "images", "--base", *IMAGES], timeout=2400, check=False)
    assert done.returncode == 0, "the images were not built"
    made = Compose(tmp_path)
    try:
        began = time.monotonic()
        made.run("up", "--wait", "--wait-timeout", str(UP_S), timeout_s=UP_S + 60)
        print(f"\nup after {time.monotonic() - began:.0f} s")
        print(made.run("ps"))
        yield made
    finally:
        print(made.run("down", "--volumes", "--timeout", "30"))


def job() -> dict[str, Any]:
    """The demo's."""
    spec: dict[str, Any] = yaml.safe_load((FLIGHTS / "job.yaml").read_text())
    spec["data"]["source"]["files"] = ["/datasets/flights/flights.parquet"]
    spec["roles"] = {"ps": {"replicas": 1}, "worker": {"replicas": 2}}
    return spec


def test_a_job_is_trained_and_its_model_served_and_both_outlive_restarts(compose: Compose) -> None:
    began = time.monotonic()
    spec = job()
    with compose.client() as client:
        job_id = client.submit(spec).job_id
        until(lambda: client.job(job_id).progress.samples > 0, timeout_s=JOB_S, poll_s=0.5)
        compose.run("kill", "jobmaster")
        compose.run("up", "--wait", "--wait-timeout", str(UP_S), timeout_s=UP_S + 60)
        until(lambda: client.job(job_id).phase in ("Succeeded", "Failed"), timeout_s=JOB_S, poll_s=1.0)
        found = client.job(job_id)
        assert found.phase == "Succeeded" and found.progress.samples == found.progress.total == 960_000
        print(f"trained {time.monotonic() - began:.0f} s after it was submitted, with jobmaster killed meanwhile")
        until(lambda: any(each.state == "ready" for each in client.model(job_id)), timeout_s=UP_S, poll_s=0.5)
        data = DatasetSpec.parse(spec["data"])
        names = {column for feature in data.features for column in feature.source_columns}
        rows = pq.read_table(FLIGHTS / "flights.parquet").slice(500_000, 4).to_pylist()
        request = request_for(
            client.model_metadata(job_id), [{name: row[name] for name in names} for row in rows], data=data
        )
        told = list(predictions(client.infer(job_id, request)))
        assert len(told) == 4 and all(0 < float(each) < 1 for each in told)
        compose.run("restart", timeout_s=300)
        compose.run("up", "--wait", "--wait-timeout", str(UP_S), timeout_s=UP_S + 60)
        until(lambda: any(each.state == "ready" for each in client.model(job_id)), timeout_s=UP_S, poll_s=0.5)
        assert list(predictions(client.infer(job_id, request))) == told
        assert client.job(job_id).phase == "Succeeded"
    address, key = f"http://127.0.0.1:{compose.port}", compose.env["RECMESH_PUBLIC_API_KEY"]
    shown = subprocess.run(
        [Path(sys.executable).with_name("recmesh"), "jobs"], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "RECMESH_URL": address, "RECMESH_API_KEY": key},
    )  # fmt: skip
    assert "late-flights" in shown.stdout, shown.stderr
