"""Rows of a data executor cross the wire bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.data.records import Batch, IdColumn
from recmesh.pb import executor_pb2 as pb
from recmesh.runtime.errors import InvalidArgument
from recmesh.trainer.wire.rows import read_reply, read_rows


def same(found: Batch | None, want: Batch) -> None:
    assert found is not None
    assert (found.size, list(found.ids)) == (want.size, list(want.ids))
    for name, column in want.ids.items():
        other = found.ids[name]
        for left, right in zip(
            (other.values, other.offsets, other.weights), (column.values, column.offsets, column.weights), strict=True
        ):
            _same(left, right)
    _same(found.dense, want.dense)
    _same(found.labels, want.labels)
    _same(found.weight, want.weight)


def _same(left: object, right: object) -> None:
    if right is None:
        assert left is None
        return
    assert isinstance(left, np.ndarray) and isinstance(right, np.ndarray)
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    assert left.tobytes() == right.tobytes()


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    size = draw(st.integers(0, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ids = {}
    for name in draw(st.lists(st.sampled_from(["user", "größe", "a b"]), unique=True)):
        if draw(st.booleans()):
            ids[name] = IdColumn(rng.integers(-2**63, 2**63 - 1, size))
            continue
        offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 4, size))]).astype(np.int64)
        weights = rng.normal(size=offsets[-1]).astype(np.float32) if draw(st.booleans()) else None
        ids[name] = IdColumn(rng.integers(-2**63, 2**63 - 1, offsets[-1]), offsets, weights)
    dense = rng.normal(size=(size, draw(st.integers(0, 3)))).astype(np.float32)
    if dense.size:
        dense[0, 0] = np.nan
    labels = rng.normal(size=(size, draw(st.integers(1, 2)))).astype(np.float32)
    return Batch(size, ids, dense, labels, rng.random(size).astype(np.float32) if draw(st.booleans()) else None)


@given(batches())
def test_a_batch_is_after_the_wire_what_it_was_before(batch: Batch) -> None:
    head, found = read_rows(read_reply(batch, bad=3))
    same(found, batch)
    assert (head.rows, head.bad) == (batch.size, 3)


def test_any_protobuf_library_reads_it() -> None:
    batch = Batch(2, {"user": IdColumn(np.arange(2))}, np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32))
    message = pb.ReadReply.FromString(read_reply(batch, bad=0))
    assert np.frombuffer(message.columns[0].values, "<i8").tolist() == [0, 1]
    assert (message.columns[0].feature, message.rows, message.n_dense) == ("user", 2, 1)


def test_an_answer_without_rows_has_none() -> None:
    head, batch = read_rows(pb.ReadReply(status=pb.ReadReply.MOVED, moved_to="a:1").SerializeToString())
    assert batch is None
    assert head.moved_to == "a:1"


@pytest.mark.parametrize("cut", [1, 9, 40])
def test_a_damaged_message_is_refused(cut: int) -> None:
    batch = Batch(2, {"user": IdColumn(np.arange(2))}, np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32))
    with pytest.raises(InvalidArgument):
        read_rows(read_reply(batch, bad=0)[:-cut])


def test_rows_that_are_fewer_than_they_say_are_refused() -> None:
    batch = Batch(2, {}, np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32))
    data = pb.ReadReply(rows=3).SerializeToString()
    with pytest.raises(InvalidArgument, match="size"):
        read_rows(read_reply(batch, bad=0) + data)
