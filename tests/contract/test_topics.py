"""What every kind of topic must do: in memory, in JetStream, in Kafka."""

import asyncio
import contextlib
import json
import logging
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import nats as client
import pytest
from nats.aio.msg import Msg
from nats.js.api import StreamConfig, StreamSource

from recmesh.data.topics import Topic
from recmesh.data.topics.interface import NOT_THERE_YET
from recmesh.data.topics.jetstream import JetStreamTopic
from recmesh.partitions import EVENT_TIME
from recmesh.runtime.errors import InvalidArgument, MeshError, NotFound, Unauthenticated, Unavailable
from tests.support.direct_gets import Between, behind
from tests.support.servers import NatsServer, free_port, nats_server
from tests.support.topics import MemoryTopic
from tests.support.waiting import until

TOOLS = Path(__file__).parents[3] / "shared" / "tools"
ATTEMPTS = 3
T = TypeVar("T")
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


@contextlib.contextmanager
def _broker(folder: Path, **settings: str) -> Iterator[str]:
    """The address of a real broker."""
    pytest.importorskip("confluent_kafka")
    start = TOOLS / "kafka-broker"
    if not start.exists() or shutil.which("java") is None:
        pytest.skip("needs shared/tools/kafka-broker and a Java runtime")
    more = [word for name, value in settings.items() for word in ("--set", f"{name.replace('_', '.')}={value}")]
    folder, address = _started(start, folder, more)
    try:
        yield address
    finally:
        subprocess.run([start, "down", folder], capture_output=True, timeout=60, check=False)


def _started(start: Path, folder: Path, more: list[str]) -> tuple[Path, str]:
    """Its folder and address. The port is picked seconds before Java takes it, so another may have: once more, then."""
    told = []
    for attempt in range(ATTEMPTS):
        home = folder / str(attempt)
        up = subprocess.run(
            [start, "up", home, "--ttl", "900", *more], capture_output=True, text=True, timeout=120, check=False
        )
        if up.returncode == 0:
            return home, up.stdout.strip().splitlines()[-1].split()[-1]
        log = home / "broker.log"
        told += [up.stderr.strip(), log.read_text()[-2000:] if log.exists() else "no broker.log"]
        subprocess.run([start, "down", home], capture_output=True, timeout=60, check=False)
    pytest.fail("\n".join(["the broker did not start", *told]))


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real broker."""
    with _broker(tmp_path_factory.mktemp("kafka")) as servers:
        yield servers


@pytest.fixture(scope="module")
def locked_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One that asks for a password, which is `right`."""
    users = 'username="broker" password="own" user_broker="own" user_ads="right"'
    with _broker(
        tmp_path_factory.mktemp("kafka"), sasl_enabled_mechanisms="PLAIN",
        sasl_mechanism_inter_broker_protocol="PLAIN",
        listener_security_protocol_map="CONTROLLER:PLAINTEXT,PLAINTEXT:SASL_PLAINTEXT",
        listener_name_plaintext_plain_sasl_jaas_config=
        f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};",
    ) as servers:
        yield servers


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
            await js.publish(f"{name}.{partition}", value, headers={EVENT_TIME: str(time)})

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


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> type[Between]:
    monkeypatch.setattr("recmesh.data.topics.direct.DIRECT", "between")
    return Between


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
    with pytest.raises(Unavailable) as refused:
        world.topic.read(uri, span.first + 8, span.first + 50)
    assert refused.value.reason == NOT_THERE_YET, "it is not told apart from what was deleted else"
    assert world.topic.read(uri, span.end, span.end) == []


def test_offsets_are_found_by_time_and_times_by_offset(world: World) -> None:
    uri = world.fill()[0]
    first = world.topic.partitions()[0].span.first
    for at, offset in ((0.0, 0), (1000.0, 0), (1004.0, 4), (1004.5, 5), (1009.0, 9)):
        assert world.topic.after(uri, at) == first + offset
    assert world.topic.after(uri, 1009.5) is None
    assert world.topic.time_of(uri, first + 3) == 1003.0
    assert world.topic.time_of(uri, first + 10) is None


def test_a_message_came_when_the_server_got_it_though_it_happened_long_before(jetstream: NatsServer) -> None:
    before = time.time()
    world = _in_jetstream(f"t{uuid.uuid4().hex[:8]}", jetstream.url)
    uri = world.fill()[0]
    came = world.topic.came_at(uri, 4)
    assert came is not None and before - 1 <= came <= time.time() + 1 and world.topic.time_of(uri, 4) == 1003.0
    assert world.topic.came_at(uri, 11) is None


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
    monkeypatch.setattr("recmesh.data.topics.direct.BATCH", 3)
    world = _in_jetstream(f"t{uuid.uuid4().hex[:8]}", jetstream.url)
    uri = world.fill()[0]
    assert [each.value for each in world.topic.read(uri, 1, 11)] == [b"%d" % number for number in range(10)]


def test_a_replica_that_lags_loses_nothing(jetstream: NatsServer, between: type[Between]) -> None:
    world = _in_jetstream(name := f"t{uuid.uuid4().hex[:8]}", jetstream.url)
    uri = world.fill()[0]
    lagging = between(lambda number, replies: behind(4 + 2 * number, replies) if number != 1 else behind(1, replies))
    found = lagging.run(jetstream.url, f"{name}-0", lambda: world.topic.read(uri, 1, 11))
    assert [each.offset for each in found] == list(range(1, 11))
    assert lagging.asked[:3] == [1, 4, 4], "what came is not asked for again"
    nothing = between(lambda number, replies: behind(1, replies))
    assert nothing.run(jetstream.url, f"{name}-0", lambda: world.topic.time_of(uri, 10)) == 1009.0
    assert nothing.run(jetstream.url, f"{name}-0", lambda: world.topic.after(uri, 1004.5)) == 6


def test_a_replica_that_stays_behind_is_unavailable_not_a_topic_with_fewer_messages(
    jetstream: NatsServer, between: type[Between], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _in_jetstream(name := f"t{uuid.uuid4().hex[:8]}", jetstream.url)
    uri = world.fill()[0]
    monkeypatch.setattr("recmesh.data.topics.direct.READ_S", 0.5)
    lagging = between(lambda number, replies: behind(8, replies))
    with pytest.raises(Unavailable, match="message 8 is with the stream's leader"):
        lagging.run(jetstream.url, f"{name}-0", lambda: world.topic.read(uri, 1, 11))


def test_a_mirror_that_keeps_less_than_its_stream_loses_nothing(jetstream: NatsServer) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    world = _in_jetstream(name, jetstream.url)
    uri = world.fill()[0]

    async def mirrored() -> None:
        async with _connected(jetstream.url) as js:
            await js.add_stream(StreamConfig(
                name=f"mirror-{name}", mirror=StreamSource(name=f"{name}-0"), mirror_direct=True, max_msgs=3
            ))
            for _ in range(500):
                if (await js.stream_info(f"mirror-{name}")).state.last_seq == 10:
                    return
                await asyncio.sleep(0.02)
            raise AssertionError("the mirror has not come so far within 10 s")

    asyncio.run(mirrored())
    for _ in range(20):                         # either of them may answer
        assert [each.offset for each in world.topic.read(uri, 1, 11)] == list(range(1, 11))


def test_a_message_that_is_lost_on_the_way_is_asked_for_again(jetstream: NatsServer, between: type[Between]) -> None:
    world = _in_jetstream(name := f"t{uuid.uuid4().hex[:8]}", jetstream.url)
    uri = world.fill()[0]
    losing = between(lambda number, replies: replies if number else replies[:4] + replies[5:])
    found = losing.run(jetstream.url, f"{name}-0", lambda: world.topic.read(uri, 1, 11))
    assert [each.value for each in found] == [b"%d" % number for number in range(10)]
    assert losing.asked == [1, 5]


def test_what_came_before_an_answer_broke_off_is_kept(
    jetstream: NatsServer, between: type[Between], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recmesh.runtime.bus.link.ATTEMPT_S", 0.5)
    world = _in_jetstream(name := f"t{uuid.uuid4().hex[:8]}", jetstream.url)
    uri = world.fill()[0]
    slow = between(lambda number, replies: replies[:3] if number < 3 else replies)
    found = slow.run(jetstream.url, f"{name}-0", lambda: world.topic.read(uri, 1, 11))
    assert [each.offset for each in found] == list(range(1, 11)) and slow.asked == [1, 4, 7, 10]


@pytest.mark.parametrize("said", ["soon", "nan", "inf", "-5", "1e300"])
def test_a_time_that_is_none_is_the_servers_and_loses_no_event(
    jetstream: NatsServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setattr(logging.getLogger("recmesh"), "propagate", True)
    world = _in_jetstream(name := f"t{uuid.uuid4().hex[:8]}", jetstream.url)
    uri, before = f"jetstream:{name}-0", time.time()
    for at in ("1000.5", said, said, "1003"):
        world.put(0, b"x", at)                  # type: ignore[arg-type]  # as a publisher may write it
    first, second, third, fourth = world.topic.read(uri, 1, 5)
    assert (first.time, fourth.time) == (1000.5, 1003.0)
    assert before - 5 < second.time <= third.time < time.time() + 5
    assert world.topic.time_of(uri, 2) == second.time
    assert caplog.text.count(f"{name}-0 has messages whose Recmesh-Time is no moment") == 1


def test_groups_whose_names_are_alike_are_told_apart(world: World) -> None:
    first, _ = world.fill()
    for offset, group in enumerate(("a.b", "a_b", "a-b", "a..b"), start=2):
        assert world.topic.committed(group) == {}
        world.topic.commit(group, {first: offset})
    assert [world.topic.committed(group)[first] for group in ("a.b", "a_b", "a-b", "a..b")] == [2, 3, 4, 5]


def test_streams_of_a_pattern_are_listed_rarely_and_at_once_when_one_is_gone(
    jetstream: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _in_jetstream(name := f"t{uuid.uuid4().hex[:8]}", jetstream.url)
    lists: list[Msg] = []

    async def looked() -> None:
        connection = await client.connect(jetstream.url)
        js = connection.jetstream()

        async def note(request: Msg) -> None:
            lists.append(request)

        await connection.subscribe("$JS.API.STREAM.LIST", cb=note)
        await connection.flush()
        for number in range(4):
            await js.publish(f"{name}.0", b"x")
            first, _ = await asyncio.to_thread(world.topic.partitions)
            assert first.span.end == number + 2, "spans are new each time"
        await js.delete_stream(f"{name}-0")
        assert [each.uri for each in await asyncio.to_thread(world.topic.partitions)] == [f"jetstream:{name}-1"]
        monkeypatch.setattr("recmesh.data.topics.jetstream.LIST_S", 0.0)
        await js.delete_stream(f"{name}-1")
        await js.add_stream(name=f"{name}-2", subjects=[f"{name}.2"], allow_direct=True)
        for _ in range(2):
            assert [each.uri for each in await asyncio.to_thread(world.topic.partitions)] == [f"jetstream:{name}-2"]
        await connection.flush()
        await connection.close()

    asyncio.run(looked())
    assert len(lists) == 4


def test_how_large_messages_are_is_told_where_it_is_cheap(jetstream: NatsServer) -> None:
    world = _in_jetstream(f"t{uuid.uuid4().hex[:8]}", jetstream.url)
    for _ in range(4):
        world.put(0, b"x" * 5000, 1.0)
    full, empty = world.topic.partitions()
    assert 5000 < full.mean_bytes < 5500 and empty.mean_bytes == 0.0


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


def _kafka_topic(name: str, servers: str, **options: str) -> Topic:
    from recmesh.data.topics.kafka import KafkaTopic

    return KafkaTopic(name, servers=servers, options={key.replace("_", "."): value for key, value in options.items()})


def test_the_tag_of_one_partition_is_the_one_that_is_listed(world: World) -> None:
    world.fill()
    assert all(world.topic.tag_of(each.uri) == each.tag for each in world.topic.partitions())


def test_a_topic_of_kafka_that_was_made_again_is_another_one(kafka: str) -> None:
    from confluent_kafka.admin import AdminClient

    name = f"t{uuid.uuid4().hex[:8]}"
    world = _in_kafka(name, kafka)
    uri = world.fill()[0]
    tags = {each.tag for each in world.topic.partitions()}
    assert {each.tag for each in _kafka_topic(name, kafka).partitions()} == tags, "whoever looks sees the same"
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([name])[name].result(30)
    until(lambda: name not in admin.list_topics(timeout=30).topics)
    again = _in_kafka(name, kafka)
    again.put(0, b"new", 1.0)
    known = {each.tag for each in world.topic.partitions()}
    assert len(tags) == len(known) == 1 and "" not in tags | known and tags != known
    assert {world.topic.tag_of(uri)} == known
    with pytest.raises(Unavailable, match="ends at offset 1, and 9 is asked for"):
        world.topic.read(uri, 0, 10)


def test_wrong_credentials_for_kafka_are_told_at_once_and_right_ones_work(locked_kafka: str) -> None:
    def topic(password: str) -> Topic:
        return _kafka_topic(
            "clicks", locked_kafka, security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_username="ads",
            sasl_password=password,
        )

    for call in (topic("guessed").partitions, lambda: topic("guessed").commit("ads", {"kafka:clicks/0": 1})):
        with pytest.raises(Unauthenticated) as refused:
            call()
        assert "guessed" not in str(refused.value)
    with pytest.raises(NotFound, match="there is no topic clicks"):
        topic("right").partitions()


@pytest.mark.parametrize("option", [("socket.timeout.ms", "hidden"), ("security.protocol", "hidden")])
def test_an_option_that_kafka_does_not_take_is_named_without_its_value(option: tuple[str, str]) -> None:
    pytest.importorskip("confluent_kafka")
    topic = _kafka_topic("clicks", f"127.0.0.1:{free_port()}", **dict([option]))
    for call in (topic.partitions, lambda: topic.commit("ads", {"kafka:clicks/0": 1})):
        with pytest.raises(InvalidArgument) as refused:
            call()
        assert [each.path for each in refused.value.violations] == [f"data.source.options.{option[0]}"]
        assert "hidden" not in str(refused.value)


@pytest.mark.long
def test_a_call_of_kafka_ends_by_its_deadline_also_while_another_one_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka")
    from recmesh.data.topics.kafka import KafkaTopic

    monkeypatch.setattr("recmesh.data.topics.kafka.READ_S", 0.5)
    topic = KafkaTopic("clicks", servers=f"127.0.0.1:{free_port()}", options={})
    with pytest.raises(Unavailable):
        topic.partitions()
    with topic._lock, ThreadPoolExecutor(1) as threads:     # as a call does that hangs
        call = threads.submit(topic.read, "kafka:clicks/0", 0, 10)
        try:
            assert "others have waited" in str(call.exception(60))
        finally:
            threads.shutdown(wait=False)


def test_keys_of_offsets_are_plain_where_names_are() -> None:
    from recmesh.data.topics.jetstream import _key

    assert _key("ads", "clicks-0") == "ads.clicks-0"
    assert len({_key("a.b", "c"), _key("a_b", "c"), _key("a=2Eb", "c"), _key("a", "b.c"), _key("a", "b_c")}) == 5


def test_a_message_without_a_value_keeps_its_offset(world: World) -> None:
    uri = world.fill()[0]
    end = world.topic.partitions()[0].span.end
    world.put(0, b"", 1010.0)
    world.put(0, b"x", 1011.0)
    assert [each.value for each in world.topic.read(uri, end, end + 2)] == [b"", b"x"]


def test_a_tombstone_of_kafka_has_no_value(kafka: str) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    world = _in_kafka(name, kafka)
    world.put(0, None, 1.0)                     # type: ignore[arg-type]  # as a compacted topic has them
    world.put(0, b"x", 2.0)
    assert [(each.offset, each.value) for each in world.topic.read(f"kafka:{name}/0", 0, 2)] == [(0, b""), (1, b"x")]
