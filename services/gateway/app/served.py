"""A loaded version: the requests in it, and its rest when there are none."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path

from recmesh.runtime.deadline import remaining_s
from recmesh.runtime.errors import DeadlineExceeded, ResourceExhausted
from recmesh.serving.card import ENSEMBLE, ModelCard
from recmesh.serving.settings import ServingSettings
from services.gateway.app.ports import Runtimes
from services.gateway.domain.models import ModelVersion

WAITING = 256
"""Requests that may wait for a version that is being brought back."""
SHADOW = "#shadow"
"""Versions that get copies run in processes of their own, so that they keep no others waiting."""


@dataclass(slots=True, eq=False)
class Served:
    """A loaded version and the requests in it."""

    record: ModelVersion
    card: ModelCard
    folder: Path
    runtime: str
    """Which model server has it: its framework's, or that of shadows."""
    settings: ServingSettings = field(default_factory=ServingSettings)
    last_used: float = 0.0
    """On the line of the clock's `monotonic`."""
    in_flight: int = 0
    resting: bool = False
    """Out of memory until somebody asks for it."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    turning: asyncio.Lock = field(default_factory=asyncio.Lock)
    holding: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One rollback or resumption at a time."""
    untold: bool = False
    """The record says which version is held, and the model server may not know."""
    waking: "asyncio.Task[None] | None" = None
    waiting: int = 0

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def is_shadow(self) -> bool:
        """True in the model server of those that get copies."""
        return self.runtime.endswith(SHADOW)

    @property
    def registration(self) -> str:
        """Another one when the version is registered anew."""
        return f"{self.record.key}@{self.record.created}"

    @property
    def is_ensemble(self) -> bool:
        """True when other models are its parts: no runtime has it."""
        return self.card.framework == ENSEMBLE

    @contextmanager
    def busy(self) -> Iterator[None]:
        """While a request is in it, the version is not taken away."""
        self.in_flight += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self.idle.set()

    async def rest(self, runtimes: Runtimes) -> bool:
        """Leave memory, unless a request is in it; True when it did."""
        async with self.turning:
            if self.in_flight or self.resting or self.is_ensemble:
                return False
            self.resting = True     # before the wait: a request that comes now brings it back, in its turn
            await runtimes.unload(self.runtime, self.record.key)
            return True

    async def awake(self, runtimes: Runtimes, *, load_timeout_s: float) -> None:
        """Return when it is in memory: the first to ask loads it, others wait, each until its own deadline."""
        if not self.resting:
            return
        if self.waiting >= WAITING:
            raise ResourceExhausted(
                f"{WAITING} requests wait for model {self.record.key} already", reason="QUEUE_FULL"
            )
        if self.waking is None or self.waking.done():
            self.waking = asyncio.create_task(
                self._load(runtimes, load_timeout_s), name=f"wake {self.record.key}", context=Context()
            )
            self.waking.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.waiting += 1
        try:
            async with asyncio.timeout(remaining_s()):
                await asyncio.shield(self.waking)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the deadline was over before model {self.record.key} was back in memory", reason="DEADLINE_IN_LOAD"
            ) from None
        finally:
            self.waiting -= 1

    async def _load(self, runtimes: Runtimes, load_timeout_s: float) -> None:
        async with self.turning:
            if self.resting:
                await runtimes.load(
                    self.runtime, self.record.key, self.folder, settings=self.settings, timeout_s=load_timeout_s
                )
                self.resting = False
