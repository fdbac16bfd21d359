"""Loading of versions: checked, read, warmed up, swapped in; what the registry is told of it; and what served before a
restart, or waits for its steps, is brought back."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from contextvars import Context
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from recmesh.runtime import telemetry
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Aborted, FailedPrecondition, MeshError, NotFound
from recmesh.serving.card import ENSEMBLE, ModelCard
from recmesh.spec.namespaces import NAMESPACE_END
from services.gateway.app.observation import Observation
from services.gateway.app.ports import Fact, Runtimes, TellModel
from services.gateway.app.served import SHADOW, Served
from services.gateway.app.serving import Serving, ServingLimits
from services.gateway.domain import ensemble, inference
from services.gateway.domain import models as rules
from services.gateway.domain import traffic as traffic_rules
from services.gateway.domain.models import ModelVersion, State
from services.gateway.store.folders import ModelFolders
from services.gateway.store.registry import Registry

MAX_MODELS = 256
"""Of an ensemble, with those of the ensembles in it."""
RETRY_S = 2.0
STEPS_S = 2.0
"""Between two looks at ensembles that wait for a step."""
STEP_AWAY = "STEP_NOT_READY"

T = TypeVar("T")

_log = telemetry.get_logger(__name__)


class Loading:
    """Into this gateway: of each name one version at a time, names beside each other."""

    def __init__(
        self,
        registry: Registry,
        folders: ModelFolders,
        runtimes: Runtimes,
        serving: Serving,
        observation: Observation,
        *,
        tell: TellModel,
        clock: Clock,
        limits: ServingLimits,
    ) -> None:
        self._registry = registry
        self._folders = folders
        self._runtimes = runtimes
        self.serving = serving
        self.observation = observation
        self._tell = tell
        self._clock = clock
        self._limits = limits
        self._locks: dict[str, asyncio.Lock] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.not_here: dict[str, str] = {}
        """Why versions that serve in other gateways do not in this one, by key; they are tried again by themselves."""
        self._await_steps: dict[str, ModelVersion] = {}
        """Ensembles that could not be loaded because a step did not serve, by key."""
        self.restored = asyncio.Event()
        """Set once the models of before the start serve again, or have failed."""
        runtimes.lost = self._lost

    async def stop(self) -> None:
        """End loads that are under way."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def record(self, name: str, version: str = "") -> ModelVersion:
        """A version as the registry has it; with none named the one that serves here, else the newest."""
        if version:
            return await self._registry.get(name, version)
        records = await self._registry.versions(name)
        served = self.serving.current(name)
        chosen = next((item for item in records if served and item.version == served.record.version), None)
        chosen = chosen or rules.newest(records)
        if chosen is None:
            raise inference.unknown_model(name)
        return chosen

    def later(self, record: ModelVersion, *, behind: bool = False) -> "asyncio.Task[ModelVersion | MeshError]":
        """Load a version that is marked as loading, in the background; the task's result may be why it could not be."""
        return self._background(lambda: self.load(record, behind=behind), f"load {record.key}")

    async def begin(self, record: ModelVersion) -> "asyncio.Task[ModelVersion | MeshError]":
        """Mark a version as loading, and load it in the background; the task's result may be why it could not be."""
        return self.later(await self.mark(record, State.LOADING))

    async def load(self, record: ModelVersion, *, behind: bool = False) -> ModelVersion | MeshError:
        """Check, load, warm up, swap. The one that serves stays until then, for good when this one fails; with `behind`
        it stays the one that answers, too."""
        async with self.lock(record.name):
            current = await self._registry.get(record.name, record.version)
            if current.state not in (State.LOADING, State.READY):
                return Aborted(f"model {record.key} was {current.state} meanwhile", reason="NOT_WANTED")
            if not traffic_rules.admits(self.serving.traffic(record.name), record.version):
                await self.note(current, State.UNLOADED, reason=rules.NOT_KEPT)
                return FailedPrecondition(f"model {record.key} is {rules.NOT_KEPT}", reason="VERSION_NOT_KEPT")
            before = self.serving.find(record.name, record.version)
            with before.busy() if before else nullcontext():    # or it could rest when its successor is in its place
                try:
                    served = await self.loaded(current)
                except MeshError as error:
                    _log.error("model %s cannot be loaded: %s", record.key, error)
                    still = self.serving.find(record.name, record.version) is not None    # a reload failed
                    failed = await self.note(record, State.READY if still else State.FAILED, reason=why(error))
                    if error.reason == STEP_AWAY and not still:
                        self._await_steps[record.key] = failed
                    await self.say("failed", failed)
                    return error
                return await self._swap(served, behind=behind)

    async def loaded(self, record: ModelVersion) -> Served:
        """Read, checked, warmed up."""
        folder = await asyncio.to_thread(self._folders.resolve, record.uri, namespace=record.namespace)
        await asyncio.to_thread(self._folders.take_up_halves, folder, namespace=record.namespace)
        card = await self.checked_card(folder, record.framework, record.namespace)
        runtime = self.runtime_of(record)
        settings = rules.with_hold(
            await asyncio.to_thread(self._folders.settings, folder, record.serving), record.held
        )
        if card.steps:
            await self.check_ensemble(record.name, card)
            away = ensemble.unready(card.steps, self.serving.is_ready)
            if away is not None:
                raise away
        else:
            await self._runtimes.load(
                runtime, record.key, folder, settings=settings, timeout_s=self._limits.load_timeout_s
            )
        return Served(record, card, folder, runtime, settings)

    def runtime_of(self, record: ModelVersion) -> str:
        """The model server that rules of traffic have it in."""
        shadow = self.serving.traffic(record.name).shadow == record.version
        return record.framework + SHADOW if shadow and record.framework != ENSEMBLE else record.framework

    async def _swap(self, served: Served, *, behind: bool) -> ModelVersion:
        again = served.record.state is State.READY       # after a restart: the order of loads stays as it was
        loaded = None if again or behind else self._clock.now()
        ready = served.record = await self.note(served.record, State.READY, loaded=loaded)
        self.not_here.pop(ready.key, None)
        replaced = self.serving.swap_in(served, behind=behind)
        self.observation.watch(ready.name)
        await self.say("ready", ready)
        for before in replaced:
            if before is served:                                # rules have changed since it was begun
                await self.leave(served, rules.KEPT_NO_MORE)
            elif before.record.version == ready.version:        # it moved to another model server
                self.retire_later(before)
            else:
                await self.leave(before, f"replaced by version {ready.version}")
        return ready

    async def leave(self, served: Served, reason: str) -> None:
        """It serves no more, which is told. What is in flight is answered."""
        self.retire_later(served)
        await self.say("unloaded", await self.note(served.record, State.UNLOADED, reason=reason))

    def retire_later(self, served: Served) -> None:
        """Free it once the requests in it are answered."""
        self._background(lambda: self.serving.retire(served), f"retire {served.record.key}")

    def waits_for(self, record: ModelVersion) -> str:
        """What its load waits for; empty: for nothing that is known."""
        return self._runtimes.waits(self.runtime_of(record), record.key)

    def restore_later(self, records: list[ModelVersion]) -> None:
        """Bring back what served, in the background."""
        self._background(lambda: self._restore(records), "restore models")

    async def _restore(self, records: list[ModelVersion]) -> None:
        chosen = rules.to_load_at_start(records, self.serving.traffic)
        try:
            for record in chosen:
                current = self.serving.current(record.name)
                later = current is not None and rules.loaded_before(record, current.record)
                await self.load(record, behind=later and self.serving.traffic(record.name).keeps_all)
            for record in records:
                if record not in chosen and record.state in (State.LOADING, State.READY):
                    await self.note(record, State.UNLOADED, reason="a newer version was loaded instead")
            self._await_steps |= {
                record.key: record for record in records
                if record.state is State.FAILED and record.reason.startswith(STEP_AWAY)
            }
        finally:
            self.restored.set()

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
                self.later(await self.mark(current, State.LOADING))
        return STEPS_S

    async def card(self, name: str, version: str = "") -> tuple[ModelVersion, ModelCard]:
        """A version and what it says of itself."""
        served = self.serving.find(name, version)
        if served is not None:
            return served.record, served.card
        record = await self.record(name, version)
        folder = await asyncio.to_thread(self._folders.resolve, record.uri, namespace=record.namespace)
        return record, await asyncio.to_thread(self._folders.card, folder)

    async def checked_card(self, folder: Path, framework: str, namespace: str) -> ModelCard:
        """What a folder says of its model; FailedPrecondition where that is of another framework."""
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

    async def check_ensemble(self, name: str, card: ModelCard) -> None:
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

    def _lost(self, runtime: str, key: str, reason: str) -> None:
        """A runtime could not bring a model back after a crash. One that another runtime has by now still serves."""
        name, _, version = key.partition("/")
        served = self.serving.find(name, version)
        if served is not None and served.runtime == runtime:
            self.serving.take_out(name, version)
            self._background(lambda: self._fail(served, reason), f"fail {key}")

    async def _fail(self, served: Served, reason: str) -> None:
        await self.say("failed", await self.note(served.record, State.FAILED, reason=reason))

    async def mark(
        self, record: ModelVersion, state: State, *, reason: str = "", loaded: float | None = None
    ) -> ModelVersion:
        """Note a state in the registry; FailedPrecondition where it cannot follow the one that is there."""
        return await self._registry.change(
            record.name, record.version, lambda item: rules.moved(item, state, reason=reason, loaded=loaded)
        )

    async def note(
        self, record: ModelVersion, state: State, *, reason: str = "", loaded: float | None = None
    ) -> ModelVersion:
        """Mark what has happened already: a registry that is away does not undo it, and is told of it later."""
        while True:
            try:
                return await self.mark(record, state, reason=reason, loaded=loaded)
            except (FailedPrecondition, NotFound) as error:
                _log.warning("model %s is %s, but its record says otherwise: %s", record.key, state, error)
                return replace(record, state=state, reason=reason)
            except MeshError as error:
                _log.warning("that model %s is %s cannot be stored yet: %s", record.key, state, error)
                await self._clock.sleep(RETRY_S)

    async def say(self, fact: Fact, record: ModelVersion) -> None:
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
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())   # logged above
        return task


def why(error: MeshError) -> str:
    """With the word that programs look for, where it says more than the kind of error."""
    return str(error) if error.reason == type(error).__name__ else f"{error.reason}: {error}"
