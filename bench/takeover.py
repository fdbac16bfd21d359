"""How long jobs are without a jobmaster when the one that leads is gone, and another has to find that out.

Two jobmasters share the TrainingJob objects of one real API server (kube-cluster of shared/tools); all jobs are
suspended, so that nothing but jobmaster works. One is stopped (SIGSTOP: a death that nobody sees, as of another
machine; of a dead process of its own machine a jobmaster knows at once), then an object of its buckets is changed, and
the clock runs until the other one has carried that out and said so in the object's status.
"""

import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.figures import Result
from bench.mesh import ROOT, Mesh, mesh, say, scratch
from bench.peers.asking import free_port
from recmesh.pb import jobmaster_pb2 as pb
from recmesh.pb.jobmaster_pb2_grpc import JobsStub
from recmesh.runtime.errors import MeshError
from recmesh.runtime.kube import Access, KubeClient, connect, recmesh_resource
from recmesh.runtime.rpc import channel
from services.jobmaster.domain.shards import BUCKETS
from services.jobmaster.rpc.front import PASSED_ON

JOBS, QUICK_JOBS = 500, 50
ROUNDS, QUICK_ROUNDS = 10, 4
NAMESPACE = "default"
TRAINING_JOBS = recmesh_resource("trainingjobs", "TrainingJob")
PATIENCE_S = 120.0


def run(*, quick: bool) -> Result:
    """`takeover_s`: the longest of the rounds."""
    tool = Path(os.environ.get("RECMESH_SHARED") or ROOT.parent / "shared") / "tools" / "kube-cluster"
    if not tool.exists():
        raise RuntimeError(f"{tool} is not there: it starts the API server")
    jobs, rounds = (QUICK_JOBS, QUICK_ROUNDS) if quick else (JOBS, ROUNDS)

    def control(verb: str, *args: str) -> None:
        subprocess.run([sys.executable, "-B", str(tool), verb, str(folder / "kube"), *args], check=True,
                       stdout=subprocess.DEVNULL, timeout=300)  # fmt: skip

    with scratch() as folder:
        control("up", "--ttl", "1800")
        try:
            settings = {
                "RECMESH_JOBMASTER_OBJECTS": "kubernetes", "RECMESH_KUBE_CONFIG": str(folder / "kube" / "kubeconfig"),
                "RECMESH_KUBE_NAMESPACE": NAMESPACE, "RECMESH_KUBE_CALLS_PER_S": "400",
            }
            kubectl(folder, "apply", "--server-side", "-f", str(ROOT / "infra" / "base" / "crds"))
            kubectl(folder, "wait", "--for=condition=Established", "--timeout=30s", "crd/trainingjobs.recmesh.dev")
            with mesh(settings=settings) as made, another(made, folder) as second:
                first = made.services()["jobmaster"]
                found = asyncio.run(measure(folder, first, second, made.token, jobs=jobs, rounds=rounds))
        finally:
            control("down")
    return Result("takeover", {
        "takeover_s": max(found["takes"]), "takeover_p50_s": statistics.median(found["takes"]),
        "jobs": float(jobs), "rounds": float(rounds), "accepted_per_s": found["accepted_per_s"],
    }, {
        "lease_s": "6 (RECMESH_LEADER_TTL_S)", "jobs_are": "suspended",
        "quick": f"{QUICK_JOBS} jobs and {QUICK_ROUNDS} rounds instead of {JOBS} and {ROUNDS}" if quick else "",
    })  # fmt: skip


def kubectl(folder: Path, *args: str) -> None:
    """Of the cluster."""
    program = str(folder / "kube" / "bin" / "kubectl")
    command = [program, "--kubeconfig", str(folder / "kube" / "kubeconfig"), *args]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)


@contextlib.contextmanager
def another(made: Mesh, folder: Path) -> Iterator[psutil.Process]:
    """A jobmaster beside the mesh's own, on the same stores."""
    env = made.services()["jobmaster"].environ()
    env |= {"RECMESH_RPC_ADDRESS": f"127.0.0.1:{free_port()}", "RECMESH_HTTP_ADDRESS": "127.0.0.1:0"}
    with (folder / "second.log").open("wb") as log:
        command = [sys.executable, "-m", "services.jobmaster"]
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log)
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()
            process.wait()


async def measure(
    folder: Path, first: psutil.Process, second: psutil.Process, token: str, *, jobs: int, rounds: int
) -> dict[str, Any]:
    """Seconds of each round; the two lead in turn."""
    data = folder / "rows.parquet"
    pq.write_table(pa.table({"user": list(range(100)), "label": [0, 1] * 50}), data)
    access = Access(folder / "kube" / "kubeconfig")
    client = await connect(access, field_manager="bench", calls_per_s=400, burst=800)
    try:
        began = time.perf_counter()
        await asyncio.gather(*(client.create(TRAINING_JOBS, thing(number, data), namespace=NAMESPACE)
                               for number in range(jobs)))  # fmt: skip
        await until_all(client, jobs)
        accepted_s = time.perf_counter() - began
        say(f"{jobs} jobs are accepted and suspended after {accepted_s:.1f} s")
        takes = []
        for number in range(rounds):
            victim, other = (first, second) if number % 2 == 0 else (second, first)
            name = await until_shared(victim, other, token)
            takes.append(await one_round(client, victim, name, replicas=2 + number))
            say(f"  {other.pid} has taken over {name} from {victim.pid} after {takes[-1]:.1f} s")
        return {"takes": takes, "accepted_per_s": jobs / accepted_s}
    finally:
        await client.close()


def thing(number: int, data: Path) -> dict[str, Any]:
    """A suspended job."""
    spec = {
        "model": {"zoo": "torch_dcn_v2"}, "suspend": True, "data": {
            "source": {"files": [str(data)]}, "label": "label", "features": [{"name": "user"}],
        }, "roles": {"worker": {"replicas": 1}},
    }
    return {
        "apiVersion": TRAINING_JOBS.api_version, "kind": TRAINING_JOBS.kind, "metadata": {"name": f"job-{number}"},
        "spec": spec,
    }


async def until_all(client: KubeClient, jobs: int) -> None:
    """All are jobs, and suspended."""
    deadline = time.monotonic() + 600.0
    while True:
        found, _ = await client.list(TRAINING_JOBS, namespace=NAMESPACE)
        if sum((item.get("status") or {}).get("phase") == "Suspended" for item in found) == jobs:
            return
        if time.monotonic() > deadline:
            raise TimeoutError("not all objects became jobs")
        await asyncio.sleep(0.5)


async def until_shared(victim: psutil.Process, other: psutil.Process, token: str) -> str:
    """A job of the victim's, once each holds half of the buckets."""
    deadline = time.monotonic() + PATIENCE_S
    replies: list[pb.ListReply | None] = []
    while time.monotonic() < deadline:
        replies = [await own_jobs(process, token) for process in (victim, other)]
        if all(reply is not None and len(reply.buckets) == BUCKETS // 2 for reply in replies) and replies[0]:
            return str(replies[0].jobs[0].job_id)
        await asyncio.sleep(0.2)
    held = [len(reply.buckets) if reply is not None else "no answer" for reply in replies]
    raise TimeoutError(f"the two do not share the jobs: of {BUCKETS} buckets they hold {held}")


async def own_jobs(process: psutil.Process, token: str) -> pb.ListReply | None:
    """Of one jobmaster; None while it does not answer."""
    async with channel(process.environ()["RECMESH_RPC_ADDRESS"], token=token) as open_channel:
        request: Any = pb.ListRequest()
        try:
            reply: pb.ListReply = await JobsStub(open_channel).List(
                request, timeout=2.0, metadata=((PASSED_ON, "1"),)
            )
        except MeshError:
            return None
        return reply


async def one_round(client: KubeClient, victim: psutil.Process, name: str, *, replicas: int) -> float:
    """From the stop of the one that runs the job until the other one has carried out a change."""
    os.kill(victim.pid, signal.SIGSTOP)
    began = time.perf_counter()
    try:
        body = {"spec": {"roles": {"worker": {"replicas": replicas}}}}
        changed = await client.patch(TRAINING_JOBS, name, body, namespace=NAMESPACE)
        while time.perf_counter() - began < PATIENCE_S:
            found = await client.get(TRAINING_JOBS, name, namespace=NAMESPACE)
            if found["status"]["observedGeneration"] == changed["metadata"]["generation"]:
                return time.perf_counter() - began
            await asyncio.sleep(0.05)
        raise TimeoutError(f"nobody took over within {PATIENCE_S:g} s")
    finally:
        os.kill(victim.pid, signal.SIGCONT)
