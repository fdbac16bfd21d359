"""The model registry's use cases: register, load, unload, and bring back what served before a restart."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from contextvars import Context
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from recmesh.runtime import telemetry
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import (
    Aborted,
    AlreadyExists,
    FailedPrecondition,
    MeshError,
    NotFound,
    Unavailable,
)
from recmesh.serving.card import ENSEMBLE, ModelCard
from recmesh.serving.settings import ServingSettings
from recmesh.spec.namespaces import NAMESPACE_END
from services.gateway.app.foreign import adopted
from services.gateway.app.observation import Observation
from services.gateway.app.ports import Fact, Inspect, Runtimes, TellModel
from services.gateway.app.served import SHADOW, Served
from services.gateway.app.serving import Serving, ServingLimits
from services.gateway.domain import ensemble, inference
from services.gateway.domain import models as rules
from services.gateway.domain import traffic as traffic_rules
from services.gateway.domain.callers import MESH, MODELS, Caller
from services.gateway.domain.inference import InferRequest, InferResponse
from services.gateway.domain.models import ModelVersion, Registration, State
from services.gateway.domain.traffic import Traffic
from services.gateway.store.folders import ModelFolders
from services.gateway.store.registry import Registry
from services.gateway.store.traffic import TrafficRules

ATTEMPTS = 16
MAX_MODELS = 256
"""Of an ensemble, with those of the ensembles in it."""
RETRY_S = 2.0
STEPS_S = 2.0
"""Between two looks at ensembles that wait for a step."""
STEP_AWAY = "STEP_NOT_READY"

T = TypeVar("T")

_log = telemetry.get_logger(__name__)


class Models:
    """Gateway's models, with their wires given."""

    name = "models"

    def __init__(
        self,
        registry: Registry,
        rules_of_traffic: TrafficRules,
        folders: ModelFolders,
        runtimes: Runtimes,
        serving: Serving,
        observation: Observation,
        *,
        tell: TellModel,
        clock: Clock,
        limits: ServingLimits,
        inspect: Inspect,
    ) -> None:
        self._registry = registry
        self._traffic = rules_of_traffic
        self._folders = folders
        self._runtimes = runtimes
        self.serving = serving
        self._observation = observation
        self._tell = tell
        self._clock = clock
        self._limits = limits
        self._inspect = inspect
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._not_here: dict[str, str] = {}
        """Why versions that serve in other gateways do not in this one, by key."""
        self._await_steps: dict[str, ModelVersion] = {}
        """Ensembles that could not be loaded because a step did not serve, by key."""
        self.restored = asyncio.Event()
        """Set once the models of before the start serve again, or have failed."""
        runtimes.lost = self._lost

    async def start(self) -> None:
        """Begin to bring back what served; requests for other things need not wait for it."""
        records = await self._registry.all()
        for name, traffic in (await self._traffic.all()).items():
            self.serving.set_traffic(name, traffic)
        self._background(lambda: self._restore(records), "restore models")

    async def stop(self) -> None:
        """End loads that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
        card = await self._checked_card(folder, wanted.framework, namespace)
        wanted = replace(wanted, framework=card.framework)
        log = (await asyncio.to_thread(self._folders.settings, folder, wanted.serving)).log
        if log is not None:
            caller.check_topic(log.topic)
        for step in card.steps:
            caller.check(MODELS, step.model)
        await self._check_ensemble(wanted.name, card)
        record, created = await self._create(wanted, namespace)
        if created:
            await self._say("registered", record)
            if wanted.load:
                self._background(lambda: self._load(record), f"load {record.key}")
        return record

    async def versions(self, name: str = "") -> list[ModelVersion]:
        """All versions of a model, or of all."""
        records = await (self._registry.versions(name) if name else self._registry.all())
        return [self._seen(item) for item in records]

    async def get(self, name: str, version: str = "") -> ModelVersion:
        """A version; with none named the one that serves, else the newest."""
        if version:
            return self._seen(await self._registry.get(name, version))
        records = await self.versions(name)
        served = self.serving.current(name)
        chosen = next((item for item in records if served and item.version == served.record.version), None)
        chosen = chosen or rules.newest(records)
        if chosen is None:
            raise inference.unknown_model(name)
        return chosen

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
        record = await self._mark(wanted, State.LOADING)
        loading = self._background(lambda: self._load(record), f"load {record.key}")
        loaded = await asyncio.shield(loading)      # a caller that goes away must not leave it half done
        if isinstance(loaded, MeshError):
            raise loaded
        return loaded

    async def unload(self, name: str, version: str = "") -> list[ModelVersion]:
        """Serve a model (or only if it is this version) no more. What is in flight is answered."""
        async with self.lock(name):
            records = await self._registry.versions(name)
            chosen = [item for item in records if version in ("", item.version)]
            if not chosen:
                raise inference.unknown_model(name, version)
            gone = self.serving.take_out(name, version)
            if gone and self.serving.current(name) is None:
                self._observation.forget(name)
            active = [item for item in chosen if item.state in (State.READY, State.LOADING)]
            changed = [
                await self._mark(item, State.UNLOADED, reason=rules.ON_REQUEST) for item in active
            ]
            for record in changed:
                await self._say("unloaded", record)
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
        async with self.lock(name):
            records = {item.version: item for item in await self._registry.versions(name)}
            if not records:
                raise inference.unknown_model(name)
            absent = [version for version in traffic.needed if version not in records]
            if absent:
                raise inference.unknown_model(name, absent[0])
            await self._traffic.put(name, traffic)
            for served in self.serving.set_traffic(name, traffic):
                await self._leave(served, "it gets copies no more" if served.is_shadow else rules.KEPT_NO_MORE)
        for version in traffic.needed:
            loaded = self.serving.find(name, version)
            if loaded is None or loaded.runtime != self._runtime(records[version]):
                record = await self._mark(records[version], State.LOADING)
                self.load_later(record)
        for aside in rules.put_aside(records.values()) if traffic.keeps_all else ():
            if aside.version not in traffic.needed:
                self.load_later(await self._mark(aside, State.LOADING), behind=True)
        return traffic

    def load_later(self, record: ModelVersion, *, behind: bool = False) -> "asyncio.Task[ModelVersion | MeshError]":
        """Load a version that is marked as loading, in the background; the task's result may be why it could not be."""
        return self._background(lambda: self._load(record, behind=behind), f"load {record.key}")

    async def begin_load(self, record: ModelVersion) -> "asyncio.Task[ModelVersion | MeshError]":
        """As `load`, which goes on after this returns; the task's result is why it could not be."""
        return self.load_later(await self._mark(record, State.LOADING))

    def is_away_here(self, record: ModelVersion) -> bool:
        """Whether another gateway serves it and this one cannot, which is tried again by itself."""
        return record.key in self._not_here

    async def follow(self, record: ModelVersion, order: Sequence[str]) -> bool:
        """Serve a version that another gateway serves already, in its place of the `order`; under the name's lock.

        False: it cannot be had here, which is no fault of the version; what callers see of it says why.
        """
        before = self.serving.find(record.name, record.version)
        with before.busy() if before else nullcontext():
            try:
                served = await self._loaded(record)
            except MeshError as error:
                _log.error("model %s, which another gateway serves, cannot be loaded here: %s", record.key, error)
                self._not_here[record.key] = _why(error)
                return False
        self._not_here.pop(record.key, None)
        replaced = self.serving.put(served, order)
        if replaced is not None:
            self._retire_later(replaced)
        self._observation.watch(record.name)
        _log.info("model %s, which another gateway has loaded, serves here, too", record.key)
        return True

    def follow_rules(self, name: str, traffic: Traffic) -> None:
        """Rules that another gateway has set."""
        self.serving.follow_rules(name, traffic)

    def is_elsewhere(self, served: Served) -> bool:
        """Whether rules of traffic have it in another model server than it is in."""
        return served.runtime != self._runtime(served.record)

    def let_go(self, name: str, versions: Iterable[str]) -> None:
        """Serve these no more, which another gateway has noted. What is in flight is answered."""
        for version in versions:
            for served in self.serving.take_out(name, version):
                self._retire_later(served)
            self._not_here.pop(f"{name}/{version}", None)
            if self.serving.current(name) is None:
                self._observation.forget(name)

    def learn(self, served: Served, record: ModelVersion) -> None:
        """What the registry has of a version that serves; a hold that is new is told to the model server soon."""
        if record.held is not None and record.held != served.record.held:
            served.settings = rules.with_hold(served.settings, record.held)
            served.untold = served.card.apart is not None
        served.record = record

    async def mend(self, record: ModelVersion) -> None:
        """Another gateway noted that this version failed, and it serves here: that is to its own account."""
        if self.serving.find(record.name, record.version) and self.serving.is_ready(record.name, record.version):
            await self._mark(record, State.READY)

    async def load_ensembles(self) -> float:
        """Load those that had a step away, and have it no more; seconds until the next time."""
        for key, record in list(self._await_steps.items()):
            try:
                current = await self._registry.get(record.name, record.version)
                steps = (await self.card(record.name, record.version))[1].steps
            except NotFound:
                del self._await_steps[key]
                continue
            if current.state is not State.FAILED:
                del self._await_steps[key]       # it was loaded or unloaded by hand
            elif ensemble.unready(steps, self.serving.is_ready) is None:
                del self._await_steps[key]
                self.load_later(await self._mark(current, State.LOADING))
        return STEPS_S

    async def card(self, name: str, version: str = "") -> tuple[ModelVersion, ModelCard]:
        """A version and what it says of itself."""
        served = self.serving.find(name, version)
        if served is not None:
            return served.record, served.card
        record = await self.get(name, version)
        folder = await asyncio.to_thread(self._folders.resolve, record.uri, namespace=record.namespace)
        return record, await asyncio.to_thread(self._folders.card, folder)

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

    async def _load(self, record: ModelVersion, *, behind: bool = False) -> ModelVersion | MeshError:
        """Check, load, warm up, swap. The one that serves stays until then, for good when this one fails; with `behind`
        it stays the one that answers, too."""
        async with self.lock(record.name):
            current = await self._registry.get(record.name, record.version)
            if current.state not in (State.LOADING, State.READY):
                return Aborted(f"model {record.key} was {current.state} meanwhile", reason="NOT_WANTED")
            if not traffic_rules.admits(self.serving.traffic(record.name), record.version):
                await self._note(current, State.UNLOADED, reason=rules.NOT_KEPT)
                return FailedPrecondition(f"model {record.key} is {rules.NOT_KEPT}", reason="VERSION_NOT_KEPT")
            before = self.serving.find(record.name, record.version)
            with before.busy() if before else nullcontext():    # or it could rest when its successor is in its place
                try:
                    served = await self._loaded(current)
                except MeshError as error:
                    _log.error("model %s cannot be loaded: %s", record.key, error)
                    still = self.serving.find(record.name, record.version) is not None    # a reload failed
                    failed = await self._note(record, State.READY if still else State.FAILED, reason=_why(error))
                    if error.reason == STEP_AWAY and not still:
                        self._await_steps[record.key] = failed
                    await self._say("failed", failed)
                    return error
                return await self._swap(served, behind=behind)

    async def _loaded(self, record: ModelVersion) -> Served:
        """Read, checked, warmed up."""
        folder = await asyncio.to_thread(self._folders.resolve, record.uri, namespace=record.namespace)
        await asyncio.to_thread(self._folders.take_up_halves, folder, namespace=record.namespace)
        card = await self._checked_card(folder, record.framework, record.namespace)
        runtime = self._runtime(record)
        settings = rules.with_hold(
            await asyncio.to_thread(self._folders.settings, folder, record.serving), record.held
        )
        if card.steps:
            await self._check_ensemble(record.name, card)
            away = ensemble.unready(card.steps, self.serving.is_ready)
            if away is not None:
                raise away
        else:
            await self._runtimes.load(
                runtime, record.key, folder, settings=settings, timeout_s=self._limits.load_timeout_s
            )
        return Served(record, card, folder, runtime, settings)

    def _runtime(self, record: ModelVersion) -> str:
        shadow = self.serving.traffic(record.name).shadow == record.version
        return record.framework + SHADOW if shadow and record.framework != ENSEMBLE else record.framework

    async def _swap(self, served: Served, *, behind: bool) -> ModelVersion:
        again = served.record.state is State.READY       # after a restart: the order of loads stays as it was
        loaded = None if again or behind else self._clock.now()
        ready = served.record = await self._note(served.record, State.READY, loaded=loaded)
        self._not_here.pop(ready.key, None)
        replaced = self.serving.swap_in(served, behind=behind)
        self._observation.watch(ready.name)
        await self._say("ready", ready)
        for before in replaced:
            if before is served:                                # rules have changed since it was begun
                await self._leave(served, rules.KEPT_NO_MORE)
            elif before.record.version == ready.version:        # it moved to another model server
                self._retire_later(before)
            else:
                await self._leave(before, f"replaced by version {ready.version}")
        return ready

    async def _leave(self, served: Served, reason: str) -> None:
        self._retire_later(served)
        await self._say("unloaded", await self._note(served.record, State.UNLOADED, reason=reason))

    def _retire_later(self, served: Served) -> None:
        self._background(lambda: self.serving.retire(served), f"retire {served.record.key}")

    async def _check_ensemble(self, name: str, card: ModelCard) -> None:
        """InvalidArgument unless the models of an ensemble are registered, and fit."""
        if not card.steps:
            return
        cards: dict[tuple[str, str], ModelCard | None] = {}
        asked = [(step.model, step.version) for step in card.steps]
        while asked:
            key = asked.pop()
            if key in cards or len(cards) > MAX_MODELS:
                continue
            try:
                found = cards[key] = (await self.card(*key))[1]
                asked += [(step.model, step.version) for step in found.steps]
            except NotFound:
                cards[key] = None
        ensemble.check(name, card, lambda model, version: cards.get((model, version)))

    async def _restore(self, records: list[ModelVersion]) -> None:
        chosen = rules.to_load_at_start(records, self.serving.traffic)
        try:
            for record in chosen:
                current = self.serving.current(record.name)
                later = current is not None and rules.loaded_before(record, current.record)
                await self._load(record, behind=later and self.serving.traffic(record.name).keeps_all)
            for record in records:
                if record not in chosen and record.state in (State.LOADING, State.READY):
                    await self._note(record, State.UNLOADED, reason="a newer version was loaded instead")
            self._await_steps |= {
                record.key: record for record in records
                if record.state is State.FAILED and record.reason.startswith(STEP_AWAY)
            }
        finally:
            self.restored.set()

    def _seen(self, record: ModelVersion) -> ModelVersion:
        """As callers see it: the truth of this process goes before what could be written of it."""
        if self.serving.find(record.name, record.version):
            return record if record.state is State.READY else replace(record, state=State.READY, reason="")
        if record.state is State.READY and self.restored.is_set():
            why = self._not_here.get(record.key, "")
            if why:
                return replace(record, state=State.FAILED, reason=f"{why} (another gateway serves it)")
            return replace(record, state=State.LOADING, reason="another gateway serves it; this one does not yet")
        again = record.state is State.READY and not self.restored.is_set() and not self.serving.find(record.name)
        if again or record.state is State.LOADING:
            what = self._runtimes.waits(self._runtime(record), record.key)
            why = "; ".join(part for part in ("loaded again after a restart" if again else "", what) if part)
            return replace(record, state=State.LOADING, reason=why or record.reason)
        return record

    async def _checked_card(self, folder: Path, framework: str, namespace: str) -> ModelCard:
        jobs = None
        if namespace:                            # a record with a namespace is a key's word, the others are the mesh's
            records = await self._registry.all()
            own = [item for item in records if item.name.startswith(namespace + NAMESPACE_END) and not item.namespace]
            jobs = {item.job_id for item in own if item.job_id}
        card = await asyncio.to_thread(self._folders.card, folder, jobs=jobs)
        if framework and card.framework != framework:
            raise FailedPrecondition(
                f"registered as {framework}, but model.json says {card.framework}",
                reason="FRAMEWORK_MISMATCH",
            )
        return card

    def _lost(self, runtime: str, key: str, reason: str) -> None:
        """A runtime could not bring a model back after a crash. One that another runtime has by now still serves."""
        name, _, version = key.partition("/")
        served = self.serving.find(name, version)
        if served is not None and served.runtime == runtime:
            self.serving.take_out(name, version)
            self._background(lambda: self._fail(served, reason), f"fail {key}")

    async def _fail(self, served: Served, reason: str) -> None:
        await self._say("failed", await self._note(served.record, State.FAILED, reason=reason))

    async def _mark(
        self, record: ModelVersion, state: State, *, reason: str = "", loaded: float | None = None
    ) -> ModelVersion:
        return await self._registry.change(
            record.name, record.version, lambda item: rules.moved(item, state, reason=reason, loaded=loaded)
        )

    async def _note(
        self, record: ModelVersion, state: State, *, reason: str = "", loaded: float | None = None
    ) -> ModelVersion:
        """Mark what has happened already: a registry that is away does not undo it, and is told of it later."""
        while True:
            try:
                return await self._mark(record, state, reason=reason, loaded=loaded)
            except (FailedPrecondition, NotFound) as error:
                _log.warning("model %s is %s, but its record says otherwise: %s", record.key, state, error)
                return replace(record, state=state, reason=reason)
            except MeshError as error:
                _log.warning("that model %s is %s cannot be stored yet: %s", record.key, state, error)
                await self._clock.sleep(RETRY_S)

    async def _say(self, fact: Fact, record: ModelVersion) -> None:
        """Facts follow what is stored; a bus that is away must not undo it."""
        try:
            await self._tell(fact, record)
        except MeshError as error:
            _log.warning("model.%s of %s cannot be told: %s", fact, record.key, error)

    def lock(self, name: str) -> asyncio.Lock:
        """Held by whoever changes what serves of that name."""
        return self._locks.setdefault(name, asyncio.Lock())

    def _background(self, work: Callable[[], Coroutine[Any, Any, T]], what: str) -> asyncio.Task[T]:
        """A task with a context of its own: the deadline of the call that began it is not its own."""

        async def guarded() -> T:
            try:
                return await work()
            except Exception:
                _log.exception("%s failed", what)
                raise

        task = asyncio.create_task(guarded(), name=what, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())   # logged above
        return task


def _why(error: MeshError) -> str:
    """With the word that programs look for, where it says more than the kind of error."""
    return str(error) if error.reason == type(error).__name__ else f"{error.reason}: {error}"
