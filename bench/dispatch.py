"""Shard leases through the shardsvc process of a mesh, with its NATS and its Valkey (appendfsync always)."""

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from bench.figures import Result
from bench.mesh import Mesh, cpu_seconds, criteo_data, mesh, say, scratch
from bench.synthetic import criteo_like, write_parquet
from recmesh.pb import shardsvc_pb2 as pb
from recmesh.pb.shardsvc_pb2_grpc import ShardsStub
from recmesh.runtime.rpc import channel
from recmesh.spec.dataset import DatasetSpec

if TYPE_CHECKING:
    from recmesh.pb.shardsvc_pb2_grpc import ShardsAsyncStub

ROWS, SHARD_ROWS, EPOCHS = 65_536, 16, 256
BATCH = 256
CLIENTS_SINGLE, CLIENTS_BATCHED = 32, 4
JOB = "bench-dispatch"


def run(*, quick: bool) -> Result:
    """Single leases of many clients, leases by 256 of a few, and the latency that one client alone sees."""
    window_s = 4.0 if quick else 15.0
    with scratch() as folder, mesh() as running:
        data = folder / "rows.parquet"
        write_parquet(data, criteo_like(ROWS, seed=1, ids=1000))
        spec = DatasetSpec.parse(criteo_data([str(data)]))
        figures, context = asyncio.run(_measure(running, spec, window_s))
    return Result("dispatch", figures, {
        "window_s": window_s, "clients_single": CLIENTS_SINGLE, "clients_batched": CLIENTS_BATCHED, "batch": BATCH,
        "shard_rows": SHARD_ROWS, "positions": ROWS * EPOCHS, **context,
        "completions": "each client reports its leases as done by one Renew per 256, within the window",
        "quick": f"{window_s:g} s windows instead of 15 s" if quick else "",
    })


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
        return {"leases": self.leases, "wall_s": round(self.wall_s, 2), "cpu_us_per_lease": each}


async def _measure(running: Mesh, spec: DatasetSpec, window_s: float) -> tuple[dict[str, float], dict[str, object]]:
    line = channel(running.address("shardsvc"), token=running.token)
    try:
        stub: ShardsAsyncStub = ShardsStub(line)
        await stub.OpenRun(pb.OpenRunRequest(
            job_id=JOB, gen=1, dataset_json=spec.model_dump_json(), epochs=EPOCHS, seed=1, shuffle=True,
            batch_size=SHARD_ROWS, shard_batches=1, lease_ttl_s=60.0,
        ), timeout=60.0)
        await _window(running, stub, clients=4, shards=1, window_s=1.0)
        alone = await _window(running, stub, clients=1, shards=1, window_s=window_s)
        single = await _window(running, stub, clients=CLIENTS_SINGLE, shards=1, window_s=window_s)
        batched = await _window(running, stub, clients=CLIENTS_BATCHED, shards=BATCH, window_s=window_s)
        await stub.CloseRun(pb.CloseRunRequest(job_id=JOB, forget=True), timeout=30.0)
    finally:
        await line.close(None)
    latency_s = sorted(alone.latency_s)
    return {
        "leases_per_s_single": single.leases / single.wall_s, "leases_per_s_batched": batched.leases / batched.wall_s,
        "lease_p50_ms": latency_s[len(latency_s) // 2] * 1e3,
        "lease_p99_ms": latency_s[len(latency_s) * 99 // 100] * 1e3,
    }, {"one client": alone.shown, "single": single.shown, "batched": batched.shown}


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
