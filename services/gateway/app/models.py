"""The model registry's use cases, as callers ask for them: register, load, unload, route, infer."""

import asyncio
from dataclasses import replace

from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import AlreadyExists, FailedPrecondition, MeshError, Unavailable
from recmesh.serving.card import ModelCard
from recmesh.serving.settings import ServingSettings
from services.gateway.app.foreign import adopted
from services.gateway.app.loading import Loading
from services.gateway.app.ports import Inspect
from services.gateway.domain import inference
from services.gateway.domain import models as rules
from services.gateway.domain.callers import MESH, MODELS, Caller
from services.gateway.domain.inference import InferRequest, InferResponse
from services.gateway.domain.models import ModelVersion, Registration, State
from services.gateway.domain.traffic import Traffic
from services.gateway.store.folders import ModelFolders
from services.gateway.store.registry import Registry
from services.gateway.store.traffic import TrafficRules

ATTEMPTS = 16


class Models:
    """Gateway's models, with their wires given."""

    name = "models"

    def __init__(
        self, registry: Registry, rules_of_traffic: TrafficRules, folders: ModelFolders, loading: Loading, *,
        clock: Clock, inspect: Inspect,
    ) -> None:
        self._registry = registry
        self._traffic = rules_of_traffic
        self._folders = folders
        self.loading = loading
        self.serving = loading.serving
        self._clock = clock
        self._inspect = inspect

    async def start(self) -> None:
        """Begin to bring back what served; requests for other things need not wait for it."""
        records = await self._registry.all()
        for name, traffic in (await self._traffic.all()).items():
            self.serving.set_traffic(name, traffic)
        self.loading.restore_later(records)

    async def stop(self) -> None:
        """End loads that are under way."""
        await self.loading.stop()
        await self.serving.shadow.stop()

    async def register(self, wanted: Registration, *, caller: Caller = MESH) -> ModelVersion:
        """Record a new version, or answer with the equal one that is there; it is loaded after the answer.

        An ensemble's models need no right when it is asked, so whoever registers it must have them.
        """
        caller.check(MODELS, wanted.name)
        rules.check(wanted)
        namespace = caller.confined_to(wanted.name)
        folder = await asyncio.to_thread(self._folders.resolve, wanted.uri, namespace=namespace)
        wanted, folder = await adopted(wanted, folder, namespace, folders=self._folders, inspect=self._inspect)
        card = await self.loading.checked_card(folder, wanted.framework, namespace)
        wanted = replace(wanted, framework=card.framework)
        log = (await asyncio.to_thread(self._folders.settings, folder, wanted.serving)).log
        if log is not None:
            caller.check_topic(log.topic)
        for step in card.steps:
            caller.check(MODELS, step.model)
        await self.loading.check_ensemble(wanted.name, card)
        record, created = await self._create(wanted, namespace)
        if created:
            await self.loading.say("registered", record)
            if wanted.load:
                self.loading.later(record)
        return record

    async def versions(self, name: str = "") -> list[ModelVersion]:
        """All versions of a model, or of all."""
        records = await (self._registry.versions(name) if name else self._registry.all())
        return [self._seen(item) for item in records]

    async def glance(self) -> list[ModelVersion]:
        """As `versions` of all, by one call of the registry; it may lack what was written a moment ago."""
        return [self._seen(item) for item in await self._registry.glance()]

    async def get(self, name: str, version: str = "") -> ModelVersion:
        """A version; with none named the one that serves, else the newest."""
        return self._seen(await self.loading.record(name, version))

    async def load(self, name: str, version: str = "") -> ModelVersion:
        """Make a version (the newest) the one that serves; returns when it does, raises why it cannot."""
        records = await self._registry.versions(name)
        wanted = (
            next((item for item in records if item.version == version), None)
            if version
            else rules.newest(records)
        )
        if wanted is None:
            raise inference.unknown_model(name, version)
        loading = await self.loading.begin(wanted)
        loaded = await asyncio.shield(loading)      # a caller that goes away must not leave it half done
        if isinstance(loaded, MeshError):
            raise loaded
        return loaded

    async def unload(self, name: str, version: str = "") -> list[ModelVersion]:
        """Serve a model (or only if it is this version) no more. What is in flight is answered."""
        async with self.loading.lock(name):
            records = await self._registry.versions(name)
            chosen = [item for item in records if version in ("", item.version)]
            if not chosen:
                raise inference.unknown_model(name, version)
            gone = self.serving.take_out(name, version)
            if gone and self.serving.current(name) is None:
                self.loading.observation.forget(name)
            active = [item for item in chosen if item.state in (State.READY, State.LOADING)]
            changed = [
                await self.loading.mark(item, State.UNLOADED, reason=rules.ON_REQUEST) for item in active
            ]
            for record in changed:
                await self.loading.say("unloaded", record)
            for served in gone:
                await self.serving.retire(served)
            return changed

    async def unregister(self, name: str, version: str = "") -> None:
        """Unload and forget a version, or all; the files stay."""
        await self.unload(name, version)
        for record in await self._registry.versions(name):
            if version in ("", record.version):
                await self._registry.delete(name, record.version)
        if not version:
            await self._traffic.delete(name)
            self.serving.set_traffic(name, Traffic())

    async def traffic(self, name: str) -> Traffic:
        """The rules by which versions of a model stay loaded, and requests choose one."""
        if not await self._registry.versions(name):
            raise inference.unknown_model(name)
        return self.serving.traffic(name)

    async def set_traffic(self, name: str, traffic: Traffic) -> Traffic:
        """Set the rules. Versions that they name and that are not loaded are loaded after the answer.

        Where they keep all, so are those that rules had unloaded or refused; each takes its place behind the others, so
        that it answers nobody who names no version.
        """
        async with self.loading.lock(name):
            records = {item.version: item for item in await self._registry.versions(name)}
            if not records:
                raise inference.unknown_model(name)
            absent = [version for version in traffic.needed if version not in records]
            if absent:
                raise inference.unknown_model(name, absent[0])
            await self._traffic.put(name, traffic)
            for served in self.serving.set_traffic(name, traffic):
                reason = "it gets copies no more" if served.is_shadow else rules.KEPT_NO_MORE
                await self.loading.leave(served, reason)
        for version in traffic.needed:
            loaded = self.serving.find(name, version)
            if loaded is None or loaded.runtime != self.loading.runtime_of(records[version]):
                await self.loading.begin(records[version])
        for aside in rules.put_aside(records.values()) if traffic.keeps_all else ():
            if aside.version not in traffic.needed:
                self.loading.later(await self.loading.mark(aside, State.LOADING), behind=True)
        return traffic

    async def card(self, name: str, version: str = "") -> tuple[ModelVersion, ModelCard]:
        """A version and what it says of itself."""
        record, card = await self.loading.card(name, version)
        return self._seen(record), card

    async def settings(self, record: ModelVersion) -> ServingSettings:
        """How a version is served, or would be."""
        served = self.serving.find(record.name, record.version)
        if served is not None:
            return served.settings
        folder = await asyncio.to_thread(self._folders.resolve, record.uri, namespace=record.namespace)
        return await asyncio.to_thread(self._folders.settings, folder, record.serving)

    async def infer(self, request: InferRequest) -> InferResponse:
        """Run a model that serves; else the error says what is known of it."""
        response = await self.serving.infer(request)
        if response is None:
            raise await self.why_not_serving(request.model, request.version)
        return response

    async def why_not_serving(self, name: str, version: str = "") -> MeshError:
        """What is known of a model, or a version of it, that is not loaded."""
        records = await self.versions(name)
        matching = [item for item in records if version in ("", item.version)]
        newest = rules.newest(matching)
        if newest is None:
            return inference.unknown_model(name, version if records else "")
        if newest.state is State.LOADING:
            what = f": {newest.reason}" if newest.reason else ""
            return Unavailable(f"model {newest.key} is being loaded{what}", reason="MODEL_LOADING")
        why = f": {newest.reason}" if newest.reason else ""
        return FailedPrecondition(
            f"model {newest.key} is {newest.state}, not serving{why}", reason="MODEL_NOT_READY"
        )

    async def _create(self, wanted: Registration, namespace: str) -> tuple[ModelVersion, bool]:
        for _ in range(ATTEMPTS):
            existing = await self._registry.versions(wanted.name)
            record, is_new = rules.register(existing, wanted, now=self._clock.now(), namespace=namespace)
            if not is_new:
                return record, False
            try:
                await self._registry.create(record)
            except AlreadyExists:  # another took the number; look again
                continue
            return record, True
        raise Unavailable(f"model {wanted.name!r} is registered by others all the time", reason="CONTENTION")

    def _seen(self, record: ModelVersion) -> ModelVersion:
        """As callers see it: the truth of this process goes before what could be written of it."""
        if self.serving.find(record.name, record.version):
            return record if record.state is State.READY else replace(record, state=State.READY, reason="")
        if record.state is State.READY and self.loading.restored.is_set():
            why = self.loading.not_here.get(record.key, "")
            if why:
                return replace(record, state=State.FAILED, reason=f"{why} (another gateway serves it)")
            return replace(record, state=State.LOADING, reason="another gateway serves it; this one does not yet")
        restored = self.loading.restored.is_set()
        again = record.state is State.READY and not restored and not self.serving.find(record.name)
        if again or record.state is State.LOADING:
            what = self.loading.waits_for(record)
            why = "; ".join(part for part in ("loaded again after a restart" if again else "", what) if part)
            return replace(record, state=State.LOADING, reason=why or record.reason)
        return record
