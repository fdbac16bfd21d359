"""When a model server counts as hung."""

import asyncio
import contextlib
import json
import socket
from typing import Any, cast

import pytest

from recmesh.runtime.errors import DeadlineExceeded
from recmesh.serving.frames import PREFIX
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
    streams, far = await _pair()
    link = Link(cast("Any", SilentProcess()), *streams)
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
    streams, far = await _pair()
    link = Link(cast("Any", SilentProcess()), *streams)
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


async def _pair() -> tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return await asyncio.open_unix_connection(sock=ours), theirs
