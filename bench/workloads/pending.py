"""Runs with many tasks that wait: what shardsvc and Valkey hold of them, and how long a lease takes then."""

import asyncio
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from bench.mesh import Mesh, criteo_data, say
from bench.synthetic import criteo_like, write_parquet
from recmesh.pb import shardsvc_pb2 as pb
from recmesh.pb.shardsvc_pb2_grpc import ShardsStub
from recmesh.runtime.rpc import channel
from recmesh.spec.dataset import DatasetSpec

if TYPE_CHECKING:
    from recmesh.pb.shardsvc_pb2_grpc import ShardsAsyncStub

ROWS, TASK_ROWS = 65_536, 16
TASKS = ROWS // TASK_ROWS
"""Of an epoch."""
BEGIN, HOUR = 1_704_067_200, 3600
LEASES, SETTLE_S, PATIENCE_S = 200, 2.0, 600.0
MIB = 1 << 20


async def measure(running: Mesh, folder: Path, sizes: Sequence[int]) -> tuple[dict[str, float], dict[str, object]]:
    """`sizes`: numbers of tasks, ascending. Each is a run of a dataset of files, all of whose tasks are known at once,
    and the largest one of a stream, too, whose tasks are made ahead by a bound."""
    hour = folder / "20240101" / "00"
    hour.mkdir(parents=True)
    write_parquet(hour / "rows.parquet", criteo_like(ROWS, seed=1, ids=1000))
    files = DatasetSpec.parse(criteo_data([str(hour / "rows.parquet")], task_rows=TASK_ROWS))
    stream = DatasetSpec.parse(criteo_data([], task_rows=TASK_ROWS) | {"source": None, "streams": [{"sources": [{
        "files": [f"{folder}/{{YYYY}}{{MM}}{{DD}}/{{HH}}/*.parquet"], "start": BEGIN, "end": BEGIN + HOUR,
    }]}]})
    figures, context = _held(running, "0"), dict[str, object]()
    line = channel(running.address("shardsvc"), token=running.token)
    try:
        stub: ShardsAsyncStub = ShardsStub(line)
        stages = [("stream_", stream, sizes[-1]), *(("", files, size) for size in sizes)]
        for kind, spec, size in stages:
            name = kind + _named(size)
            found, context[f"{name} tasks"] = await _stage(running, stub, spec, f"bench-pending-{name}", size)
            figures |= _held(running, name) | {f"lease_p50_ms_pending_{name}": found}
        for kind, _, size in stages:            # what is measured next shall not sweep their leases
            job_id = f"bench-pending-{kind}{_named(size)}"
            await stub.CloseRun(pb.CloseRunRequest(job_id=job_id, forget=True), timeout=60.0)
    finally:
        await line.close(None)
    least, most = figures["shardsvc_rss_mb_0"], figures[f"shardsvc_rss_mb_{_named(sizes[-1])}"]
    figures |= {"pending_tasks": float(_epochs(sizes[-1]) * TASKS)}
    figures |= {"shardsvc_bytes_per_task": (most - least) * MIB / figures["pending_tasks"]}
    return figures, context


async def _stage(
    running: Mesh, stub: "ShardsAsyncStub", spec: DatasetSpec, job_id: str, size: int
) -> tuple[float, dict[str, object]]:
    """Median time of a lease, and what was there; the run is open still, and no task of it done."""
    began = time.perf_counter()
    await stub.OpenRun(pb.OpenRunRequest(
        job_id=job_id, gen=1, dataset_json=spec.model_dump_json(), epochs=_epochs(size), seed=1, shuffle=True,
        batch_size=TASK_ROWS, shard_batches=1, lease_ttl_s=600.0,
    ), timeout=PATIENCE_S)
    reply = await _settled(stub, job_id)
    opened_s = time.perf_counter() - began
    latency_s = []
    for _ in range(LEASES):
        asked = time.perf_counter()
        granted = await stub.Lease(pb.LeaseRequest(
            job_id=job_id, gen=1, worker="w", shards=1, request_id=uuid.uuid4().hex), timeout=30.0)
        latency_s.append(time.perf_counter() - asked)
        if granted.state != pb.LeaseReply.GRANTED:
            raise RuntimeError(f"{job_id} grants no lease: state {granted.state}")
    context = {
        "to_come": _epochs(size) * TASKS, "on_the_line": reply.total // TASK_ROWS, "closed": reply.closed,
        "opened_s": round(opened_s, 1), "shardsvc_peak_mb": round(_peak_mb(running.services()["shardsvc"])),
    }
    say(f"{job_id}: {context}, {_held(running, 'now')}")
    return sorted(latency_s)[LEASES // 2] * 1e3, context


async def _settled(stub: "ShardsAsyncStub", job_id: str) -> Any:
    """Progress, once the line of a stream is as long as it becomes while nobody trains."""
    deadline, before = time.perf_counter() + PATIENCE_S, -1
    while time.perf_counter() < deadline:
        reply = await stub.Progress(pb.ProgressRequest(job_id=job_id), timeout=30.0)
        if reply.closed or reply.total == before > 0:
            return reply
        before = reply.total
        await asyncio.sleep(SETTLE_S)
    raise TimeoutError(f"the line of {job_id} still grows")


def _epochs(size: int) -> int:
    return -(-size // TASKS)


def _named(size: int) -> str:
    return f"{size // 1_000_000}m" if size >= 1_000_000 else f"{size // 1000}k"


def _held(running: Mesh, name: str) -> dict[str, float]:
    """Resident memory as it is now."""
    processes = running.services()
    return {
        f"{label}_{name}": processes[service].memory_info().rss / MIB
        for service, label in (("shardsvc", "shardsvc_rss_mb"), ("valkey", "valkey_mb"))
    }


def _peak_mb(process: psutil.Process) -> float:
    """The most that was resident, ever."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
