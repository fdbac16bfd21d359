import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import nats as nats_client
import pytest
import pytest_asyncio
from nats.js import api

from recmesh.runtime.bus import DEAD_STREAM, EVENT_STREAM, Bus
from recmesh.runtime.bus.link import Link, Session
from recmesh.runtime.deadline import deadline
from recmesh.runtime.errors import (
    Aborted,
    AlreadyExists,
    InvalidArgument,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from recmesh.runtime.events import Event
from recmesh.runtime.events.catalog import JOB_PROGRESSED, JOB_SUBMITTED, JobProgressed, JobSubmitted
from recmesh.runtime.lifecycle import ExitCode, exit_code
from recmesh.runtime.settings import ServiceSettings
from recmesh.runtime.telemetry import current_traceparent, span, trace_ids
from tests.support.servers import NatsServer, nats, nats_server
from tests.support.tracing import tracing

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
__all__ = ["nats", "tracing"]

TIMEOUT_S = 30.0


@pytest_asyncio.fixture
async def bus(nats: NatsServer) -> AsyncIterator[Bus]:
    async with started(nats) as made:
        yield made


@asynccontextmanager
async def started(server: NatsServer, **options: Any) -> AsyncIterator[Bus]:
    made = Bus(server.url, "tests", **options)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@asynccontextmanager
async def running(consumer: Any) -> AsyncIterator[None]:
    await consumer.start()
    try:
        yield
    finally:
        await consumer.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():   # noqa: ASYNC110 (other processes and the bus's own tasks make it true)
            await asyncio.sleep(0.01)


def submitted(job_id: str, name: str = "wide") -> Event[JobSubmitted]:
    return Event(JOB_SUBMITTED, job_id, JobSubmitted(name=name))


async def dead_letters(server: NatsServer) -> list[Any]:
    import nats as client

    connection = await client.connect(server.url)
    try:
        jetstream = connection.jetstream()
        count = (await jetstream.stream_info(DEAD_STREAM)).state.messages
        return [await jetstream.get_msg(DEAD_STREAM, seq) for seq in range(1, count + 1)]
    finally:
        await connection.close()


async def test_an_event_arrives_as_it_was_published(bus: Bus) -> None:
    got: list[Event[Any]] = []

    async def handler(event: Event[Any]) -> None:
        got.append(event)

    sent = submitted("job-1")
    async with running(bus.consume("reader", [JOB_SUBMITTED], handler)):
        await bus.publish(sent)
        await until(lambda: len(got) == 1)
    assert (got[0].id, got[0].entity_id, got[0].data) == (sent.id, "job-1", sent.data)
    assert got[0].source == "/recmesh/tests"


async def test_an_event_published_twice_is_stored_once(bus: Bus) -> None:
    got: list[str] = []

    async def handler(event: Event[Any]) -> None:
        got.append(event.entity_id)

    event = submitted("job-1")
    await bus.publish(event)
    await bus.publish(event)
    await bus.publish(submitted("job-2"))
    async with running(bus.consume("reader", [JOB_SUBMITTED], handler)):
        await until(lambda: "job-2" in got)
    assert sorted(got) == ["job-1", "job-2"]


async def test_a_consumer_hears_only_the_types_it_asked_for(bus: Bus) -> None:
    got: list[str] = []

    async def handler(event: Event[Any]) -> None:
        got.append(event.type.name)

    await bus.publish(Event(JOB_PROGRESSED, "job-1", JobProgressed(samples=1)))
    await bus.publish(submitted("job-1"))
    async with running(bus.consume("reader", [JOB_SUBMITTED], handler)):
        await until(lambda: bool(got))
    assert got == ["job.submitted"]


async def test_events_of_one_entity_are_handled_in_order(bus: Bus) -> None:
    got: list[int] = []

    async def handler(event: Event[Any]) -> None:
        await asyncio.sleep(0.001 * (event.data.samples % 3))
        got.append(event.data.samples)

    for samples in range(30):
        await bus.publish(Event(JOB_PROGRESSED, "job-1", JobProgressed(samples=samples)))
    async with running(bus.consume("reader", [JOB_PROGRESSED], handler, max_in_flight=16)):
        await until(lambda: len(got) == 30)
    assert got == list(range(30))


async def test_a_handler_that_fails_sees_its_event_again(bus: Bus) -> None:
    tries: list[str] = []

    async def handler(event: Event[Any]) -> None:
        tries.append(event.id)
        if len(tries) < 3:
            raise Unavailable("not yet")

    await bus.publish(submitted("job-1"))
    async with running(bus.consume("reader", [JOB_SUBMITTED], handler, backoff_s=(0.01,))):
        await until(lambda: len(tries) == 3)
    assert len(set(tries)) == 1


async def test_an_event_that_always_fails_ends_in_the_dead_letter_stream(bus: Bus, nats: NatsServer) -> None:
    tries: list[str] = []

    async def handler(event: Event[Any]) -> None:
        tries.append(event.entity_id)
        if event.entity_id == "bad":
            raise Unavailable("never")

    await bus.publish(submitted("bad"))
    consumer = bus.consume("reader", [JOB_SUBMITTED], handler, max_deliver=3, backoff_s=(0.01,))
    async with running(consumer):
        await until(lambda: tries.count("bad") == 3)
    letters = await dead_letters(nats)
    assert len(letters) == 1
    assert letters[0].headers["Recmesh-Dead-Reason"] == "Unavailable: never"
    assert letters[0].headers["Recmesh-Dead-Deliveries"] == "3"
    assert tries.count("bad") == 3


async def test_poison_goes_to_the_dead_letter_stream_at_once_and_blocks_nothing(
    bus: Bus, nats: NatsServer
) -> None:
    got: list[str] = []

    async def handler(event: Event[Any]) -> None:
        got.append(event.entity_id)

    subject = submitted("job-1").subject
    await bus.publish_core(subject, b"\xff not an event")
    await bus.publish(submitted("job-1"))
    async with running(bus.consume("reader", [JOB_SUBMITTED], handler)):
        await until(lambda: got == ["job-1"])
    letters = await dead_letters(nats)
    assert len(letters) == 1
    assert letters[0].headers["Recmesh-Dead-Reason"].startswith("poison")
    assert letters[0].data == b"\xff not an event"


async def test_events_flow_again_after_nats_is_killed_and_restarted(bus: Bus, nats: NatsServer) -> None:
    got: list[str] = []

    async def handler(event: Event[Any]) -> None:
        got.append(event.entity_id)

    async with running(bus.consume("reader", [JOB_SUBMITTED], handler)):
        await bus.publish(submitted("before"))
        await until(lambda: "before" in got)
        nats.kill()
        publishing = asyncio.create_task(bus.publish(submitted("during"), timeout_s=TIMEOUT_S))
        await until(lambda: not bus.connected)
        nats.start()
        await publishing
        await bus.publish(submitted("after"), timeout_s=TIMEOUT_S)
        await until(lambda: {"during", "after"} <= set(got))


async def test_publishing_without_nats_fails_within_its_time(bus: Bus, nats: NatsServer) -> None:
    nats.kill()
    await until(lambda: not bus.connected)
    with pytest.raises(Unavailable, match=nats.address):
        await bus.publish(submitted("job-1"), timeout_s=0.2)


async def test_an_event_that_is_too_large_is_refused_before_it_is_sent(bus: Bus) -> None:
    with pytest.raises(InvalidArgument, match="at most 1048576"):
        await bus.publish(submitted("job-1", name="x" * (1 << 20)))
    assert bus.connected


async def test_a_wrong_nats_token_is_named(tmp_path: Path) -> None:
    with nats_server(tmp_path / "locked", token="right") as server:
        with pytest.raises(Unauthenticated, match="nats_token is not set"):
            await Bus(server.url, "tests").start()
        with pytest.raises(Unauthenticated, match="nats_token the NATS server refuses it"):
            await Bus(server.url, "tests", token="wrong").start()
        async with started(server, token="right") as bus:
            assert bus.connected


async def test_a_missing_nats_is_named_by_its_address() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 "):
        await Bus("nats://127.0.0.1:1", "tests", connect_timeout_s=0.3).start()


async def test_a_lost_connection_is_made_again_when_the_client_library_tells_nobody(nats: NatsServer) -> None:
    """It does not when what was still to be sent fails while it closes (nats-py 2.16)."""
    link = Link(nats.url, name="tests")
    await link.open(30)
    try:
        session = await link.session()
        session.client._closed_cb = None
        nats.restart()
        await until(lambda: session.lost.is_set() and link.connected)
        assert (await link.session()).epoch > session.epoch
    finally:
        await link.close()


async def test_compare_and_set_lets_one_of_two_writers_win(bus: Bus) -> None:
    bucket = bus.kv("records")
    revision = await bucket.create("jobs.a", b"1")
    assert await bucket.update("jobs.a", b"2", revision) > revision
    with pytest.raises(Aborted):
        await bucket.update("jobs.a", b"3", revision)
    entry = await bucket.get("jobs.a")
    assert entry is not None and entry.value == b"2"


async def test_a_key_is_created_once_until_it_is_deleted(bus: Bus) -> None:
    bucket = bus.kv("records")
    await bucket.create("jobs.a", b"1")
    with pytest.raises(AlreadyExists):
        await bucket.create("jobs.a", b"2")
    await bucket.delete("jobs.a")
    assert await bucket.get("jobs.a") is None
    await bucket.create("jobs.a", b"3")
    assert await bucket.keys() == ["jobs.a"]


async def test_deleting_at_a_wrong_revision_is_refused(bus: Bus) -> None:
    bucket = bus.kv("records")
    first = await bucket.create("a", b"1")
    await bucket.put("a", b"2")
    with pytest.raises(Aborted):
        await bucket.delete("a", revision=first)
    assert await bucket.get("a") is not None


async def test_a_bucket_is_listed_more_often_than_a_stream_has_room_for_readers(bus: Bus) -> None:
    bucket = bus.kv("listed")
    await bucket.put("a", b"1")
    for _ in range(1100):       # the server lets a stream have 1,000
        assert await bucket.keys() == ["a"]


async def test_a_listing_of_a_stream_whose_readers_stay_ends_and_says_why(bus: Bus, nats: NatsServer) -> None:
    bucket = bus.kv("crowded")
    await bucket.put("a", b"1")
    client = await nats_client.connect(nats.url)
    try:
        stream = client.jetstream()
        await asyncio.gather(*(
            stream.add_consumer("KV_crowded", api.ConsumerConfig(name=f"stays-{each}", inactive_threshold=60.0))
            for each in range(1000)
        ))
        with deadline(1.0), pytest.raises(Unavailable, match="no room for another reader") as raised:
            await bucket.keys()
        assert raised.value.reason == "STREAM_FULL"
        await stream.delete_consumer("KV_crowded", "stays-0")
        assert await bucket.keys() == ["a"]
    finally:
        await client.close()


async def test_entries_and_keys_list_what_lives_under_a_prefix(bus: Bus) -> None:
    bucket = bus.kv("records")
    for key in ("jobs.b", "jobs.a", "jobs.gone", "other.x"):
        await bucket.put(key, key.encode())
    await bucket.delete("jobs.gone")
    assert await bucket.keys("jobs.") == ["jobs.a", "jobs.b"]
    assert [entry.value for entry in await bucket.entries("jobs.")] == [b"jobs.a", b"jobs.b"]
    assert await bus.kv("empty").keys() == []


async def test_a_key_that_would_break_a_subject_is_refused(bus: Bus) -> None:
    with pytest.raises(InvalidArgument, match="is no key"):
        await bus.kv("records").put("a.*", b"")


async def test_a_watch_sees_changes_made_after_nats_came_back(bus: Bus, nats: NatsServer) -> None:
    bucket = bus.kv("records")
    await bucket.put("a", b"1")
    seen: list[tuple[str, bytes, bool]] = []

    async def look() -> None:
        async with aclosing(bucket.watch()) as entries:
            async for entry in entries:
                seen.append((entry.key, entry.value, entry.deleted))

    watching = asyncio.create_task(look())
    await until(lambda: ("a", b"1", False) in seen)
    nats.restart()
    await bucket.put("a", b"2")
    await bucket.delete("a")
    await bucket.put("b", b"3")
    await until(lambda: ("b", b"3", False) in seen)
    assert seen.count(("a", b"1", False)) == 1
    assert ("a", b"", True) in seen
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_acknowledged_writes_survive_kill_9(bus: Bus, nats: NatsServer) -> None:
    bucket, log = bus.kv("records"), bus.log("TASKS", "tasks.>")
    await bucket.put("a", b"1")
    sequence = await log.append("tasks.j", b"first", expected_last=0)
    nats.restart()
    entry = await bucket.get("a")
    assert entry is not None and entry.value == b"1"
    assert [item async for item in log.read("tasks.j")] == [(sequence, b"first")]


async def test_a_write_repeated_under_its_id_is_no_lost_race(bus: Bus) -> None:
    from recmesh.runtime.bus.stored import store

    bucket = bus.kv("records")
    revision = await bucket.create("a", b"1")
    write: Any = {"message_id": "once", "expected_last": revision, "stream": "KV_records"}
    first = await store(bus._link, "$KV.records.a", b"2", **write)
    again = await store(bus._link, "$KV.records.a", b"2", **write)
    assert first == again


async def test_of_two_appends_at_one_place_one_is_refused(bus: Bus) -> None:
    log = bus.log("TASKS", "tasks.>")
    first = await log.append("tasks.a", b"1", expected_last=0)
    await log.append("tasks.b", b"x", expected_last=0)
    with pytest.raises(Aborted):
        await log.append("tasks.a", b"2", expected_last=0)
    second = await log.append("tasks.a", b"2", expected_last=first)
    assert await log.last("tasks.a") == second
    assert [data async for _, data in log.read("tasks.a")] == [b"1", b"2"]
    assert [data async for _, data in log.read("tasks.a", second)] == [b"2"]
    assert [data async for _, data in log.read("tasks.a", second + 10)] == []


async def test_a_log_of_many_records_is_read_whole_and_in_order(bus: Bus) -> None:
    log = bus.log("TASKS", "tasks.>")
    for start in range(0, 1500, 100):
        await asyncio.gather(*(log.append("tasks.a", b"%d" % index) for index in range(start, start + 100)))
    read = [item async for item in log.read("tasks.a")]
    assert [seq for seq, _ in read] == list(range(1, 1501))
    assert {int(data) for _, data in read} == set(range(1500))


async def test_every_instance_answers_the_micro_protocol_also_after_a_restart(
    bus: Bus, nats: NatsServer
) -> None:
    import json

    service = bus.service("brain", "0.1.0", "plans", lambda: {"jobs": 3})
    async with running(service):
        nats.restart()

        async def ask(session: Session) -> list[Any]:
            subjects = ("$SRV.PING", "$SRV.INFO.brain", f"$SRV.STATS.brain.{service.id}")
            replies = [await session.client.request(item, b"", timeout=5) for item in subjects]
            return [json.loads(reply.data) for reply in replies]

        ping, info, stats = await bus._link.call("ask", ask)
    assert ping["type"] == "io.nats.micro.v1.ping_response" and ping["name"] == "brain"
    assert info["description"] == "plans"
    assert stats["data"] == {"jobs": 3}


async def test_offers_are_sent_in_the_background(bus: Bus) -> None:
    got: list[int] = []

    async def handler(event: Event[Any]) -> None:
        got.append(event.data.samples)

    async with running(bus.consume("reader", [JOB_PROGRESSED], handler)):
        for samples in range(5):
            assert bus.offer(Event(JOB_PROGRESSED, "job-1", JobProgressed(samples=samples)))
        await until(lambda: got == [0, 1, 2, 3, 4])


async def test_a_consumer_that_stops_loses_no_event(bus: Bus) -> None:
    got: list[int] = []
    gate = asyncio.Event()

    async def slow(event: Event[Any]) -> None:
        await gate.wait()
        got.append(event.data.samples)

    for samples in range(20):
        await bus.publish(Event(JOB_PROGRESSED, "job-1", JobProgressed(samples=samples)))
    first = bus.consume("reader", [JOB_PROGRESSED], slow, max_in_flight=8)
    await first.start()
    await until(lambda: len(first._in_flight) == 8)
    stopping = asyncio.create_task(first.stop())
    await asyncio.sleep(0)
    gate.set()
    await stopping
    async with running(bus.consume("reader", [JOB_PROGRESSED], slow, max_in_flight=8)):
        await until(lambda: set(got) == set(range(20)))


@pytest.mark.usefixtures("tracing")
async def test_one_trace_goes_from_the_publisher_into_the_handler(bus: Bus) -> None:
    seen: list[str] = []

    async def handler(event: Event[Any]) -> None:
        seen.append(trace_ids()[0])

    with span("outside"):
        mine = trace_ids()[0]
        await bus.publish(submitted("job-1"))
    async with running(bus.consume("reader", [JOB_SUBMITTED], handler)):
        await until(lambda: bool(seen))
    assert seen == [mine]


@pytest.mark.usefixtures("tracing")
async def test_an_event_that_waited_is_sent_in_the_trace_in_which_it_came_about(bus: Bus) -> None:
    seen: list[str] = []

    async def handler(event: Event[Any]) -> None:
        seen.append(trace_ids()[0])

    with span("the call"):
        mine, waiting = trace_ids()[0], replace(submitted("job-1"), traceparent=current_traceparent())
    with span("a loop that sends"):
        await bus.publish(waiting)
    async with running(bus.consume("reader", [JOB_SUBMITTED], handler)):
        await until(lambda: bool(seen))
    assert seen == [mine]


async def test_what_was_published_under_repeated_kills_is_there_once_each(bus: Bus, nats: NatsServer) -> None:
    got: list[int] = []
    count = 60

    async def handler(event: Event[Any]) -> None:
        got.append(event.data.samples)

    def at_least(wanted: int) -> bool:
        return len(set(got)) >= wanted

    async def publish() -> None:
        for samples in range(count):
            event = Event(JOB_PROGRESSED, f"job-{samples % 7}", JobProgressed(samples=samples))
            await bus.publish(event, timeout_s=TIMEOUT_S)

    async with running(bus.consume("reader", [JOB_PROGRESSED], handler)):
        publishing = asyncio.create_task(publish())
        for wanted in (5, 20, 40):
            await until(partial(at_least, wanted))
            await asyncio.to_thread(nats.restart)
        await publishing
        await until(lambda: set(got) == set(range(count)))
    async with started(nats) as other:
        stored: list[int] = []

        async def collect(event: Event[Any]) -> None:
            stored.append(event.data.samples)

        async with running(other.consume("second", [JOB_PROGRESSED], collect)):
            await until(lambda: len(stored) >= count)
        assert sorted(stored) == list(range(count))


async def test_a_writer_that_retries_through_kills_never_loses_an_acknowledged_revision(
    bus: Bus, nats: NatsServer
) -> None:
    bucket = bus.kv("records")
    revision = await bucket.create("counter", b"0")
    for value in range(1, 13):
        if value % 4 == 0:
            await asyncio.to_thread(nats.restart)
        revision = await bucket.update("counter", b"%d" % value, revision)
        entry = await bucket.get("counter")
        assert entry is not None and (entry.value, entry.revision) == (b"%d" % value, revision)


async def test_a_handler_killed_each_time_does_not_keep_its_event_for_ever(
    bus: Bus, nats: NatsServer
) -> None:
    seen: list[int] = []

    async def handler(event: Event[Any]) -> None:
        seen.append(event.data.samples)

    await bus.publish(Event(JOB_PROGRESSED, "job-1", JobProgressed(samples=1)))
    consumer = bus.consume("reader", [JOB_PROGRESSED], handler, max_deliver=2)
    await bus._link.call("make the durable", consumer._ensure)

    async def take_and_die(session: Session) -> None:
        inbox = session.client.new_inbox()
        subscription = await session.client.subscribe(inbox)
        request = b'{"batch": 1, "expires": 5000000000}'
        subject = f"$JS.API.CONSUMER.MSG.NEXT.RECMESH.{consumer.durable}"
        await session.client.publish(subject, request, reply=inbox)
        message = await subscription.next_msg(timeout=5)
        await message.nak()
        await subscription.unsubscribe()

    for _ in range(2):
        await bus._link.call("die", take_and_die)
    async with running(consumer):
        await bus.publish(Event(JOB_PROGRESSED, "job-1", JobProgressed(samples=2)))
        await until(lambda: seen == [2])
    letters = await dead_letters(nats)
    assert [item.headers["Recmesh-Dead-Reason"] for item in letters] == ["not acknowledged in 2 deliveries"]


async def stream_sizes(server: NatsServer) -> dict[str, int]:
    import nats as client

    connection = await client.connect(server.url)
    try:
        found = [await connection.jetstream().stream_info(name) for name in (EVENT_STREAM, DEAD_STREAM)]
        return {info.config.name or "": info.config.max_bytes or 0 for info in found}
    finally:
        await connection.close()


async def test_streams_take_what_a_small_server_has_and_leave_room_for_buckets(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "small", store="900MB").start()
    try:
        for _ in range(2):   # the second one finds them, and changes nothing
            async with started(server) as bus:
                assert await bus.kv("some").put("key", b"value") > 0
                assert await stream_sizes(server) == {EVENT_STREAM: 512 << 20, DEAD_STREAM: 256 << 20}
    finally:
        server.stop()


async def test_events_are_kept_for_as_long_as_the_settings_say(nats: NatsServer) -> None:
    import nats as client

    for days in (3.0, 0.5):     # the second time it is there, and changed
        settings = ServiceSettings(
            nats_url=nats.url, event_days=days, event_bytes=64 << 20, dead_event_days=2 * days
        )
        bus = Bus.of(settings, "tests")
        await bus.start()
        await bus.stop()
        connection = await client.connect(nats.url)
        found = [(await connection.jetstream().stream_info(name)).config for name in (EVENT_STREAM, DEAD_STREAM)]
        await connection.close()
        assert [(each.max_age, each.max_bytes) for each in found] == [
            (days * 86_400, 64 << 20), (2 * days * 86_400, 16 << 20),
        ]


async def test_a_server_with_too_little_room_is_told_with_what_is_needed(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "tiny", store="10MB").start()
    bus = Bus(server.url, "tests")
    try:
        with pytest.raises(ResourceExhausted, match=r"too full.*at least 16 MiB") as caught:
            await bus.start()
        assert exit_code(caught.value) is ExitCode.CANNOT_WRITE
    finally:
        await bus.stop()
        server.stop()
