"""A house with a topic of two partitions that two replicas of shardsvc follow."""

import json
from typing import Any

from recmesh.spec.dataset import DatasetSpec
from services.shardsvc.app import Offsets
from tests.support.topics import MemoryTopic
from tests.unit.data.test_windows import BEGIN, dataset
from tests.unit.shardsvc.test_app import JOB, House
from tests.unit.shardsvc.test_streams import HandClock, Replica

TYPES = {"item": "int", "label": "float"}
FIRST, SECOND = "jetstream:clicks-0", "jetstream:clicks-1"


def topic_source(**more: Any) -> dict[str, Any]:
    return {"jetstream": "clicks-*", "start": "earliest", "types": TYPES} | more


def clicks(*sources: dict[str, Any], **more: Any) -> DatasetSpec:
    return dataset(list(sources or [topic_source()]), **({"shuffle": False} | more))


class World:
    """A house, its clock, a topic of two partitions, and two replicas."""

    def __init__(self) -> None:
        self.house, self.clock, self.topic = House(), HandClock(BEGIN + 100.0), MemoryTopic()
        self.replicas = [Replica(self.house, self.clock, opened=lambda source: self.topic) for _ in range(2)]
        self.offsets = Offsets(self.replicas[0].tasks, opened=lambda source: self.topic)
        self.sent: list[int] = []
        self.topic.messages = {FIRST: [], SECOND: []}

    def send(self, count: int, *, partition: int = 0, time: float | None = None) -> None:
        """So many events, each with a number of its own."""
        for _ in range(count):
            number = len(self.sent)
            value = json.dumps({"item": number, "label": 0.0, "beside": "x"}).encode()
            self.topic.put(partition, value, time=self.clock.at if time is None else time, came=self.clock.at)
            self.sent.append(number)

    async def write(self, replica: int = 0, *, after_s: float = 10.0) -> None:
        """Looks of the writer, so much later: none of what was sent lingers any more."""
        for _ in range(2):
            self.clock.at += after_s / 2
            await self.replicas[replica].streams._kept(JOB)
