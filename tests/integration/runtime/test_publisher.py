"""Many messages in flight against a real server: in order, each once, and an end with a reason where it must be."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from recmesh.partitions import Limits, ensure
from recmesh.runtime.bus import Link, Place, Publisher, follow
from recmesh.runtime.errors import InvalidArgument, ResourceExhausted, Unavailable
from tests.support.servers import NatsServer, nats

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
__all__ = ["nats"]


@pytest_asyncio.fixture
async def link(nats: NatsServer) -> AsyncIterator[Link]:
    made = Link(nats.url, name="tests")
    await made.open(30)
    try:
        yield made
    finally:
        await made.close()


async def bodies(link: Link) -> list[bytes]:
    messages = follow(link, "clicks-0", Place("clicks.0", from_sequence=1), to_end=True)
    return [message.data async for message in messages]


async def test_a_server_that_restarts_meanwhile_has_every_message_once_and_in_order(
    link: Link, nats: NatsServer
) -> None:
    await ensure(link, "clicks", 1, limits=Limits(), field="")
    publisher = Publisher(link, in_flight=64)
    await publisher.start()
    expected = [str(n).encode() for n in range(600)]
    for n, body in enumerate(expected):
        if n == 300:
            nats.stop()
            nats.start()
        await publisher.send("clicks.0", body, message_id=str(n))
    await publisher.flush()
    assert await bodies(link) == expected
    assert publisher.stored == 600 and publisher.last == {"clicks-0": 600}
    await publisher.stop()


async def test_an_id_that_is_there_is_a_double(link: Link) -> None:
    await ensure(link, "clicks", 1, limits=Limits(), field="")
    publisher = Publisher(link)
    await publisher.start()
    for body in (b"first", b"second"):
        await publisher.send("clicks.0", body, message_id="same")
    await publisher.flush()
    assert await bodies(link) == [b"first"] and (publisher.stored, publisher.doubles) == (2, 1)
    await publisher.stop()


async def test_without_a_stream_it_ends_and_says_so(link: Link) -> None:
    publisher = Publisher(link, patience_s=1.0)
    await publisher.start()
    await publisher.send("nowhere.0", b"", message_id="1")
    with pytest.raises(Unavailable, match=r"is there a stream for nowhere\.0"):
        await publisher.flush()
    with pytest.raises(Unavailable):
        await publisher.send("nowhere.0", b"", message_id="2")
    await publisher.stop()


async def test_a_message_that_is_too_large_is_refused_and_the_others_go_on(link: Link) -> None:
    await ensure(link, "clicks", 1, limits=Limits(), field="")
    publisher = Publisher(link)
    await publisher.start()
    with pytest.raises(InvalidArgument, match="too large"):
        await publisher.send("clicks.0", bytes(2 << 20), message_id="large")
    await publisher.send("clicks.0", b"small", message_id="small")
    await publisher.flush()
    assert await bodies(link) == [b"small"]
    await publisher.stop()


async def test_a_stream_that_takes_no_more_ends_it_with_the_reason(link: Link) -> None:
    from nats.js import api

    session = await link.session()
    await session.js.add_stream(api.StreamConfig(
        name="clicks-0", subjects=["clicks.0"], max_msgs=3, discard=api.DiscardPolicy.NEW,
    ))
    publisher = Publisher(link)
    await publisher.start()
    for n in range(5):
        await publisher.send("clicks.0", b"", message_id=str(n))
    with pytest.raises(ResourceExhausted, match="no room"):
        await publisher.flush()
    await publisher.stop()


async def test_a_topic_is_made_once_and_keeps_its_number_of_partitions(link: Link) -> None:
    assert await ensure(link, "ads.clicks", 3, limits=Limits(max_age_s=60.0, unsynced=True), field="partitions") == 3
    assert await ensure(link, "ads.clicks", None, limits=Limits(), field="partitions") == 3
    session = await link.session()
    config = (await session.js.stream_info("ads_clicks-2")).config
    assert (config.subjects, config.max_age, config.persist_mode) == (["ads.clicks.2"], 60.0, "async")
    with pytest.raises(InvalidArgument, match="has 3 partition"):
        await ensure(link, "ads.clicks", 2, limits=Limits(), field="partitions")
