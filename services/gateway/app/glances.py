"""One reading of the registry for all that look at models at about the same time."""

import asyncio
from collections.abc import Sequence
from itertools import groupby

from recmesh.runtime.clock import Clock
from services.gateway.app.models import Models
from services.gateway.domain.models import ModelVersion

GOOD_FOR_S = 2.0
"""Objects are looked at every five seconds, and so told of within seven of what changed without them."""


class Glances:
    """For those that find nothing to do in it: who acts reads its own model's records."""

    def __init__(self, models: Models, *, clock: Clock) -> None:
        self._models, self._clock = models, clock
        self._lock = asyncio.Lock()
        self._at = self._changed_at = float("-inf")
        self._versions: dict[str, list[ModelVersion]] = {}

    def forget(self) -> None:
        """What was read until now, or is being read, does not have what the caller has done."""
        self._changed_at = self._clock.monotonic()

    async def versions(self, name: str) -> Sequence[ModelVersion]:
        """All versions of a model, by number, as they were at most so long ago."""
        async with self._lock:
            now = self._clock.monotonic()
            if now - self._at >= GOOD_FOR_S or self._at <= self._changed_at:
                records = await self._models.glance()
                self._versions = {key: list(each) for key, each in groupby(records, key=lambda item: item.name)}
                self._at = now
        return self._versions.get(name, ())
