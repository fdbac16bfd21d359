"""When a model server counts as hung."""

import asyncio
import contextlib
import socket
from typing import Any, cast

import pytest

from recmesh.runtime.errors import DeadlineExceeded
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


async def _pair() -> tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return await asyncio.open_unix_connection(sock=ours), theirs
