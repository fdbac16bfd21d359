"""Runs with many tasks that wait: what shardsvc and Valkey hold of them, and how long a lease takes then."""

import asyncio
import shutil
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

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
"""Of an epoch, or of each file of a wide dataset."""
BEGIN, HOUR = 1_704_067_200, 3600
LEASES, SETTLE_S, PATIENCE_S = 200, 2.0, 600.0
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Stage:
    """A run that is opened and of which little is leased."""

    name: str
    spec: DatasetSpec
    epochs: int
    task_rows: int
    tasks: int

    @property
    def job_id(self) -> str:
        """Of the run."""
        return f"bench-pending-{self.name}"


async def measure(running: Mesh, folder: Path, sizes: Sequence[int]) -> tuple[dict[str, float], dict[str, object]]:
    """`sizes`: numbers of tasks, ascending. Each is a run of one file over many epochs, and one of many files over one
    epoch (`epoch_`); the largest one is a run of a stream, too."""
    hour = folder / "20240101" / "00"
    hour.mkdir(parents=True)
    write_parquet(hour / "rows.parquet", criteo_like(ROWS, seed=1, ids=1000))
    files = DatasetSpec.parse(criteo_data([str(hour / "rows.parquet")], task_rows=TASK_ROWS))
    stream = DatasetSpec.parse(criteo_data([], task_rows=TASK_ROWS) | {"source": None, "streams": [{"sources": [{
        "files": [f"{folder}/{{YYYY}}{{MM}}{{DD}}/{{HH}}/*.parquet"], "start": BEGIN, "end": BEGIN + HOUR,
    }]}]})
    largest = sizes[-1]
    stages = [Stage(f"stream_{_named(largest)}", stream, _epochs(largest), TASK_ROWS, _epochs(largest) * TASKS)]
    for size in sizes:
        stages.append(Stage(_named(size), files, _epochs(size), TASK_ROWS, _epochs(size) * TASKS))
    for size in sizes:
        wide = _wide(folder / f"wide-{size}", files=_epochs(size))
        stages.append(Stage(f"epoch_{_named(size)}", wide, 1, 1, _epochs(size) * TASKS))
    figures, context = _held(running, "0"), dict[str, object]()
    line = channel(running.address("shardsvc"), token=running.token)
    try:
        stub: ShardsAsyncStub = ShardsStub(line)
        for stage in stages:
            found, context[f"{stage.name} tasks"] = await _measured(running, stub, stage)
            figures |= _held(running, stage.name) | found
        for stage in stages:                    # what is measured next shall not sweep their leases
            await stub.CloseRun(pb.CloseRunRequest(job_id=stage.job_id, forget=True), timeout=60.0)
    finally:
        await line.close(None)
    least = "0" if len(sizes) == 1 else _named(sizes[0])
    more = stages[-1].tasks - (0 if len(sizes) == 1 else _epochs(sizes[0]) * TASKS)
    grown = figures[f"shardsvc_rss_mb_{_named(largest)}"] - figures[f"shardsvc_rss_mb_{least}"]
    figures |= {"pending_tasks": float(stages[-1].tasks), "shardsvc_bytes_per_task": grown * MIB / more}
    return figures, context


def _wide(folder: Path, *, files: int) -> DatasetSpec:
    """Of so many files, of `TASKS` rows each, each row of which is a task."""
    folder.mkdir()
    first = folder / "00000.parquet"
    pq.write_table(pa.table({"label": [0.0] * TASKS, "item": list(range(TASKS))}), first)
    for number in range(1, files):
        shutil.copyfile(first, folder / f"{number:05}.parquet")
    return DatasetSpec.parse({
        "source": {"format": "parquet", "files": [f"{folder}/*.parquet"]}, "label": "label",
        "features": [{"name": "item"}], "task_rows": 1,
    })


async def _measured(
    running: Mesh, stub: "ShardsAsyncStub", stage: Stage
) -> tuple[dict[str, float], dict[str, object]]:
    """How long until the first lease, the median time of those that follow, and what was there; the run is open still,
    and no task of it done."""
    began = time.perf_counter()
    await stub.OpenRun(pb.OpenRunRequest(
        job_id=stage.job_id, gen=1, dataset_json=stage.spec.model_dump_json(), epochs=stage.epochs, seed=1,
        shuffle=True, batch_size=stage.task_rows, shard_batches=1, lease_ttl_s=600.0,
    ), timeout=PATIENCE_S)
    opened_s = time.perf_counter() - began
    while not await _leases(stub, stage):       # noqa: ASYNC110 (of a stream, until another process has written it)
        await asyncio.sleep(0.05)
    first_s = time.perf_counter() - began
    reply = await _settled(stub, stage.job_id)
    latency_s = []
    for _ in range(LEASES):
        asked = time.perf_counter()
        if not await _leases(stub, stage):
            raise RuntimeError(f"{stage.job_id} grants no lease")
        latency_s.append(time.perf_counter() - asked)
    context = {
        "to_come": stage.tasks, "on_the_line": reply.total // stage.task_rows, "closed": reply.closed,
        "opened_s": round(opened_s, 2), "shardsvc_peak_mb": round(_peak_mb(running.services()["shardsvc"])),
    }
    figures = {
        f"first_lease_s_{stage.name}": first_s,
        f"lease_p50_ms_pending_{stage.name}": sorted(latency_s)[LEASES // 2] * 1e3,
    }
    say(f"{stage.job_id}: {context}, {figures}, {_held(running, 'now')}")
    return figures, context


async def _leases(stub: "ShardsAsyncStub", stage: Stage) -> bool:
    granted = await stub.Lease(pb.LeaseRequest(
        job_id=stage.job_id, gen=1, worker="w", shards=1, request_id=uuid.uuid4().hex), timeout=30.0)
    return granted.state == pb.LeaseReply.GRANTED


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
