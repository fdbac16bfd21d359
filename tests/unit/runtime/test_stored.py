"""Writing to JetStream: what is not known, and how much a stream asks for."""

from types import SimpleNamespace
from typing import Any

import pytest
from nats.js import api
from nats.js import errors as js_errors

from recmesh.runtime.bus.stored import LEAST_STREAM_BYTES, _smaller, store
from recmesh.runtime.errors import Unavailable

pytestmark = pytest.mark.asyncio


class FillingRoom:
    """There is room until somebody has written."""

    def __init__(self) -> None:
        self.full = ""

    def objection(self, *, last: bool = False) -> str:
        return self.full

    def check(self, *, last: bool = False) -> None:
        assert not self.full


class LosingLink:
    """The first answer is lost, and the disk is full from then on."""

    def __init__(self) -> None:
        self.room = FillingRoom()
        self.written: list[bytes] = []

    async def call(self, what: str, work: Any, *, timeout_s: float | None) -> Any:
        session = SimpleNamespace(
            js=SimpleNamespace(publish=self._publish), client=SimpleNamespace(max_payload=1 << 20)
        )
        with pytest.raises(TimeoutError):
            await work(session)
        return await work(session)

    async def _publish(self, subject: str, payload: bytes, **_: Any) -> Any:
        self.written.append(payload)
        self.room.full = "the data folder is full"
        raise TimeoutError


async def test_a_write_whose_answer_was_lost_is_not_refused_for_a_full_disk_but_unknown() -> None:
    link: Any = LosingLink()
    with pytest.raises(Unavailable, match="not known whether it was stored"):
        await store(link, "a.b", b"x", message_id="1")
    assert link.written == [b"x"]


@pytest.mark.parametrize(("present", "asked", "next_size"), [
    (None, 1 << 30, 1 << 29),
    (None, LEAST_STREAM_BYTES, None),
    (1 << 28, 1 << 30, 1 << 28),          # what it has already
    (1 << 28, 1 << 28, None),             # and never less: the oldest messages would go
    (-1, 1 << 28, None),
])
async def test_a_new_stream_asks_for_less_and_a_living_one_keeps_what_it_has(
    present: int | None, asked: int, next_size: int | None
) -> None:
    async def stream_info(name: str) -> Any:
        if present is None:
            raise js_errors.NotFoundError
        return SimpleNamespace(config=SimpleNamespace(max_bytes=present))

    session: Any = SimpleNamespace(js=SimpleNamespace(stream_info=stream_info))
    smaller = await _smaller(session, api.StreamConfig(name="s", max_bytes=asked))
    assert (smaller.max_bytes if smaller else None) == next_size
