"""Plan, execute, measure: what a job that began too small, or too large, comes to under brain.

Every role has the same CPU quota, and all quotas together stay below the machine's cores, so that a process more is
that much more to compute with. The best is found by trying every number of workers and servers that the limits and
the quotas allow.
"""

import time
from pathlib import Path
from typing import Any

from bench.figures import Result
from bench.mesh import Mesh, criteo_data, mesh, one_thread, say, scratch
from bench.quotas import BATCH, MODEL, SETTLE_S, START_S, all_train, until_stopped
from bench.synthetic import criteo_like, write_parquet
from recmesh.client.views import Job

CORES, CPU = 1.6, 0.2
ROWS, EPOCHS = 65_536, 10_000
SETTINGS = {
    "RECMESH_CORES": f"{CORES}", "RECMESH_PLAN_INTERVAL_S": "5", "RECMESH_PLAN_SETTLE_S": "20",
    "RECMESH_PLAN_WINDOW_S": "20",
}  # fmt: skip
UNTUNED = {"RECMESH_PLAN_INTERVAL_S": "0"}
LIMITS, QUICK_LIMITS = (5, 3), (3, 2)
WINDOW_S = 15.0
ALIKE, MOST_WINDOWS = 0.04, 6
"""Two windows in a row that differ by less are the speed."""
CALM_LOOKS = 4
"""So many looks of brain in a row without a change: it has come to an end."""
PATIENCE_S = 1200.0


def run(*, quick: bool) -> Result:
    """`share_of_best`: throughput of what the job that began too small ended with, over the best that was tried."""
    limits = QUICK_LIMITS if quick else LIMITS
    with scratch() as folder:
        data = folder / "rows.parquet"
        write_parquet(data, criteo_like(ROWS, seed=1, ids=100_000))
        with mesh(settings=SETTINGS | UNTUNED) as running:
            table = _searched(running, data, limits)
        with mesh(settings=SETTINGS) as running:
            small = _tuned(running, data, "small", (1, 1), limits, table)
        with mesh(settings=SETTINGS) as running:
            large = _tuned(running, data, "large", limits, limits, table)
    best = max(table.values())
    figures = {
        "share_of_best": table[tuple(small["ended"])] / best,
        "share_of_best_as_run": small["samples_per_s"] / best,
        "small_s": small["took_s"], "small_changes": float(len(small["path"])),
        "large_share_of_start": table[tuple(large["ended"])] / table[limits],
        "large_processes_given_back": 1.0 - sum(large["ended"]) / sum(limits),
        "rollbacks": float(small["rollbacks"] + large["rollbacks"]),
        "taken_back": float(sum(change["verdict"] == "taken back" for run in (small, large) for change in run["path"])),
    }
    context = {
        "limits": {"workers": limits[0], "ps": limits[1]}, "cores_each": CPU, "cores_sum": CORES,
        "tried": {f"{workers}+{ps}": rate for (workers, ps), rate in sorted(table.items())},
        "small": small, "large": large, "quick": f"limits {QUICK_LIMITS} instead of {LIMITS}" if quick else "",
    }
    return Result("tuning", figures, context)


def _spec(name: str, data: Path, start: tuple[int, int], limits: tuple[int, int], *, pinned: bool) -> dict[str, Any]:
    roles = {}
    for role, count, most in zip(("worker", "ps"), start, limits, strict=True):
        bounds = {"replicas": count, "max": most} if pinned else {"min": 1, "max": most}
        roles[role] = {"cpu": CPU, "memory": "3Gi", "env": one_thread(), **bounds}
    return {
        "name": name, "model": {"zoo": "torch_dcn_v2", "params": dict(MODEL)}, "data": criteo_data([str(data)]),
        "training": {
            "batch_size": BATCH, "epochs": EPOCHS, "shard_batches": 8, "optimizer": {"kind": "adagrad", "lr": 0.01},
        },
        "roles": roles, "checkpoint": {"every_s": 600}, "export": None,
    }


def _searched(running: Mesh, data: Path, limits: tuple[int, int]) -> dict[tuple[int, int], float]:
    """Samples per second of everything that is allowed, by one job that is scaled from one to the next."""
    job_id = running.client.submit(_spec("search", data, (1, 1), limits, pinned=True)).job_id
    table: dict[tuple[int, int], float] = {}
    shapes = [
        (workers, ps) for ps in range(1, limits[1] + 1) for workers in range(1, limits[0] + 1)
        if (workers + ps) * CPU <= CORES + 1e-9
    ]
    for workers, ps in shapes:
        running.client.scale(job_id, "ps", ps)
        running.client.scale(job_id, "worker", workers)
        running.wait(job_id, lambda job, w=workers, p=ps: _has(job, w, p), patience_s=START_S)  # type: ignore[misc]  # defaults bind the loop's values
        running.wait(job_id, all_train(workers), patience_s=START_S)
        time.sleep(SETTLE_S)
        table[workers, ps] = _steady_rate(running, job_id)
        say(f"  {workers} workers, {ps} PS: {table[workers, ps]:,.0f} samples/s")
    running.client.stop(job_id)
    until_stopped(running, job_id)
    return table


def _steady_rate(running: Mesh, job_id: str) -> float:
    """Samples per second once they no longer rise: with a fifth of a core a new worker warms up for half a minute."""
    rates: list[float] = []
    for _ in range(MOST_WINDOWS):
        before, began = _counted(running.client.job(job_id)), time.monotonic()
        time.sleep(WINDOW_S)
        rates.append((_counted(running.client.job(job_id)) - before) / (time.monotonic() - began))
        if len(rates) > 1 and abs(rates[-1] - rates[-2]) <= ALIKE * rates[-1]:
            break
    return sum(rates[-2:]) / 2


def _counted(job: Job) -> int:
    """What the workers have trained since their starts, as of their last heartbeats, at most a second ago."""
    return sum(item.samples for item in job.roles if item.role == "worker" and item.state == "running")


def _has(job: Job, workers: int, ps: int) -> bool:
    return job.phase == "Running" and _counts(job) == (workers, ps)


def _counts(job: Job) -> tuple[int, int]:
    running = [item.role for item in job.roles if item.state == "running"]
    return running.count("worker"), running.count("ps")


def _tuned(
    running: Mesh, data: Path, name: str, start: tuple[int, int], limits: tuple[int, int],
    table: dict[tuple[int, int], float],
) -> dict[str, Any]:
    """The job begins with `start`, is then left to brain, and is over when brain has no more to say."""
    job_id = running.client.submit(_spec(name, data, start, limits, pinned=True)).job_id
    running.wait(job_id, all_train(start[0]), patience_s=START_S)
    for role in ("worker", "ps"):
        running.client.scale(job_id, role, None)
    began, calm, seen = time.monotonic(), 0, 0.0
    while calm < CALM_LOOKS:
        if time.monotonic() - began > PATIENCE_S:
            raise TimeoutError(f"{name} is still being changed after {PATIENCE_S:g} s")
        time.sleep(1.0)
        look = running.client.plan(job_id).get("look") or {}
        if look and float(look["at"]) > seen:
            seen, calm = float(look["at"]), 0 if look.get("chosen") else calm + 1
            say(f"  {name}: {look['reason']}: {look['why']}")
    explained = running.client.plan(job_id)
    job = running.client.job(job_id)
    ended = _counts(job)
    path = [
        {key: change[key] for key in ("verdict", "why", "rate_before", "rate_expected", "rate_after", "overhead_s")}
        | {"after": {plan["role"]: plan["replicas"] for plan in change["after"]}}
        for change in reversed(explained.get("changes", []))
    ]
    rolled_back = sum(event.type == "job.rolled_back" for event in running.client.events(job_id))
    running.client.stop(job_id)
    until_stopped(running, job_id)
    return {
        "start": list(start), "ended": list(ended), "samples_per_s": float(explained["look"]["samples_per_s"]),
        "took_s": time.monotonic() - began, "path": path, "rollbacks": rolled_back,
        "last": explained["look"]["why"], "form": explained["look"]["fit"].get("form", ""),
    }
