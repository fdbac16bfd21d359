"""The worker against real parameter servers over gRPC: what the fakes promise must hold on the wire."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recmesh.formats import SlotMap
from recmesh.runtime.rpc import sync_channel, sync_server
from recmesh.trainer.ports import Member, RunRecord
from recmesh.trainer.ps.messages import RestoreOrder
from recmesh.trainer.ps.rpc import SERVICE_NAME, ParameterServerServicer, add_to_server
from recmesh.trainer.ps.server import ParameterServer
from recmesh.trainer.session import DenseBlock, EmbeddingTable, Init
from recmesh.trainer.wire import RemoteServer
from recmesh.trainer.wire import servers as wire_servers
from recmesh.trainer.worker.life import Life
from recmesh.trainer.worker.meter import Meter
from recmesh.trainer.worker.reading import InProcess
from recmesh.trainer.worker.session import WorkerSession
from recmesh.trainer.worker.terms import Declaration, Terms
from tests.unit.trainer.fakes import FakeRuns, FakeShards, PositionReader, job_spec, record_of

pytestmark = pytest.mark.integration
TOTAL = 60
TABLES = [EmbeddingTable("ta", 2, ["a"], init=Init.zeros()), EmbeddingTable("tb", 3, ["b"], init=Init.zeros())]


@contextmanager
def servers(count: int, shm_dir: Path) -> Iterator[tuple[list[ParameterServer], RunRecord]]:
    slot_map = SlotMap.even(1, count)
    record = record_of(slot_map, count)
    with ExitStack() as stack:
        made, members = [], []
        for ps in range(count):
            server = ParameterServer(record.members[ps].incarnation, shm_dir=shm_dir)
            servicer = ParameterServerServicer(server, job_id="job")
            listener = sync_server("ps", "127.0.0.1:0", [add_to_server(servicer)], service_names=[SERVICE_NAME])
            stack.callback(listener.stop, 1.0)
            stack.callback(server.close)
            server.restore(RestoreOrder(1, 1, record.members[ps].incarnation, ps, slot_map, "job"))
            made.append(server)
            members.append(Member(ps, listener.address, record.members[ps].incarnation))
        yield made, replace(record, members=tuple(members))


@pytest.mark.parametrize("message_bytes", [64 << 20, 40])
def test_each_sample_counts_once_in_each_row_also_in_parts_of_many_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message_bytes: int
) -> None:
    monkeypatch.setattr(wire_servers, "MESSAGE_BYTES", message_bytes)
    counting = {"optimizer": {"kind": "sgd", "lr": 1.0}}
    spec = job_spec(in_flight=2, **counting)
    with servers(2, tmp_path) as (made, record), ExitStack() as stack:
        runs, shards, meter = FakeRuns(record), FakeShards(TOTAL, 12), Meter()

        def connect(member: Member) -> RemoteServer:
            channel = sync_channel(member.address)
            stack.callback(channel.close)
            return RemoteServer(channel, job_id="job")

        def begin(now: RunRecord, declaration: Declaration) -> Life:
            return Life(
                now,
                terms=Terms.of(spec.training, worker="0-test"),
                connect=connect,
                shards=shards,
                runs=runs,
                reader=InProcess(PositionReader()),
                declaration=declaration,
                meter=meter,
            )

        session = WorkerSession(spec, runs=runs, begin=begin, meter=meter)
        session.declare(TABLES, [DenseBlock("seen", np.zeros(1, np.float32), "statistic")])
        session.open()

        def watch() -> None:
            while not all(server.ledgers(1).by_all.covers(0, 0, TOTAL) for server in made):
                threading.Event().wait(0.01)
            session.stop()

        threading.Thread(target=watch, daemon=True).start()
        guard = threading.Timer(30.0, session.stop)
        guard.start()
        for step in session.steps():
            grads = {}
            for table, feature in (("ta", "a"), ("tb", "b")):
                grads[table] = np.zeros_like(step.rows[table])
                np.add.at(grads[table], step.index[feature], np.float32(-1.0))
            step.push(grads, {"seen": np.full(1, step.batch.size, np.float32)}, loss=0.1)
        guard.cancel()
        session.close()
        for number, modulus in ((0, 7), (1, 3)):
            truth = Counter(p % modulus for p in range(TOTAL))
            found: Counter[int] = Counter()
            for server in made:
                store = server.model.store
                store.mark()
                for block in store.copy_rows(number):
                    found.update(dict(zip(block.ids.tolist(), block.values[:, 0].tolist(), strict=True)))
                    assert (block.frequency == np.array([truth[i] for i in block.ids])).all()
                store.unmark()
            assert found == truth
        seen = sum(float(c.values[0]) for s in made for b in s.model.store.dense for c in b.chunks.values())
        assert seen == TOTAL
