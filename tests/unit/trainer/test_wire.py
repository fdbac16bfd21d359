"""Messages of one role to another. Those with arrays are what protobuf itself writes and reads."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from recmesh.data.records import TaskRecord
from recmesh.pb import common_pb2
from recmesh.pb import ps_pb2 as pb
from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.trainer.ports import Piece, TableGrads
from recmesh.trainer.wire import RemoteServer, arrays
from recmesh.trainer.wire import servers as wire_servers
from recmesh.trainer.wire.shards import touched

sizes = st.lists(st.integers(0, 40), max_size=4)
numbers = st.integers(0, 2**32 - 1)


def ids(count: int) -> NDArray[np.int64]:
    return np.arange(count, dtype=np.int64) * 7 - 3


def values(count: int) -> NDArray[np.float32]:
    return np.arange(count, dtype=np.float32) / np.float32(4)


def same(read: Any, written: Any) -> bool:
    return bool(np.array_equal(read, written)) and read.flags.aligned and not read.flags.writeable


def test_a_lease_has_those_of_its_replys_tasks_that_it_touches() -> None:
    tasks = [TaskRecord(1, 0, base, 10, 0, 0, None) for base in (0, 10, 30)]
    bases = {piece: [task.base for task in touched(tasks, Piece(0, *piece))] for piece in ((0, 10), (9, 11), (20, 31))}
    assert bases == {(0, 10): [0], (9, 11): [0, 10], (20, 31): [30]}


def test_portions_that_the_server_let_go_are_all_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_servers, "MESSAGE_BYTES", 40)
    sent = []

    def push(message: bytes, *, timeout: float) -> pb.PushReply:
        request = pb.PushRequest.FromString(message)
        sent.append((request.chunk, request.chunks))
        return pb.PushReply(status=pb.PushReply.CHUNK_KEPT if len(sent) < 6 else pb.PushReply.APPLIED)

    channel = SimpleNamespace(unary_unary=lambda *_, **__: push)
    server = RemoteServer(channel, job_id="job")
    part = TableGrads(0, np.arange(6), np.ones((6, 2), np.float32), np.ones(6, np.uint32))

    def once() -> str:
        return server.push(1, map_version=1, batch=[Piece(0, 0, 6)], epoch=0, tables=[part], dense=[],
                           worker="0").status

    with pytest.raises(Unavailable, match="lacks portions"):
        once()
    assert once() == "applied"
    assert sent == [(0, 3), (1, 3), (2, 3), (0, 3), (1, 3), (2, 3)]


@given(sizes=sizes, table=numbers, gen=st.integers(0, 2**64 - 1), job=st.text(max_size=9))
def test_a_pull_is_what_protobuf_writes_and_reads(sizes: list[int], table: int, gen: int, job: str) -> None:
    head = pb.PullRequest(job_id=job, gen=gen, dense=True)
    whole = pb.PullRequest(
        job_id=job, gen=gen, dense=True,
        tables=[pb.TableIds(table=table, ids=ids(n).tobytes()) for n in sizes])
    by_hand = arrays.pull_request(head, [(table, ids(n)) for n in sizes])
    read = pb.PullRequest.FromString(by_hand)
    for entry in read.tables:
        entry.ClearField("pad")
    assert read == whole
    for message in (by_hand, whole.SerializeToString()):
        found, tables = arrays.read_pull_request(message)
        assert found == head and [number for number, _ in tables] == [table] * len(sizes)
        assert all(np.array_equal(a, ids(n)) for (_, a), n in zip(tables, sizes, strict=True))
    assert all(same(a, ids(n)) for (_, a), n in zip(arrays.read_pull_request(by_hand)[1], sizes, strict=True))


@given(sizes=sizes, chunks=sizes, step=st.integers(0, 2**64 - 1))
def test_a_reply_is_what_protobuf_writes_and_reads(sizes: list[int], chunks: list[int], step: int) -> None:
    head = pb.PullReply(step=step, seconds=0.5)
    whole = pb.PullReply(
        step=step, seconds=0.5, rows=[values(n).tobytes() for n in sizes],
        dense=[pb.DenseChunk(block=b, chunk=b * 300, values=values(n).tobytes()) for b, n in enumerate(chunks)])
    dense = [(b, b * 300, values(n)) for b, n in enumerate(chunks)]
    by_hand = arrays.pull_reply(head, [values(n) for n in sizes], dense)
    read = pb.PullReply.FromString(by_hand)
    read.ClearField("pad")
    for chunk in read.dense:
        chunk.ClearField("pad")
    assert read == whole
    for message in (by_hand, whole.SerializeToString()):
        found, rows, got = arrays.read_pull_reply(message)
        found.ClearField("pad")
        assert found == head and all(np.array_equal(a, values(n)) for a, n in zip(rows, sizes, strict=True))
        assert [entry[:2] for entry in got] == [entry[:2] for entry in dense]
        assert all(np.array_equal(a[2], b[2]) for a, b in zip(got, dense, strict=True))
    assert all(same(a, values(n)) for a, n in zip(arrays.read_pull_reply(by_hand)[1], sizes, strict=True))


@given(sizes=sizes, counted=st.booleans())
def test_a_push_is_what_protobuf_writes_and_reads(sizes: list[int], counted: bool) -> None:
    head = pb.PushRequest(
        job_id="j", gen=3, batch=[common_pb2.Piece(line=1, lo=2, hi=4)], worker="w", chunk=1, chunks=2)
    counts = [ids(n).astype(np.uint32) if counted else np.empty(0, np.uint32) for n in sizes]
    whole = pb.PushRequest()
    whole.CopyFrom(head)
    for table, n in enumerate(sizes):
        whole.tables.add(
            table=table, ids=ids(n).tobytes(), grads=values(2 * n).tobytes(), counts=counts[table].tobytes())
    whole.dense.add(block=1, chunk=2, values=values(5).tobytes())
    by_hand = arrays.push_request(
        head, [(k, ids(n), values(2 * n).reshape(n, 2), counts[k]) for k, n in enumerate(sizes)], [(1, 2, values(5))])
    read = pb.PushRequest.FromString(by_hand)
    for entry in [*read.tables, *read.dense]:
        entry.ClearField("pad")
    assert read == whole
    for message in (by_hand, whole.SerializeToString()):
        found, tables, dense = arrays.read_push_request(message)
        assert found == head and [entry.table for entry in tables] == list(range(len(sizes)))
        for entry, n in zip(tables, sizes, strict=True):
            assert np.array_equal(entry.ids, ids(n)) and np.array_equal(entry.grads, values(2 * n))
            assert (entry.counts is None) == (not counted or n == 0)
        assert dense[0][:2] == (1, 2) and np.array_equal(dense[0][2], values(5))


@pytest.mark.parametrize(("message", "says"), [
    (b"\xff", "no integer"),
    (b"\x22\x7f", "ends behind"),
    (b"\x20\x01", "not bytes"),
    (b"\x0b", "wire type 3"),
    (b"\x0a\x01\xff", "PullRequest"),
    (pb.PullRequest(tables=[pb.TableIds(ids=b"123")]).SerializeToString(), r"tables\[0\].ids"),
    (b"\x22\x02\x10\x01", r"tables\[0\].ids: is no array"),
    (b"\x22\x02\x0a\x00", r"tables\[0\].table: is no integer"),
])
def test_what_is_no_message_is_refused_by_name(message: bytes, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        arrays.read_pull_request(message)
    said = [str(caught.value), *(f"{wrong.path}: {wrong.reason}" for wrong in caught.value.violations)]
    assert re.search(says, "\n".join(said))
