"""What is settled is not settled again, and what is not is read again, after any number of lives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recmesh.join.domain import Fate, Forgotten, Joined, Known, Label, Position, Sample, Settled, Unreadable
from recmesh.join.messages import Message, consumed, event_of, labels_in, message_id, position_of, row_of
from recmesh.join.positions import Positions
from recmesh.runtime.errors import DataLoss
from recmesh.spec.join import Labels, Samples


def again(positions: Positions) -> Positions:
    return Positions.decode(positions.encode({}), samples=1, labels=1)[0]


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=40), st.integers(0, 40))
def test_a_new_life_reads_all_that_is_not_settled(settled: list[bool], read: int) -> None:
    positions = Positions(samples=1, labels=1)
    for n, is_settled in enumerate(settled[:read]):
        at = Position("labels", 0, n + 1)
        positions.read(at)
        if is_settled:
            positions.note(Settled(at, Fate.ORPHAN))
    found = again(again(positions))
    low = found.low("labels", 0)
    open_ = [n + 1 for n, is_settled in enumerate(settled[:read]) if not is_settled]
    assert low == (open_[0] if open_ else min(read, len(settled)) + 1)
    missing = [n for n in range(low, min(read, len(settled)) + 1) if not found.is_settled(Position("labels", 0, n))]
    assert missing == open_
    assert found.counts[Fate.ORPHAN] == sum(settled[:read])


def test_a_sample_that_is_remembered_is_read_again_until_it_is_forgotten() -> None:
    positions = Positions(samples=1, labels=1)
    first, second = Position("samples", 0, 5), Position("samples", 0, 6)
    positions.read(first)
    positions.read(second)
    for at in (first, second):
        positions.joined(Joined(Sample(at, 0.0, "a", b"{}"), 1.0, Fate.LABELLED))
    assert again(positions).low("samples", 0) == 5
    positions.note(Forgotten(first))
    found = again(positions)
    assert found.low("samples", 0) == 6 and found.is_settled(second)
    positions.note(Forgotten(second))
    assert again(positions).low("samples", 0) == 7


def test_a_message_counts_once() -> None:
    positions = Positions(samples=1, labels=1)
    effect = Joined(
        Sample(Position("samples", 0, 1), 0.0, "a", b"{}"), 1.0, Fate.LABELLED, (Position("labels", 0, 1),)
    )
    positions.joined(effect)
    positions.joined(effect)
    assert positions.counts == {Fate.LABELLED: 1, Fate.JOINED: 1}


def test_damaged_positions_are_told_so() -> None:
    with pytest.raises(DataLoss):
        Positions.decode(b"nothing", samples=1, labels=1)
    with pytest.raises(DataLoss):
        Positions.decode(Positions(samples=3, labels=1).encode({}), samples=1, labels=1)


SAMPLES, LABELS = Samples(topic="s", key="id"), Labels(topic="l", key="id", value="click", time="at")


@pytest.mark.parametrize(("data", "reason"), [
    (b"{", "not JSON"), (b"[1]", "no JSON object"), (b'{"id":1.5}', "id is 1.5"), (b'{"id":""}', "id is ''"),
    (b"{}", "id is None"), (b'{"id":true}', "id is True"),
])
def test_what_is_no_sample_says_why(data: bytes, reason: str) -> None:
    event = event_of(Message(Position("samples", 0, 1), data, 3.0, False), SAMPLES, lambda _: False)
    assert isinstance(event, Unreadable) and reason in event.reason and event.time == 3.0


def test_labels_have_values_and_times_of_fields() -> None:
    at = Position("labels", 0, 1)
    data = b'{"id":7,"click":true,"at":"1970-01-01T00:00:09Z"}'
    assert event_of(Message(at, data, 3.0, False), LABELS, lambda _: False) == Label(at, 9.0, "7", 1.0, data)
    assert event_of(Message(at, data, 3.0, False), LABELS, lambda _: True) == Known(at, 9.0, "7")
    for wrong in (b'{"id":7,"click":"x","at":9}', b'{"id":7,"click":1}'):
        assert isinstance(event_of(Message(at, wrong, 3.0, False), LABELS, lambda _: False), Unreadable)


def test_a_joined_row_is_the_sample_with_its_label() -> None:
    sample = Sample(Position("samples", 0, 1), 0.0, "a", b'{"id":"a","x":0.5}')
    assert row_of(Joined(sample, 1.0, Fate.LABELLED), "click") == b'{"id":"a","x":0.5,"click":1}'
    assert row_of(Joined(sample, 0.25, Fate.LABELLED), "x") == b'{"id":"a","x":0.25}'


def test_what_was_stored_tells_what_it_settled() -> None:
    at = Position("samples", 2, 17)
    assert position_of(message_id("ads", at), "ads") == at
    assert [position_of(text, "ads") for text in ("x:samples:2:17", "ads:samples:2", "", "ads:else:1:2")] == [None] * 4
    labels = (Position("labels", 0, 3), Position("labels", 1, 4))
    assert labels_in(consumed(labels)) == list(labels) and labels_in("") == []
