"""A gateway of its own for a benchmark: nats-server and `python -m services.gateway`, ended in any case."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.peers.asking import free_port
from recmesh.cli.mesh.servers import nats_binary

ROOT = Path(__file__).resolve().parent.parent
START_S = 240.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway; addresses are host:port."""

    http: str
    rpc: str
    storage: Path
    pid: int

    def serve(self, name: str, framework: str, *, uri: str = "") -> None:
        """Register the model in `models/<name>/1`, and wait until it serves."""
        self.register(name, framework, uri=uri)
        self.serves(name)

    def register(self, name: str, framework: str, *, version: str = "1", uri: str = "") -> None:
        """Register the model in `models/<name>/<version>`; it is loaded, and serves from then on."""
        body = {"name": name, "version": version, "uri": uri or f"models/{name}/{version}", "framework": framework}
        _ok(httpx.post(f"http://{self.http}/v1/models", json=body, timeout=30.0))

    def serves(self, name: str) -> None:
        """Wait until the model is ready."""
        ends = time.monotonic() + START_S
        while (state := self.model(name))["state"] != "ready":
            if state["state"] == "failed" or time.monotonic() > ends:
                raise RuntimeError(f"{name} does not serve: {state}")
            time.sleep(0.1)

    def model(self, name: str) -> dict[str, Any]:
        """The registry's record."""
        found: dict[str, Any] = _ok(httpx.get(f"http://{self.http}/v1/models/{name}", timeout=30.0)).json()
        return found


@contextlib.contextmanager
def gateway(folder: Path, *, cores: str = "", **env: str) -> Iterator[Gateway]:
    """A gateway with its data in `folder`; `cores`: as taskset takes them, for it and its model servers."""
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(f'listen: 127.0.0.1:{port}\njetstream {{ store_dir: "{folder}/jetstream" }}\n')
    http, rpc = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    pinned = ["taskset", "-c", cores] if cores else []
    settings = {
        "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "RECMESH_NATS_URL": f"nats://127.0.0.1:{port}",
        "RECMESH_DATA_DIR": str(folder), "RECMESH_HTTP_ADDRESS": http, "RECMESH_RPC_ADDRESS": rpc,
        "RECMESH_API_KEY": "bench", **env,
    }  # fmt: skip
    log = folder / "gateway.log"
    with contextlib.ExitStack() as stack, log.open("wb") as output:
        nats = subprocess.Popen([str(nats_binary()), "-c", str(config)], env=settings, stdout=output, stderr=output)
        stack.callback(end, nats)
        listens(nats, port, log)
        process = subprocess.Popen(
            [*pinned, sys.executable, "-m", "services.gateway"], cwd=ROOT, env=settings, stdout=output, stderr=output
        )
        stack.callback(end, process)
        _ready(http, process, log)
        yield Gateway(http, rpc, folder / "storage", process.pid)


def end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, and SIGKILL when that is not enough."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def listens(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    """Wait until a process takes connections; RuntimeError with its log when it ends before."""
    ends = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        _check(process, log, ends)


def _ready(http: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    ends = time.monotonic() + START_S
    while True:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://{http}/readyz", timeout=5.0).status_code == 200:
                return
        _check(process, log, ends)


def _check(process: "subprocess.Popen[bytes]", log: Path, ends: float) -> None:
    if process.poll() is not None or time.monotonic() > ends:
        raise RuntimeError(f"it did not start: {log.read_text()[-4000:]}")
    time.sleep(0.05)


def _ok(response: httpx.Response) -> httpx.Response:
    if response.is_error:
        raise RuntimeError(response.text)
    return response
