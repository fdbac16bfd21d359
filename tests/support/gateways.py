"""Several gateways over one registry, in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.gateway.app.following import Following
from services.gateway.app.replicas import Replicas
from services.gateway.store.registry import Registry
from services.gateway.store.traffic import TrafficRules
from tests.support.gateway import Gateway

LOAD_S = 120.0


class Slow:
    """The clock of a gateway whose waits are real, and short."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s / 100)


@asynccontextmanager
async def following(made: Gateway) -> AsyncIterator[Slow]:
    """The gateway does as others do."""
    clock = Slow()
    registry, traffic = Registry(made.bucket), TrafficRules(made.bucket.beside)
    follows = Following(made.models.loading, registry, traffic, clock=clock, load_timeout_s=LOAD_S)
    followed = Replicas(follows, registry, traffic, clock=clock)
    await followed.start()
    try:
        yield clock
    finally:
        await followed.stop()
