"""Other gateways of the mesh: what they register, load, unload, route and hold is done here, too."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

from recmesh.runtime import telemetry
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError
from services.gateway.app.models import Models
from services.gateway.domain import replica
from services.gateway.domain.models import ModelVersion
from services.gateway.store.registry import Registry
from services.gateway.store.traffic import TrafficRules

AGAIN_S = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Until a version is tried again that could not be loaded here; the last one from then on."""
ORPHAN_S = 60.0
"""A load that takes so much longer than loads may is nobody's any more: its gateway is gone."""
READS = 8
"""Models whose records are read at a time."""

_log = telemetry.get_logger(__name__)


class Replicas:
    """A component. A gateway's own changes come back to it, too, and then there is nothing to do."""

    name = "other gateways"

    def __init__(
        self, models: Models, registry: Registry, traffic: TrafficRules, *, clock: Clock, load_timeout_s: float
    ) -> None:
        """`load_timeout_s`: so long a load may take."""
        self._models, self._registry, self._traffic = models, registry, traffic
        self._clock, self._load_timeout_s = clock, load_timeout_s
        self._watches: list[asyncio.Task[None]] = []
        self._followers: dict[str, asyncio.Task[None]] = {}
        """One for each model that is not as the registry has it, or may not be."""
        self._changed: dict[str, asyncio.Event] = {}
        self._loading: dict[str, dict[str, float]] = {}
        """Since when another gateway loads versions, as far as was seen here: by name, then key."""
        self._reads = asyncio.Semaphore(READS)

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
                    self._models.follow_rules(name, await self._traffic.get(name))
                except MeshError as error:
                    _log.warning("new rules of traffic of model %s are not known: %s", name, error)
                self._look(name)

    def _look(self, name: str) -> None:
        self._changed.setdefault(name, asyncio.Event()).set()
        if name not in self._followers:
            self._followers[name] = asyncio.create_task(self._keep(name), name=f"follow {name}")

    async def _keep(self, name: str) -> None:
        """Until this gateway is where the registry is, or that cannot be had: then again, later."""
        await self._models.restored.wait()       # what served before a restart is loaded in its own order
        await self._kept(name, self._changed[name])
        del self._changed[name], self._followers[name]     # in one step: what changes from now on has a task of its own

    async def _kept(self, name: str, changed: asyncio.Event) -> None:
        failures = 0
        while changed.is_set() or failures:
            if changed.is_set():
                failures = 0
            changed.clear()
            try:
                again_s = await self._follow(name)
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

    async def _follow(self, name: str) -> float | None:
        """One look; seconds until the next one is of use, None: when something changes."""
        models = self._models
        async with models.lock(name):
            async with self._reads:
                records, rules = await asyncio.gather(self._registry.versions(name), self._traffic.get(name))
            models.follow_rules(name, rules)
            here = {served.record.version: served for served in models.serving.versions(name)}
            known = {record.version: record for record in records}
            moved = [each for each, served in here.items() if each in known and models.is_elsewhere(served)]
            plan = replica.steps(
                records, rules, {each: served.record for each, served in here.items()}, moved=moved
            )
            models.let_go(name, plan.leave)
            failed = [record for record in plan.load if not await models.follow(record, plan.order)]
            if not failed:
                models.let_go(name, plan.replaced)
            for version in plan.order:
                if version in here and known[version] not in plan.load:
                    models.learn(here[version], known[version])
            models.serving.arrange(name, plan.order)
        for version in plan.mend:
            await models.mend(known[version])
        orphaned_in_s = self._orphaned_in_s(name, plan.loading)
        return AGAIN_S[0] if failed else orphaned_in_s

    def _orphaned_in_s(self, name: str, loading: Sequence[ModelVersion]) -> float | None:
        """Take over loads that are nobody's any more; seconds until the next one may be that, None: there is none."""
        now, before = self._clock.monotonic(), self._loading.pop(name, {})
        since = {record.key: before.get(record.key, now) for record in loading}
        patience_s = self._load_timeout_s + ORPHAN_S
        for record in loading:
            if now - since[record.key] >= patience_s:
                _log.warning("model %s is loaded here: the gateway that was to load it is gone", record.key)
                self._models.load_later(record)
                since[record.key] = now
        if not since:
            return None
        self._loading[name] = since
        return min(since.values()) + patience_s - now
