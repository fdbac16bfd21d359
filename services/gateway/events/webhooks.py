"""What webhooks take from the bus beside events: those that were given up."""

from collections import deque
from contextlib import aclosing

from recmesh.runtime.bus import Bus
from services.gateway.app.webhooks import Letter
from services.gateway.events.history import READ_S, within


class DeadLetters:
    """The newest of one durable."""

    def __init__(self, bus: Bus, *, read_s: float = READ_S) -> None:
        self._bus = bus
        self._read_s = read_s

    async def newest(self, durable: str, limit: int) -> list[Letter]:
        """Oldest first; Unavailable while the bus is away."""
        found: deque[Letter] = deque(maxlen=limit)
        async with within(self._read_s, f"dead letters of {durable}"), aclosing(self._bus.buried(durable)) as letters:
            async for event, reason, at, tries in letters:
                found.append(Letter(event, reason, at, tries))
        return list(found)
