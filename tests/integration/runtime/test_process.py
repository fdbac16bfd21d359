"""The lifecycle as a supervisor sees it: ready file, probes, signals, exit codes, one clear line."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from recmesh.runtime.lifecycle import ExitCode
from tests.support.servers import NatsServer, free_port, nats
from tests.support.waiting import until

pytestmark = pytest.mark.integration
__all__ = ["nats"]
MODULE = "tests.integration.runtime.small_service"


def launch(**env: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", MODULE], env=os.environ | env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[3],
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_a_process_is_ready_then_drains_on_sigterm_and_ends_with_0(nats: NatsServer, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    process = launch(RECMESH_NATS_URL=nats.url, RECMESH_READY_FILE=str(ready))
    try:
        until(lambda: ready.exists() or process.poll() is not None)
        told = json.loads(ready.read_text())
        assert told["pid"] == process.pid
        with urllib.request.urlopen(told["addresses"]["ops"] + "/readyz", timeout=20) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        code, errors = ended(process)
    finally:
        process.kill()
    assert code == ExitCode.OK, errors
    assert all(json.loads(line) for line in errors.splitlines())


def test_a_wrong_setting_is_named_and_ends_with_78() -> None:
    code, errors = ended(launch(RECMESH_DRAIN_S="soon"))
    assert code == ExitCode.BAD_CONFIG
    assert "RECMESH_DRAIN_S" in errors and "Traceback" not in errors


def test_an_absent_nats_is_named_and_ends_with_69() -> None:
    port = free_port()
    code, errors = ended(launch(RECMESH_NATS_URL=f"nats://127.0.0.1:{port}"))
    assert code == ExitCode.UNAVAILABLE
    assert f"127.0.0.1:{port}" in errors and "Traceback" not in errors


@pytest.mark.parametrize("variable", ["RECMESH_HTTP_ADDRESS", "RECMESH_RPC_ADDRESS"])
def test_a_taken_port_is_named_and_ends_with_75(nats: NatsServer, variable: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, errors = ended(launch(**{"RECMESH_NATS_URL": nats.url, variable: f"127.0.0.1:{port}"}))
    assert code == ExitCode.RETRY
    assert f"127.0.0.1:{port} is already in use" in errors and "Traceback" not in errors


def test_losing_nats_does_not_end_the_process(nats: NatsServer, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    process = launch(RECMESH_NATS_URL=nats.url, RECMESH_READY_FILE=str(ready))
    try:
        until(lambda: ready.exists() or process.poll() is not None)
        nats.kill()
        address = json.loads(ready.read_text())["addresses"]["ops"]
        with urllib.request.urlopen(address + "/healthz", timeout=20) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGTERM)
        code, errors = ended(process)
    finally:
        process.kill()
    assert code == ExitCode.OK, errors
