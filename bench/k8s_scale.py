"""Jobs of ten pods on simulated nodes: how fast jobmaster's Kubernetes controller starts and ends them, at what cost.

The controller runs alone, in a process of its own, against a real API server with scheduler and controllers
(kube-cluster of shared/tools, kwok's nodes): pods of simulated nodes train nothing, so no jobmaster is around it.
Halfway a second controller takes over what the first one started; what it finds is compared with what the API server
has.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from bench.figures import Result
from bench.mesh import ROOT, say, scratch

JOBS, QUICK_JOBS, ROLES = 1000, 100, ("ps", "ps", *["worker"] * 7, "data")
NODES = 200
AT_ONCE = 20
"""Jobs that are started, or ended, at the same time."""
CALLS_PER_S = 400.0
CONTROLLER = "--controller"


def run(*, quick: bool) -> Result:
    """`jobs_per_s`: from nothing until all pods run, and from there until all are gone, by half each."""
    tool = Path(os.environ.get("RECMESH_SHARED") or ROOT.parent / "shared") / "tools" / "kube-cluster"
    if not tool.exists():
        raise RuntimeError(f"{tool} is not there: it starts the API server")
    jobs = QUICK_JOBS if quick else JOBS

    def control(verb: str, *args: str) -> None:
        subprocess.run([sys.executable, "-B", str(tool), verb, str(folder / "kube"), *args], check=True,
                       stdout=subprocess.DEVNULL, timeout=300)  # fmt: skip

    with scratch() as folder:
        control("up", "--kwok", "--ttl", "3000")
        try:
            control("nodes", str(max(10, NODES * jobs // JOBS)), "--cpu", "64", "--memory", "256Gi")
            kubeconfig = str(folder / "kube" / "kubeconfig")
            command = [sys.executable, "-m", "bench.k8s_scale", CONTROLLER, kubeconfig, str(jobs)]
            done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=2400)
        finally:
            control("down")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Result("k8s_scale", found["figures"], {
        "jobs": jobs, "pods": jobs * len(ROLES), "nodes": "simulated (kwok)", **found["context"],
        "left_out": "jobmaster around the controller: pods of simulated nodes train nothing",
        "quick": f"{jobs} jobs instead of {JOBS:,}" if quick else "",
    })  # fmt: skip


async def measure(kubeconfig: Path, jobs: int) -> dict[str, Any]:
    """All of it, in this process: the controller's."""
    from recmesh.runtime.kube import PODS, Access, connect
    from services.jobmaster.cluster import StartOrder
    from services.jobmaster.cluster.kubernetes import KubernetesController, PodSettings

    names = [f"job-{number}" for number in range(jobs)]
    places = [(role, ROLES[:at].count(role)) for at, role in enumerate(ROLES)]
    turns = asyncio.Semaphore(AT_ONCE)
    settings = PodSettings(namespace="default", image="registry.local/pause:1")

    async def controller() -> tuple[Any, Any]:
        client = await connect(
            Access(kubeconfig), field_manager="bench", calls_per_s=CALLS_PER_S, burst=CALLS_PER_S
        )
        made = KubernetesController(client, settings)
        await made.find_again()
        return client, made

    async def start(made: Any, job: str) -> None:
        async with turns:
            env = {"JOB": job}
            await asyncio.gather(*(
                made.start(StartOrder(job, f"{role}-{index}-1", role, index, env, cpu=0.5, memory_bytes=1 << 30))
                for role, index in places
            ))  # fmt: skip

    async def end(made: Any, job: str) -> None:
        async with turns:
            await asyncio.gather(*(made.stop(job, f"{role}-{index}-1", grace_s=0) for role, index in places))

    async def until(made: Any, wanted: str) -> None:
        async with asyncio.timeout(1200):
            for job in names:
                while not all(  # noqa: ASYNC110  # looks, as an outsider would
                    each.begun if wanted == "begun" else each.exit is not None for each in await made.processes(job)
                ):
                    await asyncio.sleep(0.1)

    before, cpu_before = psutil.Process().memory_info().rss, time.process_time()
    first_client, first = await controller()
    began = time.monotonic()
    await asyncio.gather(*(start(first, job) for job in names))
    created_s = time.monotonic() - began
    await until(first, "begun")
    running_s = time.monotonic() - began
    say(f"{jobs} jobs: all pods created within {created_s:.1f} s, running within {running_s:.1f} s")
    held_mib = (psutil.Process().memory_info().rss - before) / 2**20
    await first.stop_watching()
    await first_client.close()

    took_over = time.monotonic()
    client, second = await controller()
    takeover_s = time.monotonic() - took_over
    await asyncio.gather(*(start(second, job) for job in names))        # as a jobmaster that is not sure: all live
    objects, _ = await client.list(PODS, namespace="default")
    labels = [{key.partition("/")[2]: text for key, text in item["metadata"]["labels"].items()} for item in objects]
    there = Counter((each["job"], f"{each['role']}-{each['index']}") for each in labels)
    known = {(job, each.name.rpartition("-")[0]) for job in names for each in await second.processes(job)}
    expected = {(job, f"{role}-{index}") for job in names for role, index in places}

    began = time.monotonic()
    await asyncio.gather(*(end(second, job) for job in names))
    await until(second, "ended")
    for job in names:
        await second.forget(job)
    ended_s = time.monotonic() - began
    left, _ = await client.list(PODS, namespace="default")
    calls = Counter(first_client.calls) + Counter(client.calls)
    await second.stop_watching()
    await client.close()
    pods, cpu_s = jobs * len(ROLES), time.process_time() - cpu_before
    return {
        "figures": {
            "jobs_per_s": jobs / (running_s + ended_s), "started_jobs_per_s": jobs / running_s,
            "ended_jobs_per_s": jobs / ended_s, "api_calls_per_pod": calls.total() / pods,
            "lost_pods": len(expected - there.keys()) + len(expected - known),
            "duplicate_pods": sum(count - 1 for count in there.values()) + len(there.keys() - expected),
            "left_pods": len(left), "takeover_s": takeover_s, "memory_mib": held_mib,
            "cpu_s_per_1000_pods": cpu_s / pods * 1000,
        },
        "context": {
            "created_s": round(created_s, 1),
            "calls": {f"{verb} {what}": n for (verb, what), n in calls.most_common()},
            "calls_per_s_limit": CALLS_PER_S,
            "memory": "growth of the process, from before the first connection until all pods run",
        },
    }


if __name__ == "__main__" and sys.argv[1] == CONTROLLER:
    print(json.dumps(asyncio.run(measure(Path(sys.argv[2]), int(sys.argv[3])))))
