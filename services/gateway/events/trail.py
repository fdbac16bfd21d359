"""The audit's stream: what was told of who did what, kept for longer than other events."""

from recmesh.runtime.bus import Bus
from recmesh.runtime.events import access

STREAM = "RECMESH_AUDIT"
MAX_BYTES = 256 << 20
"""Some 400,000 entries."""
PUBLISH_S = 2.0


class Trail:
    """Makes the stream; NATS fills it by itself, from the stream of all events."""

    name = "audit"

    def __init__(self, bus: Bus, *, days: float) -> None:
        self._bus = bus
        self._days = days

    async def start(self) -> None:
        """Unavailable, or ResourceExhausted where the disk has no room for it."""
        await self._bus.keep_apart(
            STREAM, access.AUDIT_RECORDED.subject, age_s=self._days * 86_400.0, max_bytes=MAX_BYTES,
            about="Who did what: events audit.recorded, copied from RECMESH",
        )  # fmt: skip

    async def stop(self) -> None:
        """It goes on without us."""
