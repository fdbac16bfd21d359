"""A connection to Valkey of its own: whatever becomes of an exchange, the next one gets its own answers."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as ValkeyLate

from services.shardsvc.store.lane import Lane
from services.shardsvc.store.valkey import connect
from tests.support.servers import valkey_server

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
FOREVER = ("BLPOP", "never", "0")
PATIENCE_S = 30.0


@pytest_asyncio.fixture
async def client(tmp_path: Path) -> AsyncIterator[Redis]:
    with valkey_server(tmp_path) as server:
        made = connect(server.url)
        yield made
        await made.aclose()


async def is_asked(client: Redis) -> None:
    """Returns once somebody waits for `FOREVER`."""
    async with asyncio.timeout(PATIENCE_S):
        while not (await client.info("clients"))["blocked_clients"]:  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.005)


async def echo(lane: Lane, *texts: str) -> list[object]:
    return await lane.exchange([("ECHO", text) for text in texts])


async def test_answers_come_in_order_and_refusals_among_them(client: Redis) -> None:
    lane = Lane(client, timeout_s=PATIENCE_S)
    first, refused, last = await lane.exchange([("ECHO", "a"), ("EVALSHA", "0" * 40, 0), ("ECHO", "b")])
    assert (first, last) == (b"a", b"b") and isinstance(refused, ResponseError)
    await lane.close()
    assert await echo(lane, "c") == [b"c"]
    await lane.close()


async def test_an_exchange_that_is_cancelled_leaves_nothing_to_the_next_one(client: Redis) -> None:
    lane = Lane(client, timeout_s=PATIENCE_S)
    asked = asyncio.create_task(lane.exchange([("ECHO", "old"), FOREVER, ("ECHO", "older")]))
    await is_asked(client)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await client.rpush("never", "late")
    assert await echo(lane, "new", "newer") == [b"new", b"newer"]
    await lane.close()


async def test_an_answer_that_is_late_is_not_taken_for_the_next_one(client: Redis) -> None:
    lane = Lane(client, timeout_s=0.1)
    with pytest.raises(ValkeyLate, match=r"within 0\.1 s"):
        await lane.exchange([FOREVER])
    await client.rpush("never", *map(str, range(9)))
    patient = Lane(client, timeout_s=PATIENCE_S)
    patient._connection = lane._connection
    assert await echo(patient, "new") == [b"new"]
    await lane.close()


async def test_a_connection_that_breaks_is_made_again_and_the_commands_are_sent_again(client: Redis) -> None:
    lane = Lane(client, timeout_s=PATIENCE_S)
    asked = asyncio.create_task(lane.exchange([FOREVER]))
    await is_asked(client)
    lane._connection._reader.set_exception(TimeoutError(errno.ETIMEDOUT, "as of a peer that is gone"))
    await client.rpush("never", "x", "y")
    ((key, value),) = await asked
    assert key == b"never" and value in (b"x", b"y")
    assert await client.client_kill_filter(_type="normal", skipme=True)
    assert await echo(lane, "new") == [b"new"]
    await lane.close()
