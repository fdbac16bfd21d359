"""Topics that are not what they were, or not there: what is lost is told, and what is not goes on."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from recmesh.formats import IntervalSet
from recmesh.runtime.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, Unavailable
from services.shardsvc.app import Datasets, Indexer
from tests.support.topics import MemoryTopic
from tests.unit.shardsvc.test_app import JOB, request
from tests.unit.shardsvc.test_streams import items, train
from tests.unit.shardsvc.topic_world import FIRST, SECOND, TYPES, World, clicks, topic_source


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda topic: topic.tags.update({FIRST: "other"}), "was made again"),
        (lambda topic: topic.messages.update({FIRST: []}), "was made again, or cut"),
        (lambda topic: topic.messages.pop(SECOND), f"{SECOND} was deleted"),
        (lambda topic: topic.let_go(FIRST, 25), "begins at offset 25 now, and 21 is to come"),
    ],
    ids=["made again", "cut", "deleted", "let go"],
)
async def test_a_partition_that_is_not_what_it_was_stops_the_line_and_says_so(
    world: World, change: Callable[[MemoryTopic], object], why: str
) -> None:
    first = world.replicas[0]
    world.send(20)
    await first.runs.open(request(clicks(), epochs=1))
    await world.write()
    world.send(10)
    change(world.topic)
    await world.write()
    assert why in (await first.streams.state(JOB)).waits_for
    assert (await first.tasks.line(JOB)).end == 20


@pytest.mark.asyncio
async def test_deleted_and_unreadable_messages_are_positions_without_rows(world: World, tmp_path: Path) -> None:
    spec = clicks(bad_records={"limit": 5, "folder": str(tmp_path)})
    world.send(10)
    world.topic.put(0, b"{no json", time=world.clock.at)
    world.send(5)
    await world.replicas[0].runs.open(request(spec, epochs=1))
    world.topic.without(FIRST, 3)
    await world.write()
    done = await train(world.replicas[0])
    assert done == IntervalSet([(0, 16)])
    assert await items(world.replicas[0], spec, done) == [0, 1, *range(3, 15)]
    [letter] = map(json.loads, _lines(tmp_path))
    assert (letter["uri"], letter["row"]) == (FIRST, 11)


def _lines(folder: Path) -> list[str]:
    return [line for path in folder.iterdir() for line in path.read_text().splitlines()]


@pytest.mark.asyncio
async def test_messages_that_were_let_go_before_they_were_trained_are_an_error_that_says_so(world: World) -> None:
    spec, first = clicks(), world.replicas[0]
    world.send(10)
    await first.runs.open(request(spec, epochs=1))
    await world.write()
    done = await train(first)
    world.topic.let_go(FIRST, 6)
    with pytest.raises(DataLoss, match=r"begins at offset 6 now, and 1 is to be trained: its retention is too short"):
        await items(first, spec, done)
    world.topic.tags[FIRST] = "made again"
    with pytest.raises(DataLoss, match="was deleted"):
        await items(first, spec, done)


@pytest.mark.asyncio
async def test_a_topic_that_is_missing_or_lacks_a_column_is_refused_by_its_place(world: World) -> None:
    indexer = Indexer(clock=world.clock)
    index = await indexer.index(clicks())
    assert dict(index.columns) == TYPES
    with pytest.raises(InvalidArgument, match="do not fit") as caught:
        await indexer.index(clicks(topic_source(types={"item": "int"})))
    assert [item.path for item in caught.value.violations] == ["data.label"]
    world.topic.messages.clear()
    with pytest.raises(NotFound, match="clicks"):
        await indexer.index(clicks())


@pytest.mark.asyncio
async def test_a_topic_that_does_not_answer_is_told_at_once_by_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as an outage, which callers would ask about again and again while somebody waits."""
    def silent() -> None:
        raise Unavailable("Kafka: no answer within 10 s", reason="KAFKA_AWAY")

    monkeypatch.setattr(world.topic, "partitions", silent)
    indexer = Indexer(clock=world.clock)
    datasets = Datasets(world.house.datasets_store, indexer, clock=world.clock, emit=lambda event: None)
    with pytest.raises(FailedPrecondition, match="no answer within 10 s") as refused:
        await datasets.inspect(clicks())
    assert [item.path for item in refused.value.violations] == ["data.streams.0.sources.0"]
