"""Real YARN for tests: shared/tools/yarn-cluster, or any cluster whose ResourceManager RECMESH_TEST_YARN names (its
nodes must be this machine, as folders and the interpreter are its own)."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.kube import ROOT, TTL_S

USER = "root"
MASTER: Mapping[str, str] = {
    "yarn.service.am-resource.memory": "512", "yarn.service.am.java.opts": "-Xmx192m -XX:TieredStopAtLevel=1",
}
"""Masters of services, of which tests start many on a small machine."""
FIRST_S = 150.0
"""The first service's jars are copied to its node."""


def tool() -> Path:
    """yarn-cluster; the test is skipped where it, or Java, is not there."""
    found = Path(os.environ.get("RECMESH_SHARED") or ROOT.parent / "shared") / "tools" / "yarn-cluster"
    if not found.exists():
        pytest.skip(f"no YARN: {found} is not there, and RECMESH_TEST_YARN is not set")
    if shutil.which("java") is None:
        pytest.skip("no YARN: java is not installed")
    return found


@dataclass(frozen=True)
class YarnCluster:
    """A cluster that runs; `folder` is None for one that others have started."""

    url: str
    folder: Path | None = None

    def control(self, verb: str, name: str) -> None:
        """`kill`, `stop` or `start` of zookeeper, resourcemanager or nodemanager."""
        if self.folder is None:
            pytest.skip(f"{verb} is for a cluster of the test's own, and RECMESH_TEST_YARN names another")
        _run(verb, str(self.folder), name)

    def get(self, path: str) -> Any:
        """What its REST API answers."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            return json.load(answer)


@pytest.fixture(scope="session")
def yarn_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    """ResourceManager and one NodeManager, which has started a service once; one for the session."""
    given = os.environ.get("RECMESH_TEST_YARN", "")
    if given:
        yield YarnCluster(given)
        return
    folder = tmp_path_factory.mktemp("yarn") / "cluster"
    try:
        made = YarnCluster(_run("up", str(folder), "--ttl", str(TTL_S)).split()[-1], folder)
        _start_a_service(made)
        yield made
    finally:
        if (folder / "plan.json").exists():
            _run("down", str(folder))


def _start_a_service(cluster: YarnCluster) -> None:
    """So that no test waits for the jars."""
    body = {
        "name": "first", "version": "1", "configuration": {"properties": dict(MASTER)},
        "components": [{"name": "none", "number_of_containers": 0, "launch_command": "exit 0",
                        "resource": {"cpus": 1, "memory": "64"}}],
    }  # fmt: skip
    services = f"{cluster.url}/app/v1/services"
    request = urllib.request.Request(f"{services}?user.name={USER}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=30).close()
    until = time.monotonic() + FIRST_S
    while cluster.get(f"/app/v1/services/first?user.name={USER}").get("state") not in ("STABLE", "STARTED"):
        assert time.monotonic() < until, f"YARN has not started a service within {FIRST_S:.0f} s"
        time.sleep(0.5)
    gone = urllib.request.Request(f"{services}/first?user.name={USER}", method="DELETE")
    urllib.request.urlopen(gone, timeout=60).close()


def _run(verb: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-B", str(tool()), verb, *args], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, f"yarn-cluster {verb}: {done.stdout}{done.stderr}"
    return done.stdout
