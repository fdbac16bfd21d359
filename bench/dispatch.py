"""Shard leases through the shardsvc process of a mesh, with its NATS and its Valkey (appendfsync always).

Beside them, with as many clients: tf.data service's dispatcher, in its fault-tolerant mode, and, where an interpreter
has it, DLRover's master. Both hand out one split or task per call, for their protocols have no batches. What they hand
out is less durable: the dispatcher writes its journal without fsync, the master keeps all in memory.

Before that, how much memory shardsvc and Valkey take while a run of two million tasks waits (`workloads/pending.py`).
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psutil

from bench.figures import Result
from bench.mesh import ROOT, Mesh, cpu_seconds, criteo_data, mesh, one_thread, say, scratch
from bench.synthetic import criteo_like, write_parquet
from bench.workloads import pending
from recmesh.pb import shardsvc_pb2 as pb
from recmesh.pb.shardsvc_pb2_grpc import ShardsStub
from recmesh.runtime.rpc import channel, sync_channel
from recmesh.spec.dataset import DatasetSpec
from recmesh.trainer.ports import LeaseProgress
from recmesh.trainer.wire.shards import RemoteShards

if TYPE_CHECKING:
    from recmesh.pb.shardsvc_pb2_grpc import ShardsAsyncStub

ROWS, SHARD_ROWS, EPOCHS = 65_536, 16, 1024
BATCH = 256
CLIENTS, QUICK_CLIENTS = (1, 2, 4, 8), (1, 4, 8)
PENDING, QUICK_PENDING = (100_000, 2_000_000), (100_000,)
JOB = "bench-dispatch"
SPLITS = 1 << 40
PEER_PYTHON = "RECMESH_BENCH_DLROVER_PYTHON"
"""Names an interpreter that has dlrover."""


def run(*, quick: bool) -> Result:
    """Leases one by one and by 256; `leases_per_s_*` are the most of 1 to 8 clients, the latency is one client's."""
    window_s, clients = (3.0, QUICK_CLIENTS) if quick else (15.0, CLIENTS)
    with scratch() as folder, mesh() as running:
        data = folder / "rows.parquet"
        write_parquet(data, criteo_like(ROWS, seed=1, ids=1000))
        spec = DatasetSpec.parse(criteo_data([str(data)]))
        figures, context = asyncio.run(pending.measure(running, folder, QUICK_PENDING if quick else PENDING))
        leased, windows = asyncio.run(_measure(running, spec, window_s, clients))
        figures, context = figures | leased, context | windows
        task = {"clients": clients, "window_s": window_s, "rows": ROWS, "shard_rows": SHARD_ROWS, "epochs": EPOCHS}
    with tempfile.TemporaryDirectory() as folder_on_disk:       # where the mesh's own stores have theirs
        found = {"tf_data": _peer("tf_splits", sys.executable, task | {"splits": SPLITS, "folder": folder_on_disk})}
    if PEER_PYTHON in os.environ:
        found["dlrover"] = _peer("dlrover_tasks", os.environ[PEER_PYTHON], task)
    for name, asked in found.items():
        figures[f"leases_per_s_{name}"] = max(each["leases"] / each["wall_s"] for each in asked)
        figures[f"lease_p50_ms_{name}"] = asked[0]["p50_ms"]
        for kind in ("batched", "single"):
            figures[f"{kind}_vs_{name}"] = figures[f"leases_per_s_{kind}"] / figures[f"leases_per_s_{name}"]
        context |= {f"{name}, {each['clients']} clients": _shown(each) for each in asked}
    return Result("dispatch", figures, {
        "window_s": window_s, "batch": BATCH, "shard_rows": SHARD_ROWS, "positions": ROWS * EPOCHS, **context,
        "completions": "each client reports its leases as done by one Renew per 256, within the window; DLRover's "
                       "clients report each task; splits of tf.data service are not reported",
        "dlrover": "" if "dlrover" in found else f"not measured: {PEER_PYTHON} names no interpreter",
        "quick": f"{window_s:g} s windows instead of 15 s, fewer numbers of clients, at most {QUICK_PENDING[-1]:,} "
                 f"tasks that wait instead of {PENDING[-1]:,}" if quick else "",
    })


def _peer(module: str, python: str, task: Mapping[str, Any]) -> list[dict[str, Any]]:
    environment = {**os.environ, **one_thread(), "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [python, "-m", f"bench.peers.{module}", json.dumps(task)], cwd=ROOT, env=environment, check=False,
        capture_output=True, text=True, timeout=600,
    )
    if done.returncode:
        raise RuntimeError(f"{module} failed:\n{done.stderr[-4000:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["found"]
    for each in found:
        say(f"{module}, {each['clients']} clients: {each['leases'] / each['wall_s']:,.0f} per s {_shown(each)}")
    return found


def _shown(window: Mapping[str, Any]) -> dict[str, object]:
    """Of a peer's window, for the context."""
    each = {name: round(spent / window["leases"] * 1e6, 1) for name, spent in window["cpu_s"].items()}
    return {"per_s": round(window["leases"] / window["wall_s"]), "p50_ms": round(window["p50_ms"], 2),
            "p99_ms": round(window["p99_ms"], 2), "cpu_us_per_lease": each}


@dataclass
class Client:
    """One worker that holds its leases until there are 256, and reports them as done."""

    stub: "ShardsAsyncStub"
    worker: str
    held: list[int] = field(default_factory=list)

    async def lease(self, shards: int) -> int:
        """Leases once; how many were granted."""
        reply = await self.stub.Lease(pb.LeaseRequest(
            job_id=JOB, gen=1, worker=self.worker, shards=shards, request_id=uuid.uuid4().hex), timeout=30.0)
        if reply.state != pb.LeaseReply.GRANTED:
            raise RuntimeError("the run has no shards left: it is too short for this machine")
        self.held += [lease.epoch for lease in reply.leases]
        if len(self.held) >= BATCH:
            done = [pb.LeaseProgress(epoch=epoch, complete=True) for epoch in self.held]
            self.held.clear()
            await self.stub.Renew(pb.RenewRequest(job_id=JOB, gen=1, worker=self.worker, leases=done), timeout=30.0)
        return len(reply.leases)


@dataclass
class Window:
    """What some clients got, each asking again as soon as it was answered."""

    leases: int
    wall_s: float
    latency_s: list[float]
    cpu_s: dict[str, float]

    @property
    def shown(self) -> dict[str, object]:
        """For the context."""
        each = {name: round(spent / self.leases * 1e6, 1) for name, spent in self.cpu_s.items()}
        return {"per_s": round(self.leases / self.wall_s), "p50_ms": round(self.quantile_ms(0.5), 2),
                "p99_ms": round(self.quantile_ms(0.99), 2), "cpu_us_per_lease": each}

    def quantile_ms(self, share: float) -> float:
        """Of the latency of a call."""
        return quantile_ms(self.latency_s, share)


def quantile_ms(latency_s: Sequence[float], share: float) -> float:
    """Of seconds."""
    return sorted(latency_s)[int(len(latency_s) * share)] * 1e3


async def _measure(
    running: Mesh, spec: DatasetSpec, window_s: float, clients: Sequence[int]
) -> tuple[dict[str, float], dict[str, object]]:
    line = channel(running.address("shardsvc"), token=running.token)
    try:
        stub: ShardsAsyncStub = ShardsStub(line)
        await stub.OpenRun(pb.OpenRunRequest(
            job_id=JOB, gen=1, dataset_json=spec.model_dump_json(), epochs=EPOCHS, seed=1, shuffle=True,
            batch_size=SHARD_ROWS, shard_batches=1, lease_ttl_s=60.0,
        ), timeout=60.0)
        await _window(running, stub, clients=4, shards=1, window_s=1.0)
        windows = {
            (shards, count): await _window(running, stub, clients=count, shards=shards, window_s=window_s)
            for shards in (1, BATCH) for count in clients
        }
        latency_s = await asyncio.to_thread(_latencies, running, window_s)
        await stub.CloseRun(pb.CloseRunRequest(job_id=JOB, forget=True), timeout=30.0)
    finally:
        await line.close(None)
    alone = windows[1, 1]
    most = {shards: max(found.leases / found.wall_s for (each, _), found in windows.items() if each == shards)
            for shards in (1, BATCH)}
    shown = {f"{count} clients, {shards} at a time": found.shown for (shards, count), found in windows.items()}
    return {
        "leases_per_s_single": most[1], "leases_per_s_batched": most[BATCH],
        "lease_p50_ms": quantile_ms(latency_s, 0.5), "lease_p99_ms": quantile_ms(latency_s, 0.99),
        "lease_p50_ms_asyncio": alone.quantile_ms(0.5),
    }, dict(shown)


def _latencies(running: Mesh, window_s: float) -> list[float]:
    """Seconds of each lease of one shard, by a worker's own client, which has no event loop."""
    found: list[float] = []
    with sync_channel(running.address("shardsvc"), token=running.token) as line:
        shards, held = RemoteShards(line, job_id=JOB, worker="alone"), list[int]()
        began = time.perf_counter()
        while (asked := time.perf_counter()) < began + window_s:
            reply = shards.lease(1, shards=1, request_id=uuid.uuid4().hex)
            found.append(time.perf_counter() - asked)
            held += [lease.epoch for lease in reply.leases]
            if len(held) >= BATCH:
                shards.renew(1, [LeaseProgress(epoch, 0, True) for epoch in held])
                held.clear()
    say(f"a worker's client: p50 {quantile_ms(found, 0.5):.2f} ms, p99 {quantile_ms(found, 0.99):.2f} ms")
    return found


async def _window(running: Mesh, stub: "ShardsAsyncStub", *, clients: int, shards: int, window_s: float) -> Window:
    watched = {name: process for name, process in running.services().items() if name in ("shardsvc", "valkey", "nats")}
    watched["clients"] = psutil.Process()
    latency_s: list[float] = []
    began, before = time.perf_counter(), cpu_seconds(watched)

    async def ask(client: Client) -> int:
        granted = 0
        while (asked := time.perf_counter()) < began + window_s:
            granted += await client.lease(shards)
            latency_s.append(time.perf_counter() - asked)
        return granted

    asking = [ask(Client(stub, f"{clients}-{shards}-{k}")) for k in range(clients)]
    leases = sum(await asyncio.gather(*asking))
    wall_s, after = time.perf_counter() - began, cpu_seconds(watched)
    found = Window(leases, wall_s, latency_s, {name: after[name] - before[name] for name in after})
    say(f"{clients} clients, {shards} shards each: {leases / wall_s:,.0f} leases/s {found.shown}")
    return found
