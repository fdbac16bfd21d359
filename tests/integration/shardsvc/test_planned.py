"""A dataset of files of more tasks than a page holds: replicas that are killed, rollbacks, a store that was lost."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from recmesh.data import TaskRecord, index_dataset, planned
from recmesh.data.order import Plan, generate
from recmesh.formats import IntervalSet
from recmesh.pb import common_pb2 as common
from recmesh.pb import shardsvc_pb2 as pb
from recmesh.runtime.bus import Bus
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc.store.durable import TASK_ROOT, TASK_STREAM
from tests.integration.shardsvc.test_service import Service, nats, opening, record, valkey
from tests.support.datasets import clicks, spec, write
from tests.support.servers import NatsServer, ValkeyServer

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
__all__ = ["nats", "valkey"]                # fixtures
JOB = "job-planned"
ROWS, EPOCHS = 34_000, 2
assert ROWS > planned.PAGE


@pytest.fixture
def data(tmp_path: Path) -> DatasetSpec:
    return spec(write(clicks(ROWS), tmp_path / "a.parquet", row_group=ROWS), task_rows=1)


@pytest_asyncio.fixture
async def services(nats: NatsServer, valkey: ValkeyServer, tmp_path: Path) -> AsyncIterator[list[Service]]:
    made = [Service(nats, valkey, tmp_path) for _ in range(2)]
    for each in made:
        each.start()
    try:
        await made[0].call("CloseRun", pb.CloseRunRequest(job_id=JOB, forget=True))
        yield made
    finally:
        for each in made:
            await each.close()


async def train(
    service: Service, found: dict[int, TaskRecord], *, gen: int, worker: str, most: int = 10**9
) -> IntervalSet:
    """Leases and completes; what is at the positions."""
    done = IntervalSet()
    while done.size < most:
        reply = await service.call("Lease", pb.LeaseRequest(job_id=JOB, gen=gen, worker=worker, shards=4))
        if reply.state == pb.LeaseReply.WAIT:
            await asyncio.sleep(reply.retry_after_s)
            continue
        if reply.state == pb.LeaseReply.DRAINED:
            break
        tasks = [record(task) for task in reply.tasks]
        covered = IntervalSet((task.base, task.base + task.rows) for task in tasks)
        for task in tasks:
            assert found.setdefault(task.base, task) == task, "of all replicas and generations"
        for lease in reply.leases:
            assert covered.covers(lease.piece.lo, lease.piece.hi)
            done.add(lease.piece.lo, lease.piece.hi)
        told = [pb.LeaseProgress(epoch=lease.epoch, complete=True) for lease in reply.leases]
        await service.call("Renew", pb.RenewRequest(job_id=JOB, gen=gen, worker=worker, leases=told))
    return done


def ledger(done: IntervalSet) -> common.Ledger:
    return common.Ledger(intervals=[common.Piece(lo=lo, hi=hi) for lo, hi in done])


@pytest.mark.long
async def test_every_task_is_the_plans_whoever_gives_it_and_whatever_dies(
    services: list[Service], data: DatasetSpec, nats: NatsServer, valkey: ValkeyServer
) -> None:
    first, other = services
    begin = opening(data, job_id=JOB, epochs=EPOCHS, batch_size=500)
    opened = await first.call("OpenRun", begin)
    assert (opened.total, opened.to_do, opened.more) == (EPOCHS * ROWS, EPOCHS * ROWS, False)
    bus = Bus(nats.url, "test")
    await bus.start()
    try:
        logged = [len(data) async for _, data in bus.log(TASK_STREAM, f"{TASK_ROOT}.>").read(f"{TASK_ROOT}.{JOB}")]
    finally:
        await bus.stop()
    assert sum(logged) < 3 * ROWS, "three bytes for a slice, and none for a task"

    found: dict[int, TaskRecord] = {}
    parts = await asyncio.gather(*(
        train(service, found, gen=1, worker=f"w{k}", most=16_000) for k, service in enumerate(services)
    ))
    done = parts[0].union(parts[1])
    first.end()                                                 # its replacement knows the log alone
    first.start()
    progress = await first.call("Progress", pb.ProgressRequest(job_id=JOB))
    assert (progress.total, progress.done, progress.epochs, progress.closed) == (
        EPOCHS * ROWS, done.size, EPOCHS, True)
    for lo, hi in await train(first, found, gen=1, worker="w0", most=14_000):
        done.add(lo, hi)
    await asyncio.to_thread(valkey.restart)
    for lo, hi in await train(other, found, gen=1, worker="w1", most=6_000):
        done.add(lo, hi)

    snapshot = IntervalSet([(0, 7_000), (30_000, 50_500)])      # gone back to
    again = await other.call("OpenRun", opening(
        data, job_id=JOB, epochs=EPOCHS, batch_size=500, gen=2, done=ledger(snapshot)))
    assert (again.total, again.to_do) == (EPOCHS * ROWS, EPOCHS * ROWS - snapshot.size)
    rest = await asyncio.gather(*(
        train(service, found, gen=2, worker=f"w{k}") for k, service in enumerate(services)
    ))
    assert rest[0].intersect(rest[1]) == IntervalSet()
    assert rest[0].union(rest[1]).union(snapshot) == IntervalSet([(0, EPOCHS * ROWS)])
    want = [*generate(Plan(index_dataset(data).slices, EPOCHS, 3, True))][:-1]
    sequence = found[0].sequence
    assert [found[base] for base in sorted(found)] == [_logged(task, sequence) for task in want]
    closed = await first.call("Progress", pb.ProgressRequest(job_id=JOB))
    assert (closed.done, closed.drained) == (EPOCHS * ROWS, True)


def _logged(task: TaskRecord, sequence: int) -> TaskRecord:
    return TaskRecord(sequence, task.line, task.base, task.rows, task.epoch, task.order_seed, task.file)
