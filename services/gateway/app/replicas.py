"""Other gateways of the mesh: what they register, load, unload, route and hold is done here, too (`app/following.py`),
when the registry's watch tells of it, and again later where it could not be."""

import asyncio
from contextlib import aclosing

from recmesh.runtime import telemetry
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError
from services.gateway.app.following import AGAIN_S as FIRST_AGAIN_S
from services.gateway.app.following import Following
from services.gateway.store.registry import Registry
from services.gateway.store.traffic import TrafficRules

AGAIN_S = (FIRST_AGAIN_S, 2.0, 5.0, 15.0, 60.0)
"""Until a version is tried again that could not be loaded here; the last one from then on."""

_log = telemetry.get_logger(__name__)


class Replicas:
    """A component."""

    name = "other gateways"

    def __init__(self, following: Following, registry: Registry, traffic: TrafficRules, *, clock: Clock) -> None:
        self._following, self._registry, self._traffic, self._clock = following, registry, traffic, clock
        self._watches: list[asyncio.Task[None]] = []
        self._followers: dict[str, asyncio.Task[None]] = {}
        """One for each model that is not as the registry has it, or may not be."""
        self._changed: dict[str, asyncio.Event] = {}

    async def start(self) -> None:
        """Begin to watch."""
        self._watches = [
            asyncio.create_task(self._watch_models(), name="watch models"),
            asyncio.create_task(self._watch_rules(), name="watch rules of traffic"),
        ]

    async def wait(self) -> None:
        """Raises when a watch has ended: a mistake of ours."""
        await asyncio.gather(*map(asyncio.shield, self._watches))

    async def stop(self) -> None:
        """Loads that are under way end."""
        tasks = [*self._watches, *self._followers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch_models(self) -> None:
        async with aclosing(self._registry.changes()) as names:
            async for name in names:
                self._look(name)

    async def _watch_rules(self) -> None:
        """Requests go by new rules at once, also while a version is being loaded."""
        async with aclosing(self._traffic.changes()) as names:
            async for name in names:
                try:
                    await self._following.take_rules(name)
                except MeshError as error:
                    _log.warning("new rules of traffic of model %s are not known: %s", name, error)
                self._look(name)

    def _look(self, name: str) -> None:
        self._changed.setdefault(name, asyncio.Event()).set()
        if name not in self._followers:
            self._followers[name] = asyncio.create_task(self._keep(name), name=f"follow {name}")

    async def _keep(self, name: str) -> None:
        """Until this gateway is where the registry is, or that cannot be had: then again, later."""
        await self._following.may_begin()
        await self._kept(name, self._changed[name])
        del self._changed[name], self._followers[name]     # in one step: what changes from now on has a task of its own

    async def _kept(self, name: str, changed: asyncio.Event) -> None:
        failures = 0
        while changed.is_set() or failures:
            if changed.is_set():
                failures = 0
            changed.clear()
            try:
                again_s = await self._following.look(name)
            except MeshError as error:
                _log.warning("what other gateways do with model %s is not known: %s", name, error)
                again_s = AGAIN_S[0]
            except Exception:
                _log.exception("following model %s failed", name)
                again_s = AGAIN_S[-1]
            if again_s is None:
                failures = 0
                continue
            failures += 1
            await self._pause(changed, max(again_s, AGAIN_S[min(failures, len(AGAIN_S)) - 1]))

    async def _pause(self, changed: asyncio.Event, wait_s: float) -> None:
        waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(self._clock.sleep(wait_s))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
