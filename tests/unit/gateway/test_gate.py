"""The queue before a model server."""

import asyncio

import pytest

from recmesh.runtime.errors import DeadlineExceeded, ResourceExhausted
from services.gateway.runtimes.gate import Gate

pytestmark = pytest.mark.asyncio


async def test_a_full_queue_refuses_with_its_size() -> None:
    gate = Gate(slots=1, waiting=1)
    await gate.enter(priority=1, timeout_s=1.0)
    waiting = asyncio.create_task(gate.enter(priority=1, timeout_s=10.0))
    await asyncio.sleep(0)
    with pytest.raises(ResourceExhausted, match="1 requests wait"):
        await gate.enter(priority=1, timeout_s=1.0)
    gate.leave()
    await waiting


async def test_a_higher_priority_goes_first_and_equal_ones_in_turn() -> None:
    gate = Gate(slots=1, waiting=10)
    await gate.enter(priority=1, timeout_s=1.0)
    order: list[str] = []

    async def one(name: str, priority: int) -> None:
        await gate.enter(priority=priority, timeout_s=10.0)
        order.append(name)
        gate.leave()

    tasks = [asyncio.create_task(one(name, level)) for name, level in (("a", 9), ("b", 9), ("c", 1))]
    await asyncio.sleep(0)
    gate.leave()
    await asyncio.gather(*tasks)
    assert order == ["c", "a", "b"]


async def test_who_waits_too_long_is_told_and_takes_no_slot() -> None:
    gate = Gate(slots=1, waiting=10)
    await gate.enter(priority=1, timeout_s=1.0)
    with pytest.raises(DeadlineExceeded):
        await gate.enter(priority=1, timeout_s=0.001)
    gate.leave()
    await gate.enter(priority=1, timeout_s=0.001)


async def test_who_goes_away_while_waiting_takes_no_slot() -> None:
    gate = Gate(slots=1, waiting=10)
    await gate.enter(priority=1, timeout_s=1.0)
    waiting = asyncio.create_task(gate.enter(priority=1, timeout_s=10.0))
    await asyncio.sleep(0)
    gate.leave()  # hands the slot over in the very moment of the cancel
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await gate.enter(priority=1, timeout_s=0.001)


async def test_those_who_wait_are_counted_whatever_ends_their_waiting() -> None:
    gate = Gate(slots=1, waiting=10)
    await gate.enter(priority=1, timeout_s=1.0)
    tasks = [asyncio.create_task(gate.enter(priority=1, timeout_s=limit)) for limit in (0.001, 10.0, 10.0)]
    await asyncio.sleep(0)
    assert (gate.queued, gate.inside) == (3, 1)
    with pytest.raises(DeadlineExceeded):
        await tasks[0]
    tasks[1].cancel()
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert gate.queued == 1
    gate.leave()
    assert (gate.queued, gate.inside) == (0, 1)
    await tasks[2]
    gate.leave()
    assert gate.inside == 0


async def test_of_equal_priority_the_earliest_deadline_goes_first() -> None:
    gate = Gate(slots=1, waiting=10)
    await gate.enter(priority=1, timeout_s=1.0)
    order: list[str] = []

    async def one(name: str, timeout_s: float) -> None:
        await gate.enter(priority=1, timeout_s=timeout_s)
        order.append(name)
        gate.leave()

    tasks = [asyncio.create_task(one(name, timeout_s)) for name, timeout_s in (("a", 90.0), ("b", 60.0), ("c", 90.0))]
    await asyncio.sleep(0)
    gate.leave()
    await asyncio.gather(*tasks)
    assert order == ["b", "a", "c"]
