"""What comes first where partitions are read at different speeds."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from recmesh.join.domain import Position, Sample, Side
from recmesh.join.inputs import Merge
from recmesh.join.messages import Message
from tests.support.gateway import FakeClock

pytestmark = pytest.mark.asyncio


class Topic:
    """Each partition's events come when they are let through."""

    side: Side = "samples"

    def __init__(self, *partitions: list[float]) -> None:
        self.times = partitions
        self.partitions = len(partitions)
        self.let = [asyncio.Event() for _ in partitions]

    async def start(self) -> None:
        pass

    async def bounds(self, partition: int) -> tuple[int, int]:
        return 1, len(self.times[partition])

    async def messages(self, partition: int, begin: int, *, to_end: bool) -> AsyncGenerator[Message, None]:
        for sequence, time in enumerate(self.times[partition], 1):
            if sequence >= begin:
                await self.let[partition].wait()
                yield Message(Position("samples", partition, sequence), b"", time, False)
        await asyncio.Event().wait()                # live: there is no end


def parsed(message: Message) -> Sample:
    return Sample(message.at, message.time, "key", message.data)


async def opened(topic: Topic, clock: FakeClock, *begins: int) -> Merge:
    merge = Merge(parsed, clock)
    merge.open(topic, {n: (begin, len(topic.times[n])) for n, begin in enumerate(begins)}, to_end=False)
    await settled()
    return merge


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def times(merge: Merge) -> list[float]:
    found = []
    while (event := merge.take(["samples"])) is not None:
        found.append(event.time)
    return found


async def test_what_was_there_comes_in_the_order_of_time_though_a_partition_is_slower() -> None:
    topic, clock = Topic([1.0, 4.0], [2.0, 3.0]), FakeClock()
    topic.let[1].set()
    merge = await opened(topic, clock, 1, 1)
    assert times(merge) == []
    topic.let[0].set()
    await settled()
    assert times(merge) == [1.0, 2.0, 3.0, 4.0]
    await merge.close()


async def test_a_partition_that_was_read_whole_before_holds_nobody_up() -> None:
    topic, clock = Topic([1.0, 2.0], [3.0]), FakeClock()
    topic.let[1].set()
    merge = await opened(topic, clock, 3, 1)
    assert times(merge) == [3.0]
    await merge.close()


async def test_messages_that_were_removed_meanwhile_are_not_waited_for_for_ever() -> None:
    topic, clock = Topic([1.0], [2.0], [5.0]), FakeClock()
    topic.let[1].set()
    merge = await opened(topic, clock, 1, 1, 2)
    assert times(merge) == []
    clock.time += 6.0
    assert times(merge) == [2.0]
    await merge.close()
