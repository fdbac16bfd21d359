"""Broker, client and the reference transport over real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from recmesh.runtime.errors import DeadlineExceeded, Unavailable
from recmesh.serving.admission.broker import Broker
from recmesh.serving.admission.client import Refused
from recmesh.serving.admission.codec import encode
from recmesh.serving.admission.messages import Ask
from recmesh.serving.admission.settings import Settings
from recmesh.serving.admission.tcp import CONTROL, HELLO, TcpCn, TcpHn

pytestmark = [pytest.mark.asyncio, pytest.mark.integration]
KIB = 1024
PATIENCE_S = 20.0


async def echo(message: memoryview) -> bytes:
    return bytes(message[:8])


@asynccontextmanager
async def hn_of(
    handler: Callable[[memoryview], Awaitable[bytes]] = echo, **settings: float
) -> AsyncIterator[tuple[Broker, int]]:
    hn = TcpHn(handler, message_most_bytes=1 << 20)
    fields = {"window_start_bytes": 64 * KIB, "window_min_bytes": 64 * KIB, "message_most_bytes": 1 << 20, **settings}
    async with Broker(Settings(**fields), send=hn.send) as broker:  # type: ignore[arg-type]  # numbers of either kind
        hn.broker = broker
        port = await hn.start("127.0.0.1", 0)
        try:
            yield broker, port
        finally:
            await hn.stop()


@asynccontextmanager
async def cn_of(port: int) -> AsyncIterator[TcpCn]:
    cn = TcpCn()
    await cn.open("127.0.0.1", port)
    try:
        yield cn
    finally:
        await cn.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110  # what it looks at is no event of ours
            await asyncio.sleep(0.005)


async def test_many_nodes_send_and_each_gets_its_own_answer() -> None:
    async with hn_of() as (broker, port):
        links = [TcpCn() for _ in range(10)]
        for link in links:
            await link.open("127.0.0.1", port)

        async def one(number: int, link: TcpCn) -> bytes:
            return await link.call("ads", number.to_bytes(8, "little") + bytes(100 * KIB), left_s=PATIENCE_S)

        answers = await asyncio.gather(*(one(n, links[n % 10]) for n in range(50)))
        assert [int.from_bytes(each, "little") for each in answers] == list(range(50))
        state = broker.snapshot()
        assert (state.arrived, state.in_flight_bytes, state.waiting) == (50, 0, 0)
        for link in links:
            await link.close()


async def test_what_cannot_be_in_time_is_refused_and_never_sent() -> None:
    async with hn_of(bandwidth_bytes_per_s=1e6) as (broker, port), cn_of(port) as cn:
        with pytest.raises(Refused, match=r"too short.*, by .* ms") as caught:
            await cn.call("ads", bytes(500 * KIB), left_s=0.1)
        assert caught.value.reason == "DEADLINE_TOO_SHORT"
        assert broker.snapshot().granted == 0


async def test_a_node_that_dies_with_a_grant_leaks_no_window() -> None:
    async with hn_of(grant_min_s=60.0) as (broker, port), cn_of(port) as cn:
        dead = TcpCn()
        await dead.open("127.0.0.1", port)

        async def hold() -> None:
            async with dead.client.admit("ads", 64 * KIB, left_s=PATIENCE_S):
                await asyncio.sleep(PATIENCE_S)

        holding = asyncio.create_task(hold())
        await until(lambda: broker.snapshot().in_flight_bytes == 64 * KIB)
        waiting = asyncio.create_task(cn.call("ads", bytes(64 * KIB), left_s=PATIENCE_S))
        await until(lambda: broker.snapshot().waiting == 1)
        await dead.close()
        assert await waiting == bytes(8)
        with pytest.raises(Unavailable):
            await holding


async def test_a_node_that_hangs_with_a_grant_is_told_and_others_go_on() -> None:
    async with hn_of(grant_min_s=0.1) as (broker, port), cn_of(port) as slow, cn_of(port) as cn:
        with pytest.raises(Refused) as caught:
            async with slow.client.admit("ads", 64 * KIB, left_s=PATIENCE_S) as request:
                other = asyncio.create_task(cn.call("ads", bytes(64 * KIB), left_s=PATIENCE_S))
                await asyncio.sleep(PATIENCE_S)
        assert caught.value.reason == "GRANT_EXPIRED"
        assert await other == bytes(8)
        assert not broker.arrived("nobody", request)
        assert broker.snapshot().in_flight_bytes == 0


async def test_a_cancelled_call_leaves_the_queue() -> None:
    async with hn_of(grant_min_s=60.0) as (broker, port), cn_of(port) as holder, cn_of(port) as cn:
        async with holder.client.admit("ads", 64 * KIB, left_s=PATIENCE_S):
            call = asyncio.create_task(cn.call("ads", bytes(64 * KIB), left_s=PATIENCE_S))
            await until(lambda: broker.snapshot().waiting == 1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(lambda: broker.snapshot().waiting == 0)
        assert broker.snapshot().cancelled == 1


async def test_an_error_between_grant_and_sending_gives_the_window_back() -> None:
    async with hn_of(grant_min_s=60.0) as (broker, port), cn_of(port) as cn:
        with pytest.raises(ZeroDivisionError):
            async with cn.client.admit("ads", 64 * KIB, left_s=PATIENCE_S):
                raise ZeroDivisionError
        await until(lambda: broker.snapshot().in_flight_bytes == 0)
        assert await cn.call("ads", bytes(64 * KIB), left_s=PATIENCE_S) == bytes(8)


async def test_a_silent_hn_costs_no_more_than_the_deadline() -> None:
    async def silent(_: memoryview) -> bytes:
        await asyncio.sleep(PATIENCE_S)
        return b""

    async with hn_of(silent) as (broker, port), cn_of(port) as cn:
        with pytest.raises(DeadlineExceeded, match=r"within 0\.200 s"):
            await cn.call("ads", bytes(8), left_s=0.2)
        assert broker.snapshot().arrived == 1


async def test_a_cut_link_is_told_to_who_waits() -> None:
    async with hn_of(grant_min_s=60.0) as (broker, port), cn_of(port) as holder:
        async with holder.client.admit("ads", 64 * KIB, left_s=PATIENCE_S):
            cn = TcpCn()
            await cn.open("127.0.0.1", port)
            call = asyncio.create_task(cn.call("ads", bytes(64 * KIB), left_s=PATIENCE_S))
            await until(lambda: broker.snapshot().waiting == 1)
            await cn.close()
            with pytest.raises(Unavailable, match="link"):
                await call
            await until(lambda: broker.snapshot().waiting == 0)
            with pytest.raises(Unavailable):
                await cn.call("ads", b"x", left_s=1.0)


async def test_draining_refuses_the_new_by_name() -> None:
    async with hn_of() as (broker, port), cn_of(port) as cn:
        broker.drain()
        with pytest.raises(Refused, match="takes nothing new"):
            await cn.call("ads", b"x", left_s=PATIENCE_S)


async def test_one_who_speaks_nonsense_is_cut_off_and_others_are_not() -> None:
    async with hn_of() as (_, port), cn_of(port) as cn:
        for first in (b"\x00" * 5, b"\xff" * 64, _frame(CONTROL, encode(Ask(1, "ads", 1))),
                      _frame(HELLO, bytes(17)) + _frame(CONTROL, b"\x09nonsense")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first)
            with contextlib.suppress(ConnectionError):      # as the kernel tells it where bytes were not read
                async with asyncio.timeout(PATIENCE_S):
                    assert await reader.read() == b""
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        assert await cn.call("ads", b"12345678", left_s=PATIENCE_S) == b"12345678"


async def test_a_message_larger_than_was_granted_to_anybody_is_cut_off() -> None:
    async with hn_of() as (broker, port), cn_of(port) as cn:
        with pytest.raises(Unavailable):
            async with cn.client.admit("ads", 8, left_s=PATIENCE_S) as request:
                await cn._exchange(request, bytes(2 << 20))
        await until(lambda: broker.snapshot().in_flight_bytes == 0)


def _frame(kind: int, body: bytes) -> bytes:
    return len(body).to_bytes(4, "little") + bytes([kind]) + body
