"""Contexts of clusters, with a program in kubectl's place."""

import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from recmesh.client import Client
from recmesh.client.contexts import Context, Contexts
from recmesh.runtime.errors import FailedPrecondition, Unavailable

KUBECTL = """#!{python}
import json, pathlib, sys, time
pathlib.Path({asked!r}).write_text(json.dumps(sys.argv[1:]))
if {fault!r}:
    sys.exit({fault!r})
print("Forwarding from 127.0.0.1:{port} -> 8000", flush=True)
time.sleep(60)
"""


class Gateway(BaseHTTPRequestHandler):
    """Says what it was shown."""

    def do_GET(self) -> None:
        body = json.dumps({"key": self.headers.get("Authorization")}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "key").write_text("of-lab")
    env = {"RECMESH_CONTEXTS": str(tmp_path / "contexts.json")}
    lab = Context(kube_context="lab", namespace="ads", api_key_file=str(tmp_path / "key"))
    Contexts.read(env).add("lab", lab)
    return env


def kubectl(folder: Path, port: int, fault: str = "") -> None:
    program = folder / "kubectl"
    program.write_text(KUBECTL.format(python=sys.executable, asked=str(folder / "asked"), port=port, fault=fault))
    program.chmod(0o755)


def test_a_context_of_a_cluster_is_spoken_to_through_kubectl_which_ends_with_the_client(
    env: dict[str, str], tmp_path: Path, port: int
) -> None:
    kubectl(tmp_path, port)
    with Client.find(env=env) as mesh:
        assert mesh.mesh() == {"key": "Bearer of-lab"}
        assert mesh._forward is not None
        process = mesh._forward._process
        assert process.poll() is None
    assert process.poll() is not None
    asked = json.loads((tmp_path / "asked").read_text())
    assert asked[:4] == ["--context", "lab", "--namespace", "ads"] and asked[-2:] == ["service/gateway", ":8000"]


def test_a_way_that_broke_is_opened_again_on_the_same_port(env: dict[str, str], tmp_path: Path, port: int) -> None:
    kubectl(tmp_path, port)
    with Client.find(env=env) as mesh:
        assert mesh._forward is not None
        os.kill(mesh._forward._process.pid, 9)
        mesh._forward._process.wait()
        mesh._forward.mend()
        assert mesh._forward._process.poll() is None
        assert json.loads((tmp_path / "asked").read_text())[-1] == f"{port}:8000"


def test_what_kubectl_says_is_told(env: dict[str, str], tmp_path: Path) -> None:
    kubectl(tmp_path, 1, fault='error: context "lab" does not exist')
    with pytest.raises(Unavailable, match='ads of cluster lab cannot be reached: error: context "lab" does not exist'):
        Client.find(env=env)


def test_without_kubectl_it_is_named(env: dict[str, str]) -> None:
    with pytest.raises(FailedPrecondition, match="through kubectl, which cannot be run"):
        Client.find(env=env)
