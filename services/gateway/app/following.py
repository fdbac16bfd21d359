"""Other gateways' changes of one model, done here, too: the steps that bring this gateway to where the registry is."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import nullcontext

from recmesh.runtime import telemetry
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import MeshError
from services.gateway.app.loading import Loading, why
from services.gateway.app.served import Served
from services.gateway.domain import models as model_rules
from services.gateway.domain import replica
from services.gateway.domain.models import ModelVersion, State
from services.gateway.store.registry import Registry
from services.gateway.store.traffic import TrafficRules

AGAIN_S = 1.0
"""Until a version may be tried again that could not be loaded here."""
ORPHAN_S = 60.0
"""A load that takes so much longer than loads may is nobody's any more: its gateway is gone."""
READS = 8
"""Models whose records are read at a time."""

_log = telemetry.get_logger(__name__)


class Following:
    """A gateway's own changes come back to it, too, and then there is nothing to do."""

    def __init__(
        self, loading: Loading, registry: Registry, traffic: TrafficRules, *, clock: Clock, load_timeout_s: float
    ) -> None:
        """`load_timeout_s`: so long a load may take."""
        self._loading, self._serving = loading, loading.serving
        self._registry, self._traffic = registry, traffic
        self._clock, self._load_timeout_s = clock, load_timeout_s
        self._elsewhere: dict[str, dict[str, float]] = {}
        """Since when another gateway loads versions, as far as was seen here: by name, then key."""
        self._reads = asyncio.Semaphore(READS)

    async def may_begin(self) -> None:
        """What served before a restart is loaded first, in its own order."""
        await self._loading.restored.wait()

    async def take_rules(self, name: str) -> None:
        """Rules of traffic that another gateway has set: requests go by them from now on."""
        self._serving.follow_rules(name, await self._traffic.get(name))

    async def look(self, name: str) -> float | None:
        """One look; seconds until the next one is of use, None: when something changes."""
        async with self._loading.lock(name):
            async with self._reads:
                records, rules = await asyncio.gather(self._registry.versions(name), self._traffic.get(name))
            self._serving.follow_rules(name, rules)
            here = {served.record.version: served for served in self._serving.versions(name)}
            known = {record.version: record for record in records}
            moved = [each for each, served in here.items() if each in known and self._is_elsewhere(served)]
            plan = replica.steps(
                records, rules, {each: served.record for each, served in here.items()}, moved=moved
            )
            self._let_go(name, plan.leave)
            failed = [record for record in plan.load if not await self._load(record, plan.order)]
            if not failed:
                self._let_go(name, plan.replaced)
            for version in plan.order:
                if version in here and known[version] not in plan.load:
                    self._learn(here[version], known[version])
            self._serving.arrange(name, plan.order)
        for version in plan.mend:
            await self._mend(known[version])
        orphaned_in_s = self._orphaned_in_s(name, plan.loading)
        return AGAIN_S if failed else orphaned_in_s

    async def _load(self, record: ModelVersion, order: Sequence[str]) -> bool:
        """Serve a version that another gateway serves already, in its place of the `order`.

        False: it cannot be had here, which is no fault of the version; what callers see of it says why.
        """
        before = self._serving.find(record.name, record.version)
        with before.busy() if before else nullcontext():
            try:
                served = await self._loading.loaded(record)
            except MeshError as error:
                _log.error("model %s, which another gateway serves, cannot be loaded here: %s", record.key, error)
                self._loading.not_here[record.key] = why(error)
                return False
        self._loading.not_here.pop(record.key, None)
        replaced = self._serving.put(served, order)
        if replaced is not None:
            self._loading.retire_later(replaced)
        self._loading.observation.watch(record.name)
        _log.info("model %s, which another gateway has loaded, serves here, too", record.key)
        return True

    def _is_elsewhere(self, served: Served) -> bool:
        """Whether rules of traffic have it in another model server than it is in."""
        return served.runtime != self._loading.runtime_of(served.record)

    def _let_go(self, name: str, versions: Iterable[str]) -> None:
        """Serve these no more, which another gateway has noted. What is in flight is answered."""
        for version in versions:
            for served in self._serving.take_out(name, version):
                self._loading.retire_later(served)
            self._loading.not_here.pop(f"{name}/{version}", None)
            if self._serving.current(name) is None:
                self._loading.observation.forget(name)

    def _learn(self, served: Served, record: ModelVersion) -> None:
        """What the registry has of a version that serves; a hold that is new is told to the model server soon."""
        if record.held is not None and record.held != served.record.held:
            served.settings = model_rules.with_hold(served.settings, record.held)
            served.untold = served.card.apart is not None
        served.record = record

    async def _mend(self, record: ModelVersion) -> None:
        """Another gateway noted that this version failed, and it serves here: that is to its own account."""
        if self._serving.find(record.name, record.version) and self._serving.is_ready(record.name, record.version):
            await self._loading.mark(record, State.READY)

    def _orphaned_in_s(self, name: str, loading: Sequence[ModelVersion]) -> float | None:
        """Take over loads that are nobody's any more; seconds until the next one may be that, None: there is none."""
        now, before = self._clock.monotonic(), self._elsewhere.pop(name, {})
        since = {record.key: before.get(record.key, now) for record in loading}
        patience_s = self._load_timeout_s + ORPHAN_S
        for record in loading:
            if now - since[record.key] >= patience_s:
                _log.warning("model %s is loaded here: the gateway that was to load it is gone", record.key)
                self._loading.later(record)
                since[record.key] = now
        if not since:
            return None
        self._elsewhere[name] = since
        return min(since.values()) + patience_s - now
