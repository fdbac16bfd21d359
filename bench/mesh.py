"""A mesh of its own for a benchmark: `recmesh up` in a temporary folder, taken down in any case."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from recmesh.cli.mesh.home import Home
from recmesh.client.rest import Client
from recmesh.client.views import Job

ROOT = Path(__file__).resolve().parent.parent
POLL_S = 0.25


def say(text: str) -> None:
    """Progress, to standard error."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory where there is one, removed at the end."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="recmesh-bench-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@dataclass(frozen=True, slots=True)
class Mesh:
    """A running mesh."""

    home: Path
    client: Client
    up_s: float
    """From the call of `recmesh up` to its return, when every service is ready."""

    @property
    def token(self) -> str:
        """What the services of this mesh show each other."""
        return Home(self.home).secrets()["mesh"]

    def services(self) -> dict[str, psutil.Process]:
        """The processes of the mesh itself, by component; the supervisor among them."""
        state = json.loads((self.home / "mesh.json").read_bytes())
        pids = {name: item["pid"] for name, item in state["components"].items()}
        pids["supervisor"] = state["supervisor_pid"]
        return {name: psutil.Process(pid) for name, pid in pids.items() if pid}

    def address(self, service: str) -> str:
        """A service's gRPC address."""
        state = json.loads((self.home / "mesh.json").read_bytes())
        return str(state["components"][service]["addresses"]["rpc"])

    def wait(self, job_id: str, until: Callable[[Job], bool], *, patience_s: float) -> Job:
        """The job once `until` holds; RuntimeError when it failed, TimeoutError when it takes too long."""
        deadline = time.monotonic() + patience_s
        told = 0.0
        while time.monotonic() < deadline:
            job = self.client.job(job_id)
            if job.phase in ("Failed", "Stopped"):
                logs = "\n".join(line for log in self.client.logs(job_id, tail=20) for line in log.lines)
                raise RuntimeError(f"the job ended as {job.phase}: {job.reason} {job.message}\n{logs}")
            if until(job):
                return job
            if time.monotonic() - told > 5.0:
                told = time.monotonic()
                pace = f"{job.progress.share:.0%}, {job.progress.samples_per_s:,.0f} samples/s"
                say(f"  {job.name}: {job.phase}, {pace}")
            time.sleep(POLL_S)
        raise TimeoutError(f"the job is not there after {patience_s:g} s")


@contextlib.contextmanager
def mesh(
    *, env: Mapping[str, str] | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Mesh]:
    """Up on entry, down on exit; job roles get one thread each, as the peers do. `settings` are the services'."""
    environment = {**os.environ, **one_thread(), **(env or {})}
    environment.pop("RECMESH_URL", None)
    command = [sys.executable, "-m", "recmesh.cli.main"]
    with tempfile.TemporaryDirectory(prefix="recmesh-bench-") as folder:
        environment["RECMESH_HOME"] = folder
        if settings:
            lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
            (Path(folder) / "config.toml").write_text("\n".join(["[env]", *lines, ""]))
        try:
            began = time.perf_counter()
            up = [*command, "up", "--json"]
            subprocess.run(up, env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            up_s = time.perf_counter() - began
            say(f"the mesh is up after {up_s:.1f} s")
            with Client.find(home=folder) as client:
                yield Mesh(Path(folder), client, up_s)
        finally:
            subprocess.run([*command, "down"], env=environment, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)


def one_thread() -> dict[str, str]:
    """Environment of a process with one compute thread."""
    libraries = ("OMP", "OPENBLAS", "MKL", "NUMBA")
    return {"TF_NUM_INTRAOP_THREADS": "1", **{f"{name}_NUM_THREADS": "1" for name in libraries}}


def cpu_seconds(processes: Mapping[str, psutil.Process]) -> dict[str, float]:
    """User and system time of each process and of its living children so far."""
    spent = {}
    for name, process in processes.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [process, *process.children(recursive=True)]
            spent[name] = sum(sum(member.cpu_times()[:2]) for member in family)
    return spent


def criteo_data(files: list[str], **more: Any) -> dict[str, Any]:
    """A dataset specification of the columns I1..I13, C1..C26 and label."""
    from bench.synthetic import DENSE, TABLES

    features: list[dict[str, Any]] = [{"name": f"I{k + 1}", "kind": "dense"} for k in range(DENSE)]
    features += [{"name": f"C{k + 1}"} for k in range(TABLES)]
    return {"source": {"format": "parquet", "files": files}, "label": "label", "features": features, **more}
