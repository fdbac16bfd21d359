"""Decoded batches from one process to another: gRPC with raw arrays, as data executors do, beside Arrow Flight.

Batches of 4,096 Criteo-like rows that lie decoded in the server's memory, one call after another. CPU seconds of both
ends are the figure to go by where other processes use the machine too.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil

from bench.figures import Result
from bench.mesh import criteo_data, say, scratch
from bench.synthetic import criteo_like, write_parquet
from bench.workloads.asking import Served, started, tasks_of
from bench.workloads.serving import job_of
from recmesh.data import Batch
from recmesh.runtime.rpc import sync_channel
from recmesh.spec.fingerprint import job_fingerprint
from recmesh.trainer.wire import RemoteExecutor

ROWS, BATCH = 65_536, 4_096
PASSES, QUICK_PASSES = 40, 8


def run(*, quick: bool) -> Result:
    """`samples_per_s_*`, `cpu_us_per_sample_*` of both ends, `batch_ms_p50_*`; `ratio_cpu` is Flight's by gRPC's."""
    passes = QUICK_PASSES if quick else PASSES
    figures: dict[str, float] = {}
    with scratch() as folder:
        write_parquet(folder / "rows.parquet", criteo_like(ROWS, seed=1, ids=10_000))
        data = criteo_data([str(folder / "rows.parquet")], shuffle=False)
        for _ in range(2):                  # the second round counts: both have run before
            figures = _measured("grpc", data, passes) | _measured("flight", data, passes)
    figures["ratio_cpu"] = figures["cpu_us_per_sample_flight"] / figures["cpu_us_per_sample_grpc"]
    figures["ratio_speed"] = figures["samples_per_s_flight"] / figures["samples_per_s_grpc"]
    return Result("rows_wire", figures, {
        "rows": ROWS, "batch": BATCH, "passes": passes,
        "quick": f"{QUICK_PASSES} passes instead of {PASSES}" if quick else "",
    })


def _measured(wire: str, data: dict[str, Any], passes: int) -> dict[str, float]:
    served = started(data, flight=wire == "flight", buffer="1Gi")
    try:
        get = _flight(served) if wire == "flight" else _grpc(served, data)
        bounds = [(lo, lo + BATCH) for lo in range(0, ROWS, BATCH)]
        for lo, hi in bounds:               # decodes it
            get(lo, hi)
        ends = [psutil.Process(), psutil.Process(served.pid)]
        cpu, began, times = sum(sum(each.cpu_times()[:2]) for each in ends), time.perf_counter(), []
        for _ in range(passes):
            for lo, hi in bounds:
                start = time.perf_counter()
                batch = get(lo, hi)
                times.append(time.perf_counter() - start)
                assert batch.size == BATCH
        took_s = time.perf_counter() - began
        spent_s = sum(sum(each.cpu_times()[:2]) for each in ends) - cpu
    finally:
        served.process.kill()
        served.process.wait()
    samples = passes * ROWS
    say(f"  {wire}: {samples / took_s:,.0f} samples/s, {1e6 * spent_s / samples:.3f} µs of CPU each")
    return {
        f"samples_per_s_{wire}": samples / took_s, f"cpu_us_per_sample_{wire}": 1e6 * spent_s / samples,
        f"batch_ms_p50_{wire}": 1e3 * statistics.median(times),
    }


def _grpc(served: Served, data: dict[str, Any]) -> Callable[[int, int], Batch]:
    executor = RemoteExecutor(
        sync_channel(served.address), fingerprint=job_fingerprint(job_of(data), job_id="bench"))
    tasks = tasks_of(data)

    def get(lo: int, hi: int) -> Batch:
        task = next(task for task in tasks if task.base <= lo < task.base + task.rows)
        found = executor.read(task, lo, hi, wait_s=30).batch
        assert found is not None
        return found

    return get


def _flight(served: Served) -> Callable[[int, int], Batch]:
    from bench.peers.flight import Client

    return Client(served.address).batch
