"""Synchronous mode with real workers and parameter servers: the model does not depend on how many workers there are."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from recmesh.data.records import TaskRecord
from recmesh.formats import Ledger
from recmesh.runtime.rpc import sync_channel
from recmesh.trainer.ports import (
    Lease,
    LeaseProgress,
    LeaseReply,
    Member,
    Piece,
    RenewReply,
    RunRecord,
)
from recmesh.trainer.ps.server import ParameterServer
from recmesh.trainer.session import DenseBlock, EmbeddingTable, Floats, Init, Step
from recmesh.trainer.wire import RemoteServer
from recmesh.trainer.worker.life import Life
from recmesh.trainer.worker.meter import Meter
from recmesh.trainer.worker.reading import InProcess
from recmesh.trainer.worker.session import WorkerSession
from recmesh.trainer.worker.terms import Declaration, Terms
from tests.integration.trainer.test_worker_over_grpc import servers
from tests.unit.trainer.fakes import FakeRuns, PositionReader, job_spec

pytestmark = pytest.mark.integration
BATCH, BATCHES, TOTAL = 4, 3, 58                       # four whole steps, and one of ten positions
TABLES = [EmbeddingTable("ta", 2, ["a"], init=Init.uniform()), EmbeddingTable("tb", 3, ["b"], init=Init.uniform())]
Model = dict[tuple[int, int], tuple[Floats, int]]


@dataclass
class Queue:
    """Leases for several workers, lowest positions first; a dead worker's come back when it is released."""

    pieces: list[Piece] = field(default_factory=lambda: [
        Piece(0, lo, min(lo + BATCH, TOTAL)) for lo in range(0, TOTAL, BATCH)])
    held: dict[int, tuple[str, Piece]] = field(default_factory=dict)
    epoch: int = 0
    below: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def release(self, worker: str) -> None:
        with self.lock:
            for epoch in [epoch for epoch, (holder, _) in self.held.items() if holder == worker]:
                self.pieces.append(self.held.pop(epoch)[1])
            self.pieces.sort()


@dataclass
class WorkerShards:
    """shardsvc as one worker sees it."""

    queue: Queue
    worker: str

    def lease(self, gen: int, *, shards: int, request_id: str, below: int = 0) -> LeaseReply:
        queue = self.queue
        with queue.lock:
            queue.below += [below] if below else []
            if not queue.pieces or (below and queue.pieces[0].lo >= below):
                return LeaseReply("wait", retry_after_s=0.02)
            queue.epoch += 1
            piece = queue.pieces.pop(0)
            queue.held[queue.epoch] = (self.worker, piece)
            task = TaskRecord(1, 0, 0, TOTAL, 0, 0, None)
            return LeaseReply("granted", (Lease(queue.epoch, piece, (task,), TOTAL),), ttl_s=0.3)

    def renew(self, gen: int, leases: Sequence[LeaseProgress]) -> RenewReply:
        with self.queue.lock:
            lost = frozenset(item.epoch for item in leases if item.epoch not in self.queue.held)
            for item in leases:
                if item.complete:
                    self.queue.held.pop(item.epoch, None)
            return RenewReply(lost)

    def release(self, gen: int) -> None:
        self.queue.release(self.worker)


@dataclass
class Job:
    """Workers as threads of this process, over one set of servers."""

    made: list[ParameterServer]
    record: RunRecord
    stack: ExitStack
    queue: Queue = field(default_factory=Queue)
    sessions: list[WorkerSession] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    in_flight: int = 2

    def start(self, on_step: Callable[[int, Step], None] = lambda worker, step: None) -> int:
        worker = len(self.sessions)
        spec = job_spec(batch_size=BATCH, in_flight=self.in_flight, sync={"batches_per_step": BATCHES},
                        optimizer={"kind": "adagrad", "lr": 0.1})

        def connect(member: Member) -> RemoteServer:
            channel = sync_channel(member.address)
            self.stack.callback(channel.close)
            return RemoteServer(channel, job_id="job")

        def begin(now: RunRecord, declaration: Declaration) -> Life:
            return Life(now, terms=Terms.of(spec.training, worker=f"{worker}-test"), connect=connect,
                        shards=WorkerShards(self.queue, str(worker)), runs=FakeRuns(self.record),
                        reader=InProcess(PositionReader()), declaration=declaration, meter=meter)

        meter = Meter()
        session = WorkerSession(spec, runs=FakeRuns(self.record), begin=begin, meter=meter)
        session.declare(TABLES, [DenseBlock("w", np.full(3, 0.5, np.float32))])
        session.open()
        self.sessions.append(session)

        def train() -> None:
            for step in session.steps():
                on_step(worker, step)
                if not session.stopping:
                    learn(step)
                else:
                    step.skip_nan()

        self.threads.append(threading.Thread(target=train, daemon=True))
        self.threads[-1].start()
        return worker

    def die(self, worker: int) -> None:
        """Without a word; jobmaster sees it and gives its leases back."""
        life = self.sessions[worker]._life
        assert life is not None
        life.abandon()
        self.sessions[worker].stop()
        self.queue.release(str(worker))

    def wait(self) -> None:
        deadline = time.monotonic() + 40.0
        while not all(server.ledgers(1).by_all.covers(0, 0, TOTAL) for server in self.made):
            assert time.monotonic() < deadline, [server.ledgers(1) for server in self.made]
            time.sleep(0.01)
        self.stop()

    def stop(self) -> None:
        for session in self.sessions:
            session.stop()
        for thread in self.threads:
            thread.join(10.0)
        for session in self.sessions:
            session.close()

    def model(self) -> Model:
        found: Model = {}
        for server in self.made:
            store = server.model.store
            for number in range(2):
                for block in store.scan(number, np.ones(4096, np.bool_)):
                    for id_, values, frequency in zip(block.ids.tolist(), block.values, block.frequency, strict=True):
                        found[number, id_] = (values.copy(), int(frequency))
            for _, chunk, values in store.pull_dense()[0]:
                found[2, chunk] = (values, 0)
        return found


def learn(step: Step) -> None:
    """A squared loss whose gradients depend on what was pulled: rows and weights are told apart step by step."""
    grads = {}
    dense = step.dense["w"]
    for table, feature in (("ta", "a"), ("tb", "b")):
        rows, index = step.rows[table], step.index[feature]
        grads[table] = np.zeros_like(rows)
        np.add.at(grads[table], index, (rows[index] - dense[0] * step.batch.labels) / BATCH)
    wrong = (dense - step.batch.labels).sum(axis=0) / BATCH
    step.push(grads, {"w": wrong.astype(np.float32)}, loss=0.5)


@contextmanager
def job(folder: Path, *, ps: int = 2, in_flight: int = 2) -> Iterator[Job]:
    with servers(ps, folder) as (made, record), ExitStack() as stack:
        running = Job(made, record, stack, in_flight=in_flight)
        try:
            yield running
        finally:
            running.stop()


def check(found: Job) -> Model:
    model = found.model()
    for number, modulus in ((0, 7), (1, 3)):
        for id_ in range(modulus):
            assert model[number, id_][1] == len(range(id_, TOTAL, modulus))
    for server in found.made:
        assert server.ledgers(1).by_all == Ledger([(0, 0, TOTAL)])
        assert server.stats().step == 5
    return model


def same(found: Model, wanted: Model) -> None:
    assert found.keys() == wanted.keys()
    for key, (values, frequency) in wanted.items():
        np.testing.assert_array_equal(found[key][0], values)
        assert found[key][1] == frequency


def test_one_and_several_workers_give_the_same_model_bit_for_bit(tmp_path: Path) -> None:
    models = []
    for workers, ps, in_flight in ((1, 1, 1), (1, 2, 2), (3, 2, 2), (5, 2, 1)):
        with job(tmp_path, ps=ps, in_flight=in_flight) as running:
            for _ in range(workers):
                running.start()
            running.wait()
            models.append(check(running))
    for model in models[1:]:
        same(model, models[0])


def test_a_step_whose_worker_dies_is_completed_by_others_that_wait_for_it(tmp_path: Path) -> None:
    with job(tmp_path) as running:
        died = threading.Event()

        def die_once(worker: int, step: Step) -> None:
            if worker == 0 and not died.is_set():
                died.set()
                deadline = time.monotonic() + 20.0
                while not running.queue.below and time.monotonic() < deadline:
                    time.sleep(0.01)                   # until the others ask for what they wait for
                running.die(0)

        running.start(die_once)
        died.wait(10.0)
        running.start()
        running.start()
        running.wait()
        model = check(running)
        assert running.queue.below
    with job(tmp_path) as calm:
        calm.start()
        calm.wait()
        same(model, check(calm))


def test_parts_that_a_server_forgets_before_their_step_is_whole_are_sent_again(tmp_path: Path) -> None:
    with job(tmp_path) as calm:
        calm.start()
        calm.wait()
        wanted = check(calm)
    with job(tmp_path) as running:
        forgotten = 0

        def forget(worker: int, step: Step) -> None:
            nonlocal forgotten
            time.sleep(0.02)                           # what was pushed before has come by now
            server = running.made[forgotten % 2]
            if forgotten < 8 and server.steps.size_bytes:
                forgotten += 1
                with server.latch.exclusive():
                    server.steps.clear()

        for _ in range(2):
            running.start(forget)
        running.wait()
        assert forgotten
        same(check(running), wanted)


def test_a_worker_that_leaves_in_the_middle_of_a_step_holds_nobody_up(tmp_path: Path) -> None:
    with job(tmp_path) as running:
        left = threading.Event()

        def leave(worker: int, step: Step) -> None:
            if worker == 0 and not left.is_set():
                left.set()
                running.sessions[0].stop()

        running.start(leave)
        running.start()
        left.wait(10.0)
        running.threads[0].join(10.0)
        running.sessions[0].close()
        running.start()
        running.wait()
        counted = running.model()
        assert all(counted[0, id_][1] == len(range(id_, TOTAL, 7)) for id_ in range(7))
