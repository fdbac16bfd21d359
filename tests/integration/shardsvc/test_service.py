"""The service as a process, over a real nats-server and a real Valkey, killed at will."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from recmesh.cli.mesh.component import Probe
from recmesh.cli.mesh.probes import Answer, Heard, ask
from recmesh.data import FileSlice, TaskReader, TaskRecord
from recmesh.formats import IntervalSet
from recmesh.pb import common_pb2 as common
from recmesh.pb import shardsvc_pb2 as pb
from recmesh.pb import shardsvc_pb2_grpc as pb_grpc
from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import DeadlineExceeded, InvalidArgument, NotFound, Unavailable
from recmesh.runtime.events import Event
from recmesh.runtime.events.catalog import LEASE_REQUEUED, RUN_OPENED
from recmesh.runtime.rpc import channel
from recmesh.spec.dataset import DatasetSpec
from services.shardsvc.rpc import SERVICE_NAME
from tests.support.datasets import clicks, spec, write
from tests.support.servers import NatsServer, ValkeyServer, free_port, nats_server, valkey_server

pytestmark = pytest.mark.integration

JOB = "job-1"
ROWS = 2_000
TIMEOUT_S = 60.0
REPOSITORY = Path(__file__).parents[3]


class Service:
    """One replica; the same port over kills."""

    def __init__(self, nats: NatsServer, valkey: ValkeyServer, folder: Path) -> None:
        self.port = free_port()
        self.http = f"127.0.0.1:{free_port()}"
        self._log = folder / f"shardsvc-{self.port}.log"
        self._env = os.environ | {
            "RECMESH_NATS_URL": nats.url, "RECMESH_VALKEY_URL": valkey.url,
            "RECMESH_RPC_ADDRESS": f"127.0.0.1:{self.port}", "RECMESH_DATA_DIR": str(folder),
            "RECMESH_HTTP_ADDRESS": self.http,
        }
        self._channel = channel(f"127.0.0.1:{self.port}")
        self.stub = pb_grpc.ShardsStub(self._channel)
        self._process: subprocess.Popen[bytes] | None = None

    async def health(self) -> int:
        stub = health_pb2_grpc.HealthStub(self._channel)
        return int((await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))).status)

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "services.shardsvc"], cwd=REPOSITORY, env=self._env, stdout=log, stderr=log
            )

    def end(self, signum: int = signal.SIGKILL) -> int:
        assert self._process is not None
        self._process.send_signal(signum)
        return self._process.wait(30)

    async def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.end()
        await self._channel.close(None)

    async def call(self, method: str, request: Any) -> Any:
        """Again and again while the service, or what it needs, is away."""
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        while True:
            try:
                return await getattr(self.stub, method)(request, timeout=TIMEOUT_S, wait_for_ready=True)
            except (Unavailable, DeadlineExceeded):
                if asyncio.get_running_loop().time() > deadline:
                    ended = self._process is not None and self._process.poll()
                    raise AssertionError(f"exit code {ended}: {self._log.read_text()[-2_000:]}") from None
                await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    with valkey_server(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest_asyncio.fixture
async def service(nats: NatsServer, valkey: ValkeyServer, tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(nats, valkey, tmp_path)
    made.start()
    try:
        await made.call("CloseRun", pb.CloseRunRequest(job_id=JOB, forget=True))
        yield made
    finally:
        await made.close()


@pytest.fixture
def data(tmp_path: Path) -> DatasetSpec:
    return spec(write(clicks(ROWS), tmp_path / "a.csv.gz"), format="csv", task_rows=130)


def opening(data: DatasetSpec, **more: Any) -> pb.OpenRunRequest:
    fields: dict[str, Any] = {
        "job_id": JOB, "gen": 1, "dataset_json": data.model_dump_json(), "epochs": 2, "seed": 3, "shuffle": True,
        "batch_size": 16, "shard_batches": 4, "lease_ttl_s": 30.0,
    }
    return pb.OpenRunRequest(**(fields | more))


def record(task: common.TaskRecord) -> TaskRecord:
    f = task.file
    file = FileSlice(f.uri, f.size_bytes, f.etag, f.first_row, f.rows, f.byte_lo, f.byte_hi)
    return TaskRecord(task.sequence, task.line, task.base, task.rows, task.epoch, task.order_seed, file)


class Worker:
    """Leases, reads, completes; remembers what it trained."""

    def __init__(self, service: Service, data: DatasetSpec, name: str = "w0") -> None:
        self._service, self._name = service, name
        self._reader = TaskReader(data)
        self.rows: list[int] = []
        self.pieces: list[tuple[int, int]] = []
        self.epochs: list[int] = []

    async def step(self, shards: int = 2) -> int:
        """One call for leases, trained and completed; the reply's state."""
        request = pb.LeaseRequest(
            job_id=JOB, gen=1, worker=self._name, shards=shards, request_id=f"{self._name}-{len(self.epochs)}"
        )
        reply = await self._service.call("Lease", request)
        for lease in reply.leases:
            lo, hi = lease.piece.lo, lease.piece.hi
            batch = self._reader.batch([record(task) for task in reply.tasks], lo, hi)
            self.rows += [int(row) for row in batch.dense[:, 1]]
            self.pieces.append((lo, hi))
            self.epochs.append(lease.epoch)
        done = [pb.LeaseProgress(epoch=x.epoch, done_to=x.piece.hi, complete=True) for x in reply.leases]
        if done:
            await self._service.call(
                "Renew", pb.RenewRequest(job_id=JOB, gen=1, worker=self._name, leases=done)
            )
        if reply.state == pb.LeaseReply.WAIT:
            await asyncio.sleep(reply.retry_after_s)
        return int(reply.state)

    async def drain(self) -> None:
        while await self.step() != pb.LeaseReply.DRAINED:
            pass


@pytest.mark.asyncio
async def test_two_workers_read_every_row_once_in_each_epoch(service: Service, data: DatasetSpec) -> None:
    opened = await service.call("OpenRun", opening(data))
    assert (opened.total, opened.to_do) == (2 * ROWS, 2 * ROWS)
    workers = [Worker(service, data, f"w{i}") for i in range(2)]
    await asyncio.gather(*(worker.drain() for worker in workers))
    rows = [row for worker in workers for row in worker.rows]
    assert sorted(rows) == sorted([*range(ROWS), *range(ROWS)])
    assert rows != sorted(rows)
    progress = await service.call("Progress", pb.ProgressRequest(job_id=JOB))
    assert (progress.done, progress.drained, progress.closed, progress.epochs) == (2 * ROWS, True, True, 2)


@pytest.mark.asyncio
async def test_kill_9_of_the_service_loses_nothing_it_acknowledged(service: Service, data: DatasetSpec) -> None:
    await service.call("OpenRun", opening(data))
    worker = Worker(service, data)
    for _ in range(5):
        await worker.step()
    held = await service.call("Lease", pb.LeaseRequest(job_id=JOB, gen=1, worker="w1", shards=1))
    service.end()
    service.start()
    kept = await service.call("Progress", pb.ProgressRequest(job_id=JOB))
    assert [holder.worker for holder in kept.holders] == ["w1"]
    assert (await service.call("OpenRun", opening(data))).total == 2 * ROWS
    released = await service.call("ReleaseWorker", pb.ReleaseWorkerRequest(job_id=JOB, gen=1, worker="w1"))
    assert released.requeued == held.leases[0].piece.hi - held.leases[0].piece.lo
    await worker.drain()
    assert IntervalSet(worker.pieces) == IntervalSet([(0, 2 * ROWS)])
    assert len(worker.rows) == 2 * ROWS


@pytest.mark.asyncio
async def test_an_acknowledged_lease_outlives_kill_9_of_valkey(
    service: Service, data: DatasetSpec, valkey: ValkeyServer
) -> None:
    await service.call("OpenRun", opening(data))
    held = await service.call("Lease", pb.LeaseRequest(job_id=JOB, gen=1, worker="w1", shards=3))
    await asyncio.to_thread(valkey.restart)
    kept = await service.call("Progress", pb.ProgressRequest(job_id=JOB))
    assert [(holder.worker, holder.leases) for holder in kept.holders] == [("w1", 3)]
    later = await service.call("Lease", pb.LeaseRequest(job_id=JOB, gen=1, worker="w2", shards=1))
    assert later.leases[0].epoch > max(lease.epoch for lease in held.leases)


@pytest.mark.asyncio
async def test_a_flushed_valkey_costs_retraining_since_the_last_snapshot_and_nothing_else(
    service: Service, data: DatasetSpec, valkey: ValkeyServer
) -> None:
    from redis.asyncio import Redis

    await service.call("OpenRun", opening(data))
    worker = Worker(service, data)
    for _ in range(5):
        await worker.step()
    snapshot = IntervalSet(worker.pieces)
    ledger = common.Ledger(intervals=[common.Piece(lo=lo, hi=hi) for lo, hi in snapshot])
    await service.call("Reconcile", pb.ReconcileRequest(job_id=JOB, gen=1, done=ledger))
    for _ in range(3):
        await worker.step()
    after = len(worker.pieces)
    client = Redis.from_url(valkey.url)
    await client.flushall()
    await client.script_flush()
    await client.aclose()
    await worker.drain()
    assert IntervalSet(worker.pieces) == IntervalSet([(0, 2 * ROWS)])
    assert IntervalSet(worker.pieces[after:]).intersect(snapshot) == IntervalSet()
    assert len(set(worker.epochs)) == len(worker.epochs)


@pytest.mark.asyncio
async def test_replicas_that_open_a_run_at_once_agree(
    service: Service, data: DatasetSpec, nats: NatsServer, valkey: ValkeyServer, tmp_path: Path
) -> None:
    other = Service(nats, valkey, tmp_path)
    other.start()
    try:
        calls = [(service, 1), (other, 1), (service, 2), (other, 2)]
        opened = await asyncio.gather(*(one.call("OpenRun", opening(data)) for one, _ in calls))
        assert {(reply.total, reply.to_do, reply.log_last_sequence) for reply in opened} == {
            (2 * ROWS, 2 * ROWS, opened[0].log_last_sequence)
        }
        workers = [Worker(service, data, "w0"), Worker(other, data, "w1")]
        await asyncio.gather(*(worker.drain() for worker in workers))
        rows = [row for worker in workers for row in worker.rows]
        assert sorted(rows) == sorted([*range(ROWS), *range(ROWS)])
    finally:
        await other.close()


@pytest.mark.asyncio
async def test_an_expired_lease_is_requeued_and_told_though_nobody_asks(
    service: Service, data: DatasetSpec, nats: NatsServer
) -> None:
    bus = Bus(nats.url, "test")
    await bus.start()
    told: asyncio.Queue[Event[Any]] = asyncio.Queue()
    consumer = bus.consume("test-shardsvc", [LEASE_REQUEUED, RUN_OPENED], told.put, new_only=True)
    await consumer.start()
    try:
        # a job of its own: the bus takes events of a job that comes again for repetitions
        await service.call("OpenRun", opening(data, job_id="job-2", lease_ttl_s=0.3))
        request = pb.LeaseRequest(job_id="job-2", gen=1, worker="w1", shards=1)
        lease = (await service.call("Lease", request)).leases[0]
        events = [await asyncio.wait_for(told.get(), TIMEOUT_S) for _ in range(2)]
        assert [event.type.name for event in events] == ["run.opened", "lease.requeued"]
        requeued = events[1].data
        assert (requeued.job_id, requeued.worker, requeued.reason) == ("job-2", "w1", "expired")
        assert requeued.positions == lease.piece.hi - lease.piece.lo
    finally:
        await consumer.stop()
        await bus.stop()


@pytest.mark.asyncio
async def test_bad_requests_name_every_wrong_field_and_create_nothing(service: Service, data: DatasetSpec) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await service.call("OpenRun", opening(data, job_id="a.b", epochs=0, batch_size=0))
    assert [violation.path for violation in caught.value.violations] == ["job_id", "epochs", "batch_size"]
    with pytest.raises(InvalidArgument) as caught:
        await service.call("OpenRun", opening(data.model_copy(update={"label": "nosuch"})))
    assert caught.value.violations[0].path == "data.label"
    source = data.views()[0].source
    gone = data.model_copy(update={"source": source.model_copy(update={"files": ["/nowhere/*.csv"]})})
    with pytest.raises(NotFound) as missing:
        await service.call("OpenRun", opening(gone))
    assert missing.value.violations[0].path == "data.source.files"
    with pytest.raises(NotFound):
        await service.call("Progress", pb.ProgressRequest(job_id=JOB))


@pytest.mark.asyncio
async def test_datasets_are_inspected_registered_and_listed(service: Service, data: DatasetSpec) -> None:
    inspected = await service.call("Inspect", pb.InspectRequest(dataset_json=data.model_dump_json()))
    assert (inspected.rows, inspected.files) == (ROWS, 1)
    assert {column.name: column.type for column in inspected.columns}["city"] == "string"
    request = pb.RegisterDatasetRequest(name="clicks", dataset_json=data.model_dump_json())
    first = await service.call("RegisterDataset", request)
    again = await service.call("RegisterDataset", request)
    assert (again.revision, again.created, again.rows) == (first.revision, first.created, ROWS)
    assert (await service.call("GetDataset", pb.GetDatasetRequest(name="clicks"))) == again
    listed = await service.call("ListDatasets", pb.ListDatasetsRequest())
    assert [dataset.name for dataset in listed.datasets] == ["clicks"]


@pytest.mark.asyncio
async def test_it_is_not_ready_while_valkey_is_away_and_ready_again_with_it(
    service: Service, valkey: ValkeyServer
) -> None:
    probe = Probe("http", service.http)
    assert await asyncio.to_thread(ask, probe) == Heard(Answer.READY)
    valkey.kill()
    heard = await _heard(probe, Answer.NOT_READY)
    assert heard.reason.startswith("Valkey is away: ")
    assert await service.health() == health_pb2.HealthCheckResponse.NOT_SERVING
    valkey.start()
    await _heard(probe, Answer.READY)
    assert await service.health() == health_pb2.HealthCheckResponse.SERVING


async def _heard(probe: Probe, answer: Answer) -> Heard:
    async with asyncio.timeout(TIMEOUT_S):
        while (heard := await asyncio.to_thread(ask, probe)).answer is not answer:   # noqa: ASYNC110 (another process makes it true)
            await asyncio.sleep(0.1)
    return heard


@pytest.mark.asyncio
async def test_sigterm_ends_the_service_cleanly(service: Service, data: DatasetSpec) -> None:
    await service.call("OpenRun", opening(data))
    assert await asyncio.to_thread(service.end, signal.SIGTERM) == 0
