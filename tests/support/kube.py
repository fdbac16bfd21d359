"""Real Kubernetes for tests: shared/tools/kube-cluster, or any cluster with simulated nodes that KUBECONFIG names."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
CRDS = ROOT / "infra" / "base" / "crds"
TTL_S = 7200
"""Longer than any run of the tests: what outlives one is ended, and a cluster that has ended cannot be taken down."""


def tool() -> Path:
    """kube-cluster; the test is skipped where it is not there."""
    found = Path(os.environ.get("RECMESH_SHARED") or ROOT.parent / "shared") / "tools" / "kube-cluster"
    if not found.exists():
        pytest.skip(f"no Kubernetes: {found} is not there, and KUBECONFIG is not set")
    return found


@dataclass(frozen=True)
class KubeCluster:
    """A cluster that runs; `folder` is None for one that others have started."""

    kubeconfig: Path
    folder: Path | None = None

    def control(self, verb: str, *args: str) -> str:
        """`kill`, `stop` or `start` of a component, `nodes COUNT --cpu N ...`, `load IMAGE.tar`."""
        if self.folder is None:
            pytest.skip(f"{verb} is for a cluster of the test's own, and KUBECONFIG names another")
        said = _run(verb, str(self.folder), *args)
        if (verb, *args) == ("start", "kube-apiserver"):
            until(self._answers, timeout_s=120.0, poll_s=0.2)
        return said

    def _answers(self) -> bool:
        ask = [self._program, "--kubeconfig", str(self.kubeconfig), "get", "--raw", "/readyz"]
        return subprocess.run(ask, capture_output=True, timeout=60).returncode == 0

    def follow(self, *args: str) -> "subprocess.Popen[str]":
        """kubectl with --watch, whose output is the caller's to read and whose end to bring about."""
        command = [self._program, "--kubeconfig", str(self.kubeconfig), *args, "--watch"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    @property
    def _program(self) -> str:
        return str(self.folder / "bin" / "kubectl") if self.folder else "kubectl"

    def kubectl(self, *args: str, body: object = None, fails: bool = False) -> str:
        """What it prints; with `fails` what it complains of. `body`: an object for its standard input."""
        command = [self._program, "--kubeconfig", str(self.kubeconfig), *args]
        text = json.dumps(body) if body is not None else None
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
        assert (done.returncode != 0) == fails, f"kubectl {' '.join(args)}: {done.stdout}{done.stderr}"
        return done.stderr if fails else done.stdout

    def get(self, *args: str) -> dict[str, Any]:
        """An object, or a list of them."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *args, "-o", "json"))
        return found

    def namespace(self) -> str:
        """A new one, with a service account as pods need it."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.kubectl("create", "namespace", name)
        self.kubectl("wait", "--for=create", "serviceaccount/default", "-n", name, "--timeout=30s")
        return name


@contextmanager
def kube_cluster(folder: Path, *options: str, nodes: int = 0) -> Iterator[KubeCluster]:
    """A cluster in `folder`, which must be new; gone at the end."""
    given = os.environ.get("KUBECONFIG", "")
    if given:
        yield KubeCluster(Path(given))
        return
    _run("up", str(folder), "--ttl", str(TTL_S), *options)
    try:
        made = KubeCluster(folder / "kubeconfig", folder)
        if nodes:
            made.control("nodes", str(nodes), "--cpu", "8", "--memory", "16Gi", "--gpu", "2")
            made.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=30s")
        yield made
    finally:
        _run("down", str(folder))


@contextmanager
def with_kinds(folder: Path) -> Iterator[KubeCluster]:
    """A control plane that knows the mesh's kinds, without nodes."""
    with kube_cluster(folder) as made:
        made.kubectl("apply", "--server-side", "-f", str(CRDS))
        made.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
        yield made


def account_of(cluster: KubeCluster, account: str, *, namespace: str, folder: Path) -> Path:
    """A kubeconfig with the rights that the base's manifests give a service, and with no others."""
    if not cluster.kubectl("get", "namespace", namespace, "--ignore-not-found"):
        cluster.kubectl("create", "namespace", namespace)
    base = ROOT / "infra" / "base"
    for each in yaml.safe_load_all((base / "rbac.yaml").read_text()):
        for subject in each.get("subjects", []):
            subject["namespace"] = namespace
        cluster.kubectl("apply", "-n", namespace, "-f", "-", body=each)
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": namespace}}
    cluster.kubectl("apply", "-f", "-", body=body)
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": cluster.kubectl("create", "token", account, "-n", namespace).strip()}
    path = folder / f"{account}.kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


@pytest.fixture(scope="session")
def simulated_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    """Control plane and three simulated nodes of 8 cores, 16 GiB and 2 GPUs; one for the session."""
    if not os.environ.get("KUBECONFIG"):
        tool()
    with kube_cluster(tmp_path_factory.mktemp("kube") / "cluster", "--kwok", nodes=3) as made:
        yield made


def _run(verb: str, *args: str) -> str:
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-B", str(tool()), verb, *args], capture_output=True, text=True, timeout=180)
    took = time.monotonic() - began
    assert done.returncode == 0, f"kube-cluster {verb} failed after {took:.0f} s: {done.stdout}{done.stderr}"
    return done.stdout
