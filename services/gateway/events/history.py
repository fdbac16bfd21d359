"""A job's events, read from the bus: what is stored, then what comes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import MeshError, Unavailable
from recmesh.runtime.events import SUBJECT_ROOT, Event, token
from services.gateway.app.ports import Document

ALIVE_S = 10.0
AHEAD = 256
"""Events read ahead of a slow reader; the bus keeps the rest."""
READ_S = 20.0


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Unavailable where the bus, which comes back by itself, has not answered in time."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unavailable(f"{what}: the bus has not answered in {seconds:g} s; ask again", reason="BUS_AWAY") from None


class JobHistory:
    """Events whose entity is the job, whichever service told them."""

    def __init__(self, bus: Bus, *, read_s: float = READ_S) -> None:
        self._bus = bus
        self._read_s = read_s

    async def history(self, job_id: str, *, after: int, limit: int) -> list[Document]:
        """Those that are stored, oldest first; Unavailable while the bus is away."""
        found: list[Document] = []
        stored = aclosing(self._bus.events(_subject(job_id), after=after, to_end=True))
        async with within(self._read_s, f"events of {job_id}"), stored as events:
            async for sequence, event in events:
                found.append(_document(sequence, event))
                if len(found) == limit:
                    break
        return found

    async def live(self, job_id: str, *, after: int) -> AsyncGenerator[Document | None, None]:
        """Those that are stored, then new ones; None whenever none came for a while."""
        arrived: asyncio.Queue[Document] = asyncio.Queue(AHEAD)

        async def read() -> None:
            async with aclosing(self._bus.events(_subject(job_id), after=after, to_end=False)) as events:
                async for sequence, event in events:
                    await arrived.put(_document(sequence, event))

        reading = asyncio.create_task(read(), name=f"events of {job_id}")
        try:
            while not reading.done() or not arrived.empty():
                event = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ALIVE_S):
                        event = await arrived.get()
                yield event
            reading.result()
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, MeshError):
                await reading


def _subject(job_id: str) -> str:
    return f"{SUBJECT_ROOT}.*.*.*.{token(job_id)}"


def _document(sequence: int, event: Event[Any]) -> Document:
    return {
        "sequence": sequence, "id": event.id, "type": event.type.name, "service": event.type.service,
        "time": event.time, "source": event.source, "data": event.data.model_dump(mode="json"),
    }  # fmt: skip
