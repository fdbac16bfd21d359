"""Readers of a job's live events come and go."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import Unavailable
from services.gateway.app.ports import Document
from tests.support.gateway import NoEvents, gateway, rest_app

pytestmark = pytest.mark.asyncio


class Quiet(NoEvents):
    """One event, and then nothing for ever."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.left = asyncio.Event()

    async def live(self, job_id: str, *, after: int) -> AsyncGenerator[Document | None, None]:
        try:
            yield {"sequence": 1, "type": "job.submitted"}
            self.waiting.set()
            await asyncio.Event().wait()
        finally:
            self.left.set()


class Broken(NoEvents):
    """The bus is lost after the first event."""

    async def live(self, job_id: str, *, after: int) -> AsyncGenerator[Document | None, None]:
        yield {"sequence": 1, "type": "job.submitted"}
        raise Unavailable("NATS is away")


async def read(app: Any, *, gone: asyncio.Event) -> list[dict[str, Any]]:
    """What a reader is sent, who leaves once `gone` is set."""
    sent: list[dict[str, Any]] = []
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in asked:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": "/v1/jobs/j/events", "raw_path": b"/v1/jobs/j/events", "query_string": b"",
        "root_path": "", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"127.0.0.1"), (b"accept", b"text/event-stream")],
    }
    await app(scope, receive, send)
    return sent


async def test_a_reader_that_goes_away_while_nothing_happens_leaves_nothing_behind(tmp_path: Path) -> None:
    events = Quiet()
    sent = await read(rest_app(gateway(tmp_path), events=events), gone=events.waiting)
    assert b"job.submitted" in b"".join(message.get("body", b"") for message in sent)
    async with asyncio.timeout(60):
        await events.left.wait()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))


async def test_a_reader_is_sent_away_without_a_fault_when_the_bus_is_lost(tmp_path: Path) -> None:
    sent = await read(rest_app(gateway(tmp_path), events=Broken()), gone=asyncio.Event())
    assert sent[0]["status"] == 200 and sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
