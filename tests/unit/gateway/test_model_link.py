"""When a model server counts as hung."""

import asyncio
import contextlib
import json
import socket
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from recmesh.runtime.errors import DeadlineExceeded, Unavailable
from recmesh.serving.frames import PREFIX, encode
from recmesh.serving.tensors import Tensor
from services.gateway.runtimes.link import Link

pytestmark = pytest.mark.asyncio


class SilentProcess:
    pid = 1
    returncode = 0

    def kill(self) -> None:
        pass

    async def wait(self) -> int:
        return 0


async def test_a_call_is_overdue_only_after_its_own_deadline_and_those_before_it() -> None:
    link, far = await _linked()
    long = asyncio.create_task(link.call({"op": "infer"}, timeout_s=60.0))
    await asyncio.sleep(0)
    with pytest.raises(DeadlineExceeded):
        await link.call({"op": "infer"}, timeout_s=0.01)
    assert link.overdue_s < 0
    with pytest.raises(DeadlineExceeded):
        await link.call({"op": "load"}, timeout_s=0.01)
    assert link.overdue_s >= 0
    far.close()
    await link.ended.wait()
    with contextlib.suppress(Exception):
        await long


@pytest.mark.parametrize("how", ["cancelled", "too late"])
async def test_who_stops_waiting_takes_the_call_back(how: str) -> None:
    link, far = await _linked()
    call = asyncio.create_task(link.call({"op": "infer"}, timeout_s=60.0 if how == "cancelled" else 0.01))
    sent = _header(await asyncio.to_thread(far.recv, 1 << 16))
    if how == "cancelled":
        call.cancel()
    with pytest.raises(asyncio.CancelledError if how == "cancelled" else DeadlineExceeded):
        await call
    taken_back = _header(await asyncio.to_thread(far.recv, 1 << 16))
    assert (taken_back["op"], taken_back["target"]) == ("cancel", sent["call"])
    far.close()
    await link.ended.wait()


def _header(frame: bytes) -> dict[str, Any]:
    _magic, size, _body = PREFIX.unpack_from(frame)
    return dict(json.loads(frame[PREFIX.size:PREFIX.size + size]))


async def _linked() -> tuple[Link, Any]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    link = Link(cast("Any", SilentProcess()))
    await link.join(ours)
    return link, theirs


async def test_answers_that_come_in_pieces_reach_their_calls_and_free_their_places() -> None:
    link, far = await _linked()
    free: list[str] = []
    calls = [
        asyncio.create_task(link.call({"op": "infer"}, timeout_s=60.0, answered=partial(free.append, name)))
        for name in "ab"
    ]
    await asyncio.sleep(0)
    replies = b"".join(
        bytes(part) for call in (2, 1) for part in encode({"call": call}, [Tensor.of("t", np.full(3, call))])
    )
    for begin in range(0, len(replies), 50):
        far.send(replies[begin : begin + 50])
        await asyncio.sleep(0)
    answers = await asyncio.gather(*calls)
    assert [tensors[0].array.tolist() for _, tensors in answers] == [[1, 1, 1], [2, 2, 2]]
    assert free == ["b", "a"]
    far.close()
    await link.ended.wait()


async def test_a_process_that_speaks_nonsense_is_given_up_with_all_its_calls() -> None:
    link, far = await _linked()
    call = asyncio.create_task(link.call({"op": "infer"}, timeout_s=60.0))
    await asyncio.sleep(0)
    far.send(b"x" * 64)
    with pytest.raises(Unavailable, match="spoke nonsense"):
        await call
    assert link.ended.is_set()
    far.close()
