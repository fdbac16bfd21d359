"""Data executors whose number follows their buffers: from one to what a trainer needs, by brain, in a real mesh.

The trainer takes so many samples per second and no more; an executor's decoder needs so long for a row (by sleeping, so
that cores are no limit). What the trainer needs is known, then: 3.4 executors.
"""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.mesh import ROOT, Mesh, criteo_data, mesh, one_thread, say, scratch
from bench.synthetic import criteo_like, write_parquet
from bench.workloads.fed import ROWS_PER_S

SAMPLES_PER_S = 3_500.0
MOST = 8
ROWS, TASK_ROWS, BATCH = 131_072, 1_024, 256
SETTINGS = {"RECMESH_PLAN_INTERVAL_S": "0", "RECMESH_CORES": "16"}
"""The rest are defaults. Decoders sleep: what else the machine does is not to bound them."""
FED = 0.95
"""Of what the trainer could take."""
HELD = ("starting", "running", "draining")
"""States in which an executor takes its core."""
LOOK_S, WINDOW_S = 1.0, 8.0
PATIENCE_S = 300.0
WATCHED_S, QUICK_WATCHED_S = 420.0, 30.0
"""After it is fed: as long as it takes until some are given back, or shorter."""


def scaled(*, quick: bool) -> tuple[dict[str, float], dict[str, Any]]:
    """`time_to_fed_s` from the trainer's first sample until it is fed; `idle_executor_share` of the executors' time
    from then on; and the count over time."""
    watched_s = QUICK_WATCHED_S if quick else WATCHED_S
    with scratch() as folder:
        data = folder / "rows.parquet"
        write_parquet(data, criteo_like(ROWS, seed=1, ids=10_000), row_group=TASK_ROWS)
        with mesh(settings=SETTINGS, env={"PYTHONPATH": str(ROOT)}) as running:
            seen = _watched(running, data, watched_s)
    rates = [(at, _rate(seen, at)) for at, _, _ in seen if at - seen[0][0] >= WINDOW_S]
    fed_at = next(at for at, rate in rates if rate >= FED * SAMPLES_PER_S)
    after = [each for each in seen if each[0] >= fed_at]
    capacity = sum(
        before[2] * ROWS_PER_S * (now[0] - before[0]) for before, now in pairwise(after)
    )
    counts = [count for _, _, count in seen]
    figures = {
        "time_to_fed_s": fed_at - seen[0][0],
        "idle_executor_share": 1.0 - (after[-1][1] - after[0][1]) / capacity,
        "fed_share_after": sum(rate >= FED * SAMPLES_PER_S for at, rate in rates if at >= fed_at)
        / max(1, sum(at >= fed_at for at, _ in rates)),
        "executors_at_the_end": float(counts[-1]),
    }
    path = [counts[0], *(now for before, now in pairwise(counts) if now != before)]
    return figures, {
        "samples_per_s_wanted": SAMPLES_PER_S, "rows_per_s_each": ROWS_PER_S, "executors": path,
        "settings": SETTINGS, "watched_s": watched_s,
    }


def _watched(running: Mesh, data: Path, watched_s: float) -> list[tuple[float, int, int]]:
    """(when, samples so far, executors that run), from the first sample until some time after the trainer is fed."""
    features: list[dict[str, Any]] = [{"name": f"C{number}"} for number in range(1, 5)]
    slow = {"name": "I1", "kind": "dense", "function": "bench.workloads.fed:slowly"}
    spec = {
        "name": "fed",
        "model": {
            "entrypoint": "bench.workloads.fed:main",
            "params": {"tables": 4, "dim": 8, "samples_per_s": SAMPLES_PER_S},
        },
        "data": criteo_data([str(data)], task_rows=TASK_ROWS) | {"features": [slow, *features]},
        "training": {"batch_size": BATCH, "epochs": 10_000, "shard_batches": 16},
        "roles": {
            "ps": {"replicas": 1}, "worker": {"replicas": 1},
            "data": {"min": 1, "max": MOST, "cpu": 1, "env": one_thread()},
        },
        "checkpoint": {"every_s": 600}, "export": None,
    }
    job_id = running.client.submit(spec).job_id
    seen: list[tuple[float, int, int]] = []
    fed_at, began = 0.0, time.monotonic()
    while not fed_at or time.monotonic() - fed_at < watched_s:
        time.sleep(LOOK_S)
        job, now = running.client.job(job_id), time.monotonic()
        samples = sum(item.samples for item in job.roles if item.role == "worker")
        if not samples:
            if now - began > PATIENCE_S:
                raise TimeoutError(f"the job trains nothing: {job.phase} {job.message}")
            continue
        executors = sum(item.role == "data" and item.state in HELD for item in job.roles)
        if seen and executors != seen[-1][2]:
            say(f"  {now - seen[0][0]:.0f} s: {executors} executors, {_rate(seen, now):,.0f} samples/s")
        seen.append((now, samples, executors))
        if not fed_at and now - seen[0][0] >= WINDOW_S and _rate(seen, now) >= FED * SAMPLES_PER_S:
            fed_at = now
        if not fed_at and now - seen[0][0] > PATIENCE_S:
            raise TimeoutError(f"the trainer is not fed after {PATIENCE_S:g} s by {executors} executors")
    return seen


def _rate(seen: list[tuple[float, int, int]], at: float) -> float:
    """Samples per second over the window before."""
    window = [each for each in seen if at - WINDOW_S <= each[0] <= at]
    return (window[-1][1] - window[0][1]) / (window[-1][0] - window[0][0]) if len(window) > 1 else 0.0
