"""From the death of all of a job's workers at once to their replacements: created, and running.

30 light workers (a model of numpy) on this machine, killed with SIGKILL while they train; then 10 in pods of the
cluster that KUBECONFIG names, which has the dev overlay and whose node is this machine: their processes are killed,
too, and nobody is told. A pod has a tenth of a core. A replacement is created when its process begins (by the kernel's
clock; of a pod: when a watch shows it), and runs when it has registered with jobmaster, which is behind its imports.
"""

import contextlib
import json
import os
import shutil
import statistics
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.figures import Result
from bench.k8s_latency import kubectl, kubectl_lines
from bench.mesh import mesh, say, scratch
from recmesh.client.packing import pack
from recmesh.client.rest import Client
from recmesh.client.views import Job, Role

WORKERS, PODS = 30, 10
POD = {"cpu": "100m", "memory": "512Mi"}
"""Of each pod, so that a node of two cores has room for all beside the mesh: a start has a tenth of a core, then."""
ROUNDS, QUICK_ROUNDS = 3, 1
ROWS, STEP_S = 100_000, 1.0
PATIENCE_S = 300.0
POLL_S = 0.2
CLOCKS_S = 0.5
"""Between the kernel's clock of starts and the one that jobmaster tells by; imports take longer."""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Replaced:
    """Seconds from the deaths, by worker."""

    created_s: tuple[float, ...]
    running_s: tuple[float, ...]


def run(*, quick: bool) -> Result:
    """Largest of all rounds, and medians over all workers of all rounds; `pods_*` where there is such a cluster."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    with scratch() as folder:
        code, rows = folder / "code", folder / "rows.parquet"
        code.mkdir()
        shutil.copy(Path(__file__).with_name("workloads") / "light.py", code)
        pq.write_table(pa.table({"item": np.arange(ROWS) % 97, "label": (np.arange(ROWS) % 2).astype("float32")}), rows)
        with mesh() as running:
            local = [_local_round(running.client, pack(code), rows, number) for number in range(rounds)]
        no_pods = _why_no_pods()
        pods = [] if no_pods else [_pods_round(pack(code), rows, number) for number in range(rounds)]
    return Result("failure_detection", {**_figures(local), **_figures(pods, "pods_")}, {
        "workers": WORKERS, "pods": 0 if no_pods else PODS, "rounds": rounds, "model": "numpy alone",
        "running": "registered with jobmaster", "left_out": f"pods: {no_pods}" if no_pods else "",
        "quick": f"{QUICK_ROUNDS} round instead of {ROUNDS}" if quick else "",
    })  # fmt: skip


def _figures(rounds: list[Replaced], prefix: str = "") -> dict[str, float]:
    if not rounds:
        return {}
    created = [at for each in rounds for at in each.created_s]
    running = [at for each in rounds for at in each.running_s]
    return {
        f"{prefix}created_max_s": max(created), f"{prefix}created_p50_s": statistics.median(created),
        f"{prefix}p50_s": statistics.median(running), f"{prefix}max_s": max(running),
    }


# -- processes of this machine ---------------------------------------------------------------------------


def _local_round(client: Client, archive: bytes, rows: Path, number: int) -> Replaced:
    with _job(client, archive, str(rows), f"killed-{number}", WORKERS) as job_id:
        victims = [_process_of(role) for role in _workers(client.job(job_id))]
        died, boot_s = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        for victim in victims:
            victim.kill()
        again = _replaced(client, job_id, {str(victim.pid) for victim in victims}, WORKERS)
        created = tuple(_began_s(int(role.handle)) - boot_s for role in again)
    return _told(Replaced(created, tuple(role.since - died for role in again)))


def _process_of(role: Role) -> psutil.Process:
    """Its process, which is killed only while the pid is its own. RuntimeError where the pid is another's by now: that
    began after this one had registered."""
    process = psutil.Process(int(role.handle))
    if process.create_time() > role.since + CLOCKS_S:
        raise RuntimeError(f"worker {role.index} has ended: process {process.pid} is another one")
    return process


def _began_s(pid: int) -> float:
    """Since the machine's start, as the kernel counts (in hundredths)."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return int(stat[stat.rindex(b")") + 2 :].split()[19]) * TICK_S


# -- pods ------------------------------------------------------------------------------------------------


def _why_no_pods() -> str:
    if not os.environ.get("KUBECONFIG"):
        return "KUBECONFIG names no cluster with the dev overlay"
    return "" if os.geteuid() == 0 else "only root may kill processes in pods"


def _pods_round(archive: bytes, rows: Path, number: int) -> Replaced:
    service = json.loads(kubectl("get", "service", "gateway", "-o", "json"))["spec"]
    key = json.loads(kubectl("get", "secret", "recmesh", "-o", "json"))["data"]["public-api-key"]
    pod = json.loads(kubectl("get", "pods", "-l", "app.kubernetes.io/name=shardsvc", "-o", "json"))["items"][0]
    file = "/storage/datasets/failure-detection.parquet"
    kubectl("exec", pod["metadata"]["name"], "--", "mkdir", "-p", file.rpartition("/")[0])
    kubectl("cp", str(rows), f"{pod['metadata']['name']}:{file}")
    address = f"http://{service['clusterIP']}:8000"
    with (
        Client(address, api_key=b64decode(key).decode()) as client,
        _job(client, archive, file, f"killed-pods-{number}", PODS, size=POD) as job_id,
    ):
        victims = _in_pods(job_id)
        if len(victims) != PODS:
            why = "processes of this machine: its node is another one"
            raise RuntimeError(f"{len(victims)} of {PODS} workers are {why}")
        before = {role.handle for role in _workers(client.job(job_id))}
        with _first_seen(job_id) as seen:
            died = time.time()
            for victim in victims:
                victim.kill()
            again = _replaced(client, job_id, before, PODS)
        created = tuple(seen[role.handle] - died for role in again)
    return _told(Replaced(created, tuple(role.since - died for role in again)))


def _in_pods(job_id: str) -> list[psutil.Process]:
    """Workers' processes, as this machine sees them; each is killed only while its pid is its own."""
    found = []
    for process in psutil.process_iter(["environ"]):
        env: Mapping[str, str] = process.info["environ"] or {}
        is_worker = env.get("RECMESH_JOB_ID") == job_id and env.get("RECMESH_ROLE") == "worker"
        if is_worker and "RECMESH_POD_IP" in env and process.name().startswith("python"):
            found.append(process)
    return found


@contextlib.contextmanager
def _first_seen(job_id: str) -> Iterator[dict[str, float]]:
    """When each pod of the job was seen first (unix seconds), by name; the watch runs inside the block."""
    seen: dict[str, float] = {}
    with kubectl_lines("get", "pods", "-l", f"recmesh.dev/job={job_id}", "-w", "-o", "name") as lines:
        def read() -> None:
            for line in lines:
                seen.setdefault(line.strip().removeprefix("pod/"), time.time())

        threading.Thread(target=read, daemon=True).start()
        time.sleep(2.0)     # the watch lists those that are there
        yield seen


# -- both ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _job(
    client: Client, archive: bytes, file: str, name: str, workers: int, *,
    size: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:  # fmt: skip
    """Its id, once all workers train; deleted at the end."""
    job_id = client.submit({
        "name": name, "model": {"entrypoint": "light:main", "code": client.upload_code(archive)},
        "data": {"source": {"format": "parquet", "files": [file]}, "label": "label", "features": [{"name": "item"}]},
        "training": {"batch_size": 50, "shard_batches": 4, "epochs": 20}, "export": None, "backoff_limit": 1000,
        "roles": {
            "ps": {"replicas": 1, **size},
            "worker": {"replicas": workers, "max": workers, "env": {"STEP_S": str(STEP_S)}, **size},
        },
    }).job_id
    try:
        _until(client, job_id, lambda job: sum(role.samples > 0 for role in _workers(job)) == workers)
        yield job_id
    finally:
        client.delete(job_id, force=True)


def _replaced(client: Client, job_id: str, before: set[str], workers: int) -> list[Role]:
    """The workers as soon as none is one of before; RuntimeError where some died more than once."""
    def fresh(job: Job) -> list[Role]:
        return [role for role in _workers(job) if role.state == "running" and role.handle not in before]

    again = fresh(_until(client, job_id, lambda job: len(fresh(job)) == workers))
    if any(role.restarts != 1 for role in again):
        raise RuntimeError(f"some were replaced more than once: {[role.restarts for role in again]}")
    return again


def _workers(job: Job) -> list[Role]:
    return [role for role in job.roles if role.role == "worker"]


def _until(client: Client, job_id: str, what: Callable[[Job], Any]) -> Job:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        job = client.job(job_id)
        if job.over:
            raise RuntimeError(f"the job ended as {job.phase}: {job.reason} {job.message}")
        if what(job):
            return job
        if time.monotonic() > deadline:
            states = [(role.role, role.index, role.state) for role in job.roles]
            raise TimeoutError(f"not within {PATIENCE_S:g} s: {job.phase} {states}")
        time.sleep(POLL_S)


def _told(found: Replaced) -> Replaced:
    say(f"created within {max(found.created_s):.2f} s, running after {statistics.median(found.running_s):.1f} s "
        f"(median), {max(found.running_s):.1f} s (all)")
    return found
