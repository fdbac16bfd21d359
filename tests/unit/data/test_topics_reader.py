"""Rows of topics: which messages are rows, and what becomes of those that are none."""

import json

import numpy as np
import pytest

from recmesh.data.records import FileSlice
from recmesh.data.topics import Message
from recmesh.data.topics.reader import TopicReader
from recmesh.runtime.errors import DataLoss, Unavailable
from recmesh.spec.dataset import DatasetSpec
from tests.support.topics import MemoryTopic

URI = "jetstream:clicks-0"


def _reader(topic: MemoryTopic) -> TopicReader:
    source = {"jetstream": "clicks-*", "start": "earliest", "types": {"item": "int", "label": "float"}}
    spec = DatasetSpec.parse({"streams": [{"sources": [source]}], "features": [{"name": "item"}]})
    return TopicReader(spec.views()[0], topic)


def _filled(*values: bytes) -> MemoryTopic:
    topic = MemoryTopic()
    for value in values:
        topic.put(0, value, time=1.0)
    return topic


def _row(item: int) -> bytes:
    return json.dumps({"item": item, "label": 0.0}).encode()


def test_messages_without_a_value_are_positions_without_rows() -> None:
    topic = _filled(_row(1), b"", _row(3), _row(4), b"")
    topic.without(URI, 4)
    found = _reader(topic).read(FileSlice(URI, 0, "made", 1, 5))
    assert found.table["item"].to_pylist() == [1, 3]
    assert found.rows is not None and np.array_equal(found.rows, [0, 2])


def test_nothing_but_messages_without_a_value_is_no_rows_at_all() -> None:
    found = _reader(_filled(b"", b"")).read(FileSlice(URI, 0, "made", 1, 2))
    assert found.table.num_rows == 0 and found.rows is not None and found.rows.size == 0


def test_a_partition_that_ends_too_early_is_waited_for_and_one_made_again_is_lost() -> None:
    topic = _filled(_row(1), _row(2))
    piece = FileSlice(URI, 0, "made", 1, 5)
    with pytest.raises(Unavailable):
        _reader(topic).read(piece)
    topic.tags[URI] = "made again"
    with pytest.raises(DataLoss, match="was deleted since"):
        _reader(topic).read(piece)


def test_messages_of_a_partition_made_again_between_two_reads_are_not_those_of_the_old_one() -> None:
    topic = _filled(_row(1), _row(2))
    reader, piece = _reader(topic), FileSlice(URI, 0, "made", 1, 2)
    assert reader.read(piece).table["item"].to_pylist() == [1, 2]
    topic.messages[URI] = []
    for item in (3, 4):
        topic.put(0, _row(item), time=1.0)
    topic.tags[URI] = "made again"
    with pytest.raises(DataLoss, match="was deleted since"):
        reader.read(piece)
    del topic.messages[URI]
    topic.put(1, _row(5), time=1.0)
    before = [Message(at, 1.0, _row(at)) for at in (1, 2)]
    topic.read = lambda uri, lo, hi: before  # type: ignore[method-assign]  # it was deleted right after the read
    with pytest.raises(DataLoss, match="was deleted since"):
        reader.read(piece)


def test_a_beginning_that_was_let_go_is_told_from_what_was_deleted() -> None:
    topic = _filled(_row(1), _row(2), _row(3), _row(4))
    topic.let_go(URI, 3)
    with pytest.raises(DataLoss, match="begins at offset 3 now"):
        _reader(topic).read(FileSlice(URI, 0, "made", 1, 4))
