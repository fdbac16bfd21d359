"""What every kind of topic must do: in memory, in JetStream, in Kafka."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import nats as client
import pytest

from recmesh.data.topics import Topic
from recmesh.data.topics.jetstream import TIME_HEADER, JetStreamTopic
from recmesh.runtime.errors import MeshError, NotFound, Unavailable
from tests.support.servers import NatsServer, free_port, nats_server
from tests.support.topics import MemoryTopic

TOOLS = Path(__file__).parents[3] / "shared" / "tools"
Put = Callable[[int, bytes, float], None]
"""partition, value, time of the event in unix seconds."""


class World:
    """A topic of two partitions, and how it is written."""

    def __init__(self, topic: Topic, put: Put) -> None:
        self.topic, self.put = topic, put

    def fill(self) -> list[str]:
        """Ten messages to the first partition, a second apart, and three to the other; their names."""
        for number in range(10):
            self.put(0, b"%d" % number, 1000.0 + number)
        for number in range(3):
            self.put(1, b"b%d" % number, 1000.0 + 2 * number)
        return [each.uri for each in self.topic.partitions()]


@pytest.fixture(scope="module")
def jetstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real broker."""
    pytest.importorskip("confluent_kafka")
    start = TOOLS / "kafka-broker"
    if not start.exists() or shutil.which("java") is None:
        pytest.skip("needs shared/tools/kafka-broker and a Java runtime")
    folder = tmp_path_factory.mktemp("kafka")
    up = subprocess.run([start, "up", folder, "--ttl", "900"], capture_output=True, text=True, timeout=120, check=True)
    try:
        yield up.stdout.strip().splitlines()[-1].split()[-1]
    finally:
        subprocess.run([start, "down", folder], capture_output=True, timeout=60, check=False)


@pytest.fixture(params=["memory", "jetstream", "kafka"])
def world(request: pytest.FixtureRequest) -> World:
    name = f"t{uuid.uuid4().hex[:8]}"
    if request.param == "memory":
        topic = MemoryTopic(name)
        return World(topic, lambda partition, value, time: topic.put(partition, value, time=time))
    if request.param == "jetstream":
        return _in_jetstream(name, request.getfixturevalue("jetstream").url)
    return _in_kafka(name, request.getfixturevalue("kafka"))


def _in_jetstream(name: str, url: str) -> World:
    async def made() -> None:
        async with _connected(url) as js:
            for number in range(2):
                await js.add_stream(name=f"{name}-{number}", subjects=[f"{name}.{number}"], allow_direct=True)

    async def published(partition: int, value: bytes, time: float) -> None:
        async with _connected(url) as js:
            await js.publish(f"{name}.{partition}", value, headers={TIME_HEADER: str(time)})

    asyncio.run(made())
    topic = JetStreamTopic(f"{name}-*", url=url)
    return World(topic, lambda *message: asyncio.run(published(*message)))


@contextlib.asynccontextmanager
async def _connected(url: str):  # type: ignore[no-untyped-def]  # nats-py has no types for its JetStream context
    connection = await client.connect(url)
    try:
        yield connection.jetstream()
    finally:
        await connection.close()


def _in_kafka(name: str, servers: str) -> World:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    from recmesh.data.topics.kafka import KafkaTopic

    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(name, 2, 1)]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": servers})

    def put(partition: int, value: bytes, time: float) -> None:
        producer.produce(name, value, partition=partition, timestamp=int(time * 1000))
        assert producer.flush(30) == 0

    return World(KafkaTopic(name, servers=servers, options={}), put)


def test_partitions_are_found_with_what_they_hold(world: World) -> None:
    first, second = world.fill()
    spans = {each.uri: each.span for each in world.topic.partitions()}
    assert first < second
    assert [spans[uri].end - spans[uri].first for uri in (first, second)] == [10, 3]


def test_what_is_read_is_what_was_written_in_its_order_and_again(world: World) -> None:
    uri = world.fill()[0]
    span = world.topic.partitions()[0].span
    for _ in range(2):
        found = world.topic.read(uri, span.first + 2, span.first + 7)
        assert [each.value for each in found] == [b"2", b"3", b"4", b"5", b"6"]
        assert [each.offset - span.first for each in found] == [2, 3, 4, 5, 6]
        assert [each.time for each in found] == [1002.0, 1003.0, 1004.0, 1005.0, 1006.0]
    assert world.topic.read(uri, span.first + 8, span.first + 50)[-1].value == b"9", "what is not there yet is left out"
    assert world.topic.read(uri, span.end, span.end + 5) == []


def test_offsets_are_found_by_time_and_times_by_offset(world: World) -> None:
    uri = world.fill()[0]
    first = world.topic.partitions()[0].span.first
    for time, offset in ((0.0, 0), (1000.0, 0), (1004.0, 4), (1004.5, 5), (1009.0, 9)):
        assert world.topic.after(uri, time) == first + offset
    assert world.topic.after(uri, 1009.5) is None
    assert world.topic.time_of(uri, first + 3) == 1003.0
    assert world.topic.time_of(uri, first + 10) is None


def test_a_group_goes_on_where_it_has_committed_and_may_go_back(world: World) -> None:
    first, second = world.fill()
    assert world.topic.committed("ads") == {}
    world.topic.commit("ads", {first: 7, second: 2})
    world.topic.commit("ads", {first: 5})
    assert world.topic.committed("ads") == {first: 5, second: 2}
    assert world.topic.committed("others") == {}


def test_an_empty_partition_has_no_messages_and_no_times(world: World) -> None:
    world.put(1, b"x", 5.0)
    partitions = world.topic.partitions()
    for each in partitions:
        if each.span.first == each.span.end:
            assert world.topic.after(each.uri, 0.0) is None
            assert world.topic.time_of(each.uri, each.span.first) is None
            assert world.topic.read(each.uri, each.span.first, each.span.first + 3) == []


def test_deleted_messages_are_passed_over_in_jetstream(jetstream: NatsServer) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    world = _in_jetstream(name, jetstream.url)
    uri = world.fill()[0]

    async def delete() -> None:
        async with _connected(jetstream.url) as js:
            for sequence in (1, 4, 5):
                await js.delete_msg(f"{name}-0", sequence)

    asyncio.run(delete())
    assert [each.offset for each in world.topic.read(uri, 1, 8)] == [2, 3, 6, 7]
    assert world.topic.after(uri, 1003.0) == 6 and world.topic.time_of(uri, 4) == 1005.0
    assert world.topic.partitions()[0].span == (2, 11)


def test_more_messages_than_one_request_gives_are_read_whole_from_jetstream(
    jetstream: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recmesh.data.topics.jetstream.BATCH", 3)
    world = _in_jetstream(f"t{uuid.uuid4().hex[:8]}", jetstream.url)
    uri = world.fill()[0]
    assert [each.value for each in world.topic.read(uri, 1, 11)] == [b"%d" % number for number in range(10)]


def test_a_stream_that_allows_no_direct_gets_is_refused_and_one_that_is_missing_is_named(jetstream: NatsServer) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"

    async def made() -> None:
        async with _connected(jetstream.url) as js:
            await js.add_stream(name=name, subjects=[name], allow_direct=False)

    asyncio.run(made())
    with pytest.raises(MeshError, match="allow-direct"):
        JetStreamTopic(name, url=jetstream.url).partitions()
    for missing in (f"{name}-no", f"{name}-no-*"):
        with pytest.raises(NotFound, match=f"{name}-no"):
            JetStreamTopic(missing, url=jetstream.url).partitions()


def test_events_of_one_key_come_to_one_partition_by_the_servers_own_mapping(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, more='mappings = { "clicks.in.*": "clicks.{{partition(4,1)}}" }\n')
    server.start()

    async def published() -> None:
        async with _connected(server.url) as js:
            for number in range(4):
                await js.add_stream(name=f"clicks-{number}", subjects=[f"clicks.{number}"], allow_direct=True)
            for event in range(60):
                await js.publish(f"clicks.in.user{event % 20}", b"%d" % (event % 20))

    try:
        asyncio.run(published())
        topic = JetStreamTopic("clicks-*", url=server.url)
        users = [
            {message.value for message in topic.read(each.uri, each.span.first, each.span.end)}
            for each in topic.partitions()
        ]
    finally:
        server.kill()
    assert sum(map(len, users)) == len(set().union(*users)) == 20 and all(users)


def test_nobody_who_answers_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recmesh.data.topics.loop.DIAL_S", 0.2)
    with pytest.raises(Unavailable, match="no NATS server answers"):
        JetStreamTopic("clicks", url=f"nats://127.0.0.1:{free_port()}").partitions()


def test_a_group_begins_where_a_durable_consumer_of_its_name_has_come_to(jetstream: NatsServer) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    world = _in_jetstream(name, jetstream.url)
    first, second = world.fill()

    async def consume() -> None:
        async with _connected(jetstream.url) as js:
            reader = await js.pull_subscribe(f"{name}.0", durable="ads", stream=f"{name}-0")
            for message in await reader.fetch(4, timeout=5):
                await message.ack_sync()

    asyncio.run(consume())
    assert world.topic.committed("ads") == {first: 5}
    world.topic.commit("ads", {first: 3, second: 1})
    assert world.topic.committed("ads") == {first: 3, second: 1}


def test_messages_of_a_transaction_are_read_once_it_is_over_and_those_of_one_taken_back_never(kafka: str) -> None:
    from confluent_kafka import Producer

    name = f"t{uuid.uuid4().hex[:8]}"
    world = _in_kafka(name, kafka)
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": name})
    producer.init_transactions(30)
    for outcome in ("abort", "commit"):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(name, json.dumps([outcome, number]).encode(), partition=0)
        producer.abort_transaction(30) if outcome == "abort" else producer.commit_transaction(30)
    producer.begin_transaction()
    producer.produce(name, b"open", partition=0)
    producer.flush(30)
    partition = world.topic.partitions()[0]
    found = world.topic.read(partition.uri, 0, partition.span.end)
    assert [json.loads(each.value) for each in found] == [["commit", number] for number in range(3)]
    producer.abort_transaction(30)
