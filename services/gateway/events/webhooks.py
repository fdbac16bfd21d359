"""What webhooks take from the bus beside events: those that were given up."""

from collections import deque
from contextlib import aclosing

from recmesh.runtime.bus import Bus
from services.gateway.app.ports import Document
from services.gateway.events.history import READ_S, within


class DeadLetters:
    """The newest of one durable."""

    def __init__(self, bus: Bus, *, read_s: float = READ_S) -> None:
        self._bus = bus
        self._read_s = read_s

    async def newest(self, durable: str, limit: int) -> list[Document]:
        """Oldest first; Unavailable while the bus is away."""
        found: deque[Document] = deque(maxlen=limit)
        async with within(self._read_s, f"dead letters of {durable}"), aclosing(self._bus.buried(durable)) as letters:
            async for event, reason, at, tries in letters:
                found.append({
                    "id": event.id, "source": event.source, "type": event.type.name, "subject": event.entity_id,
                    "time": event.time, "data": event.data.model_dump(mode="json"), "reason": reason, "at": at,
                    "attempts": tries,
                })
        return list(found)
