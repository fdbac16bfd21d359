"""The Kafka target, against a stand-in for confluent-kafka that keeps what is produced."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from recmesh.partitions import Limits
from recmesh.replay.kafka import KafkaSink
from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, Unavailable

Delivered = Callable[[Any, Any], None]


class Broker:
    """Topics with their partitions; a queue of two messages that takes them when it is polled."""

    def __init__(self) -> None:
        self.topics: dict[str, int] = {}
        self.created: list[Any] = []
        self.stored: list[dict[str, Any]] = []
        self.queue: list[tuple[dict[str, Any], Delivered]] = []
        self.refuses: str | None = None

    def list_topics(self, topic: str, timeout: float) -> Any:
        count = self.topics.get(topic)
        known = SimpleNamespace(error=None if count else "UNKNOWN", partitions=dict.fromkeys(range(count or 0)))
        return SimpleNamespace(topics={topic: known})

    def create_topics(self, new: list[Any]) -> dict[str, "Future[None]"]:
        done: Future[None] = Future()
        done.set_result(None)
        self.created += new
        return {item.name: done for item in new}

    def produce(self, topic: str, *, on_delivery: Delivered, **message: Any) -> None:
        if len(self.queue) >= 2:
            raise BufferError
        self.queue.append(({"topic": topic, **message}, on_delivery))

    def poll(self, timeout: float) -> int:
        taken, self.queue = self.queue[:1], self.queue[1:]
        for message, delivered in taken:
            if self.refuses is None:
                self.stored.append(message)
            delivered(self.refuses, message)
        return len(taken)

    def flush(self, timeout: float) -> int:
        while self.queue:
            self.poll(0)
        return 0

    def purge(self) -> None:
        self.queue.clear()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    library, admin = ModuleType("confluent_kafka"), ModuleType("confluent_kafka.admin")

    def new_topic(name: str, **settings: Any) -> Any:
        return SimpleNamespace(name=name, **settings)

    library.__dict__.update(Producer=lambda _: made, KafkaException=RuntimeError, admin=admin)
    admin.__dict__.update(AdminClient=lambda _: made, NewTopic=new_topic)
    monkeypatch.setitem(sys.modules, "confluent_kafka", library)
    monkeypatch.setitem(sys.modules, "confluent_kafka.admin", admin)
    return made


async def sent(sink: KafkaSink, count: int, *, key: str = "") -> None:
    await sink.start()
    for n in range(count):
        await sink.send(n % sink.partitions, b"{}", message_id=f"f:0:{n}", key=key, at=1.5)
    await sink.flush()
    await sink.stop()


def test_messages_go_to_a_new_topic_in_turn_with_their_times(broker: Broker) -> None:
    sink = KafkaSink("host:9092", "shown", partitions=2, limits=Limits(max_age_s=60.0, max_bytes=1000, replicas=3))
    asyncio.run(sent(sink, 5))
    assert vars(broker.created[0]) == {
        "name": "shown", "num_partitions": 2, "replication_factor": 3,
        "config": {"retention.ms": "60000", "retention.bytes": "1000"},
    }
    assert [message["partition"] for message in broker.stored] == [0, 1, 0, 1, 0] and sink.stored == 5
    assert broker.stored[4]["headers"] == [("Recmesh-Id", b"f:0:4"), ("Recmesh-Time", b"1.5")]


def test_keys_are_left_to_kafka(broker: Broker) -> None:
    broker.topics["shown"] = 3
    asyncio.run(sent(KafkaSink("host:9092", "shown", partitions=None, limits=Limits()), 2, key="a"))
    assert all(message["key"] == b"a" and "partition" not in message for message in broker.stored)


def test_another_number_of_partitions_is_refused(broker: Broker) -> None:
    broker.topics["shown"] = 3
    with pytest.raises(InvalidArgument, match="has 3 partition"):
        asyncio.run(sent(KafkaSink("host:9092", "shown", partitions=2, limits=Limits()), 1))


def test_a_message_that_is_not_delivered_ends_it(broker: Broker) -> None:
    broker.refuses = "too large"
    with pytest.raises(Unavailable, match="too large"):
        asyncio.run(sent(KafkaSink("host:9092", "shown", partitions=None, limits=Limits()), 5))


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(FailedPrecondition, match=r"recmesh\[topics\]"):
        KafkaSink("host:9092", "shown", partitions=None, limits=Limits())
