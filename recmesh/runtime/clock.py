"""Time as an argument: rules take numbers, loops take a `Clock`, tests bring their own."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from recmesh.runtime.gates import FOLDER

SLEW = 0.05
"""A clock that was set is followed by so many seconds in each."""


class Clock(Protocol):
    """What a part of recmesh may ask of time."""

    def now(self) -> float:
        """Unix seconds, which neither jump nor go back while the process lives; in another's life they may differ."""
        ...

    def monotonic(self) -> float:
        """Seconds on a line that never goes back; only differences mean something."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Return after `delay_s` seconds of this clock."""
        ...


class SystemClock:
    """The machine's clocks and the running event loop's sleep.

    Silence, patience and pauses are differences of `now`. Were the machine's clock set by an hour, everybody would
    be silent for an hour, or every pause last one; so it is followed slowly (`SLEW`), as NTP does with small steps.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.follow(time.time)

    def follow(self, wall: Callable[[], float], *, elapsed: Callable[[], float] | None = None) -> None:
        """From now on Unix seconds are those of `wall`; `elapsed` counts seconds, those of a suspended machine too."""
        self._wall, self._elapsed = wall, elapsed or _since_boot
        self._now, self._at = wall(), self._elapsed()

    def now(self) -> float:
        """Unix seconds."""
        with self._lock:
            at = self._elapsed()
            passed = at - self._at
            ahead = self._wall() - (self._now + passed)
            self._now += passed + min(max(ahead, -SLEW * passed), SLEW * passed)
            self._at = at
            return self._now

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """asyncio's sleep, so that a virtual loop's time counts too."""
        await asyncio.sleep(max(0.0, delay_s))


class LeaseClock:
    """The same clock for who holds a lease that others see end: its monotonic seconds go on while the machine sleeps,
    where the system tells them. Else a lease that ended meanwhile would be taken for held until the next look."""

    def __init__(self, clock: Clock, *, elapsed: Callable[[], float] | None = None) -> None:
        self._clock, self._elapsed = clock, elapsed or _since_boot

    def now(self) -> float:
        """Unix seconds."""
        return self._clock.now()

    def monotonic(self) -> float:
        """Seconds, those of a suspended machine too."""
        return self._elapsed()

    async def sleep(self, delay_s: float) -> None:
        """The clock's own: who is to wait for the store need not wait for a machine that slept."""
        await self._clock.sleep(delay_s)


def _since_boot() -> float:
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


_machine = SystemClock()
system_clock: Clock = _machine
"""The one that composition roots pass on."""
lease_clock: Clock = LeaseClock(system_clock)
"""The same, for leases."""


def shift_file(folder: Path, who: str) -> Path:
    """The seconds in it are added to the machine's clock, as this process of a chaos run reads it."""
    return folder / f"clock@{who}"


def install(env: Mapping[str, str], *, who: str) -> None:
    """Called once, by the process's entry point: a clock is shifted only where the environment names a chaos run."""
    if env.get(FOLDER):
        file = shift_file(Path(env[FOLDER]), who)
        _machine.follow(lambda: time.time() + _seconds(file))


def _seconds(file: Path) -> float:
    try:
        return float(file.read_text())
    except (OSError, ValueError):   # there is none, or it is being replaced
        return 0.0
