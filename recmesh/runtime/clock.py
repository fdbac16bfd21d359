"""Time as an argument: rules take numbers, loops take a `Clock`, tests bring their own."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What a part of recmesh may ask of time."""

    def now(self) -> float:
        """Unix seconds; may jump when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds on a line that never goes back; only differences mean something."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds of this clock."""
        ...


class SystemClock:
    """The machine's clocks and the running event loop's sleep."""

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """asyncio's sleep, so that a virtual loop's time counts too."""
        await asyncio.sleep(max(0.0, delay_s))


system_clock: Clock = SystemClock()
"""The one that composition roots pass on."""
