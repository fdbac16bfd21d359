"""The overlays as kubectl makes them, and a cluster that takes them."""

import fcntl
import functools
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kube import TTL_S, KubeCluster, tool

ROOT = Path(__file__).parents[2]
TOOLS = Path(os.environ.get("RECMESH_SHARED") or ROOT.parent / "shared") / "tools"
NAMESPACE = "recmesh"
_ONE_NODE = Path("/tmp/kube-node.lock")
"""A machine holds one cluster with a real node at a time."""


@dataclass(frozen=True, slots=True)
class Server:
    """An API server."""

    url: str
    token: str
    tls: ssl.SSLContext


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up."""

    kubectl_path: str
    kubeconfig: Path
    folder: Path | None = None
    """Of the one that was started for this."""

    def try_kubectl(self, *arguments: str, given: str = "", timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Its answer, whatever it is; `given` is its standard input."""
        return subprocess.run(
            [self.kubectl_path, "--kubeconfig", self.kubeconfig, *arguments],
            input=given, capture_output=True, text=True, timeout=timeout_s, check=False,
        )

    def kubectl(self, *arguments: str, given: str = "", timeout_s: float = 120) -> str:
        """What it prints; AssertionError with what it says when it fails."""
        done = self.try_kubectl(*arguments, given=given, timeout_s=timeout_s)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """What `kubectl get` finds."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    @functools.cached_property
    def server(self) -> "Server":
        """Its API server, as the kubeconfig of `kube-cluster` says (JSON, with a token)."""
        config = json.loads(self.kubeconfig.read_text())
        there = config["clusters"][0]["cluster"]
        tls = ssl.create_default_context(cafile=there["certificate-authority"])
        return Server(there["server"], config["users"][0]["user"]["token"], tls)

    def load(self, image: Path) -> None:
        """An image (`docker save` form) onto its real node."""
        assert self.folder is not None
        subprocess.run([tool(), "load", self.folder, image], capture_output=True, timeout=600, check=True)

    def load_from_docker(self, names: Sequence[str]) -> None:
        """Images of this machine's docker, without a file between: gigabytes are neither written nor read once more."""
        assert self.folder is not None
        with subprocess.Popen(["docker", "save", *names], stdout=subprocess.PIPE) as saving:
            done = subprocess.run(
                [tool(), "load", self.folder, "/dev/stdin"], stdin=saving.stdout, capture_output=True, text=True,
                timeout=900, check=False,
            )
        assert done.returncode == 0 and saving.returncode == 0, f"images do not get to the node: {done.stderr}"


def of(started: KubeCluster) -> Cluster:
    """One that other tests use, too."""
    program = str(started.folder / "bin" / "kubectl") if started.folder else "kubectl"
    return Cluster(program, started.kubeconfig, started.folder)


NODE_PROGRAMS = {
    "containerd": "containerd", "runc": "runc", "iptables": "iptables", "ip": "iproute2", "nsenter": "util-linux",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}  # fmt: skip
"""What a real node needs, and Debian's packages of it."""


def why_no_node() -> str:
    """Why this machine cannot run a real node; empty: it may."""
    if not (TOOLS / "kube-cluster").exists():
        return f"no Kubernetes: {TOOLS}/kube-cluster is not there"
    if os.geteuid() != 0:
        return "a real node needs root"
    if missing := sorted({package for name, package in NODE_PROGRAMS.items() if shutil.which(name) is None}):
        return f"a real node needs: apt-get install -y --no-install-recommends {' '.join(missing)}"
    if "overlay" not in Path("/proc/filesystems").read_text().split():
        return "a real node needs overlayfs, which this kernel has not"
    done = subprocess.run(
        ["unshare", "--net", "iptables", "-t", "nat", "-L"], capture_output=True, text=True, timeout=30, check=False
    )
    return f"a real node needs iptables: {done.stderr.strip()}" if done.returncode else ""


@contextmanager
def node_cluster(folder: Path) -> Iterator[Cluster]:
    """With one real node; up on entry, down on exit. Skips the test, saying why, where this machine can run none."""
    if why := why_no_node():
        pytest.skip(why)
    program = tool()
    with _ONE_NODE.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [program, "up", folder, "--ttl", str(TTL_S), "--node"],
            capture_output=True, text=True, timeout=300, check=False,
        )
        assert done.returncode == 0, f"kube-cluster up: {done.stderr}{done.stdout}"
        try:
            yield Cluster(str(folder / "bin" / "kubectl"), folder / "kubeconfig", folder)
        finally:
            subprocess.run([program, "down", folder], capture_output=True, timeout=300, check=False)


class _Loader(yaml.SafeLoader):
    """Of YAML 1.2, as kubectl writes it: a bare `=` is a text."""


_Loader.add_constructor("tag:yaml.org,2002:value", lambda loader, node: node.value)


def objects_in(text: str) -> list[dict[str, Any]]:
    """Of a manifest, as kubectl writes it."""
    return [item for item in yaml.load_all(text, _Loader) if item]


def kustomized(overlay: str, folder: Path) -> list[dict[str, Any]]:
    """The objects of an overlay, as kubectl makes them; skips the test where there is no kubectl."""
    parsed = folder / f"{overlay}.json"          # read in a hundredth of the time
    if not parsed.exists():
        parsed.write_text(json.dumps(objects_in(manifest(overlay, folder))))
    found: list[dict[str, Any]] = json.loads(parsed.read_text())
    return found


def kubectl_of(folder: Path) -> Path:
    """kubectl, linked into the folder; the test is skipped where there is none."""
    kubectl = folder / "kubectl"
    if not kubectl.exists():
        if not (TOOLS / "unpack").exists():
            pytest.skip(f"no kubectl: {TOOLS}/unpack is not there")
        cache = subprocess.run(
            [TOOLS / "unpack", "kube"], capture_output=True, text=True, check=True, timeout=300
        ).stdout.split()[-1]
        kubectl.symlink_to(Path(cache) / "kube" / "kube")
    return kubectl


def manifest(overlay: str, folder: Path) -> str:
    """Their text; kept in the folder."""
    cached = folder / f"{overlay}.yaml"
    if cached.exists():
        return cached.read_text()
    done = subprocess.run(
        [kubectl_of(folder), "kustomize", ROOT / "infra" / "overlays" / overlay],
        capture_output=True, text=True, timeout=60, check=False,
    )
    assert done.returncode == 0, done.stderr
    cached.write_text(done.stdout)
    return done.stdout
