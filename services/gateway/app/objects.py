"""ModelService objects of Kubernetes: each becomes a version of a model, served by every gateway.

One gateway, by a lease, does what objects say, and tells of it: status, Events and finalizers have one writer. The
others watch, to take over, and serve the same as by another change of the registry (`app/replicas.py`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recmesh.crd.kinds import MODEL_FINALIZER
from recmesh.crd.reconciling import Key, Reconciling, key_of
from recmesh.crd.telling import Pace, ThingRef
from recmesh.crd.things import Object, Things, go_with_namespace, is_held
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Aborted, CallerError, MeshError, MeshFault, NotFound, ResourceExhausted
from recmesh.runtime.telemetry import get_logger
from services.gateway.app.glances import Glances
from services.gateway.app.models import Models
from services.gateway.domain import claims
from services.gateway.domain import objects as rules
from services.gateway.domain.models import ModelVersion, State
from services.gateway.domain.objects import Act, Asked
from services.gateway.domain.traffic import Traffic, parse
from services.gateway.store.presence import Presence
from services.gateway.store.webhooks import Lease

_log = get_logger(__name__)

LOOK_S = 5.0
"""Models change without their objects: each is looked at so often."""
SOON_S = 0.5
"""While a model is being loaded, or another gateway is to do something first."""
REFUSED_S = 30.0
"""What was refused may be right by now: a folder that was not there."""
FIRST_RELOAD_S, LAST_RELOAD_S = 30.0, 600.0
"""A version that could not be loaded is tried again after so long."""


@dataclass(slots=True)
class Known:
    """What a gateway remembers of an object."""

    uid: str = ""
    done: int = 0
    """The generation that it has carried out; 0: none since it began."""
    request_id: str = ""
    version: str = ""
    """Of that request."""
    model: str = ""
    traffic: Traffic | None = None
    """Rules that the object has set."""
    load: "asyncio.Task[ModelVersion | MeshError] | None" = None
    acted: bool = False
    """At the look that is under way, or was the last."""
    rests: bool = False
    """Nothing was to be done at the last look, and nothing is awaited: a glance at the registry will do."""
    failures: int = 0
    reload_at: float = 0.0


class ModelObjects:
    """A component: it follows from its start."""

    name = "model objects"

    def __init__(
        self, things: Things, models: Models, lease: Lease, presence: Presence, *, namespace: str, clock: Clock
    ) -> None:
        """namespace: the mesh's own, whose models have names without one."""
        self._things, self._models, self._lease, self._presence = things, models, lease, presence
        self._namespace, self._clock = namespace, clock
        self._known: dict[Key, Known] = {}
        self._pace = Pace()
        self._glances = Glances(models, clock=clock)
        self._others: Mapping[str, frozenset[str]] = {}
        self._reconciling = Reconciling("ModelService", things, self.look, clock=clock)

    async def start(self) -> None:
        """Begins to follow."""
        await self._reconciling.start()

    async def stop(self) -> None:
        """Models go on to be served; where the namespace is being deleted, objects are let go with it."""
        await self._reconciling.stop()
        await go_with_namespace(
            self._things, self._reconciling.objects.values(), namespace=self._namespace, finalizer=MODEL_FINALIZER
        )
        await self._lease.give_up()
        try:
            await self._presence.leave()
        except MeshError as error:
            _log.info("that this gateway ends is not told: %s", error.message)

    async def wait(self) -> None:
        """Raises what ended it."""
        await self._reconciling.wait()

    async def beat(self) -> float:
        """Renews the lease, and tells what this gateway serves; seconds until the next one."""
        await self._lease.step()
        try:
            await self._presence.tell(self._served())
            self._others = await self._presence.all()
        except MeshError as error:
            _log.warning("what gateways serve is not known: %s", error.message)
        return self._lease.ttl_s / 3

    def _served(self) -> set[str]:
        serving = self._models.serving
        return {
            served.record.key for name in serving.names for served in serving.versions(name)
            if serving.is_ready(name, served.record.version)
        }

    # -- one object --------------------------------------------------------------------------------------

    async def look(self, key: Key, thing: Object | None) -> float | None:
        """See, decide, act, tell."""
        if thing is None:
            self._known.pop(key, None)
            return None
        if not self._lease.is_held:
            self._known.pop(key, None)          # what another one does meanwhile, the status will tell
            return LOOK_S
        if not self._models.loading.restored.is_set():
            return SOON_S
        ref = ThingRef.of(thing)
        known = self._known.setdefault(key, Known(uid=ref.uid))
        if known.uid != ref.uid:
            known = self._known[key] = Known(uid=ref.uid)
        if thing["metadata"].get("deletionTimestamp"):
            return await self._end(thing, known)
        if not is_held(thing, MODEL_FINALIZER):
            before, thing = thing, await self._things.hold(thing, held=True)
            self._reconciling.keep(before, thing)
        generation, before_status = int(thing["metadata"].get("generation", 0)), thing.get("status") or {}
        try:
            wanted = rules.asked(thing, own_namespace=self._namespace)
            told, again_s = await self._follow(thing, wanted, known)
        except (MeshFault, ResourceExhausted) as error:
            if not isinstance(error, Aborted):
                told = rules.waits(error, generation=generation, before=before_status, now=self._clock.now())
                await self._tell(thing, told)
            raise
        except CallerError as error:
            told = rules.refused(error, generation=generation, before=before_status, now=self._clock.now())
            again_s = REFUSED_S
        await self._tell(thing, told)       # what the API server says to it is nothing about the specification
        return again_s

    async def _follow(self, thing: Object, wanted: Asked, known: Known) -> tuple[dict[str, Any], float]:
        """What is to be told, and seconds after which to look again."""
        before = thing.get("status") or {}
        version_before = known.version or str(before.get("version") or "")
        is_done = known.done == wanted.generation or (
            not known.done and before.get("observedGeneration") == wanted.generation
        )
        known.acted, may_rest = False, known.rests and known.done == wanted.generation
        known.rests = False
        record, records = await self._version(wanted, known, at_rest=may_rest)
        trouble = await self._route(thing, wanted, known)
        if known.acted:
            record = await self._models.get(record.name, record.version)      # rules may have had it loaded
        await self._load(
            wanted, record, known, is_done=is_done, is_other=version_before not in ("", record.version)
        )
        known.done = wanted.generation
        if known.acted:
            self._glances.forget()
            records = await self._models.versions(wanted.model)
            record = next((item for item in records if item.version == record.version), record)
        if record.state is State.READY:
            known.failures = 0
        known.rests = not known.acted and known.load is None and rules.is_at_rest(record, load=wanted.load)
        ready = [item.version for item in records if self._models.serving.is_ready(item.name, item.version)]
        told = rules.status_of(
            wanted, record, ready=ready, replicas=self._counted(record), trouble=trouble,
            traffic=known.traffic, before=before, now=self._clock.now(),
        )
        return told, SOON_S if record.state is State.LOADING else LOOK_S

    async def _version(
        self, wanted: Asked, known: Known, *, at_rest: bool
    ) -> tuple[ModelVersion, Sequence[ModelVersion]]:
        """The object's version, registered where it is not, and all of its model's."""
        registration = wanted.registration
        if at_rest:
            records = await self._glances.versions(wanted.model)
            record = _of(records, registration.request_id, known)
            if record is not None and rules.is_at_rest(record, load=wanted.load):
                return record, records
        records = await self._models.versions(wanted.model)
        record = _of(records, registration.request_id, known)
        if record is None:
            record = await self._models.register(registration, caller=wanted.caller)
            known.acted = True
            _log.info("ModelService of uid %s is model %s", wanted.uid, record.key)
        known.request_id, known.version, known.model = registration.request_id, record.version, wanted.model
        return record, records

    async def _route(self, thing: Object, wanted: Asked, known: Known) -> MeshError | None:
        """Rules of traffic as the object has them, unless another one's go before; those that it has no more are taken
        back. Why they are not the model's."""
        before = (thing.get("status") or {}).get("traffic")
        if known.traffic is None and before is not None:
            known.traffic = parse(before)
        rule = wanted.traffic
        if rule is None and known.traffic is None:
            return None
        other, here = self._other_claim(thing, wanted.model), self._models.serving.traffic(wanted.model)
        if rule is not None and other is not None and other < claims.claim_of(thing, rule):
            known.traffic = None
            return claims.conflict(wanted.model, other)
        if rule is None:
            if here == known.traffic:
                known.acted = True
                await self._give_back(wanted.model, other)
        elif here != rule:
            known.acted = True
            try:
                await self._models.set_traffic(wanted.model, rule)
            except CallerError as error:
                return error
        known.traffic = rule
        return None

    def _other_claim(self, thing: Object, model: str) -> claims.Claim | None:
        """Of all other objects, the one whose rules of traffic the model would have."""
        others = (each for key, each in self._reconciling.objects.items() if key != key_of(thing))
        return claims.first(others, model, own_namespace=self._namespace)

    async def _give_back(self, model: str, heir: claims.Claim | None) -> None:
        """The next object's rules, at once, where there is one, and they fit; else none."""
        rule = heir.traffic if heir is not None else Traffic()
        if self._models.serving.traffic(model) == rule:
            return
        try:
            await self._models.set_traffic(model, rule)
        except CallerError:
            if heir is None:
                raise
            await self._models.set_traffic(model, Traffic())       # why the heir's do not fit, its own look tells

    async def _load(
        self, wanted: Asked, record: ModelVersion, known: Known, *, is_done: bool, is_other: bool
    ) -> None:
        if known.load is not None:
            if not known.load.done():
                return
            load, known.load, known.acted = known.load, None, True
            if not load.cancelled() and (load.exception() is not None or isinstance(load.result(), MeshError)):
                known.failures += 1
                pause_s = min(LAST_RELOAD_S, FIRST_RELOAD_S * 2.0 ** (known.failures - 1))
                known.reload_at = self._clock.monotonic() + pause_s
        match rules.act(record, load=wanted.load, is_done=is_done, is_other=is_other):
            case Act.UNLOAD:
                known.acted = True
                await self._models.unload(record.name, record.version)
            case Act.NOTHING if not (wanted.load and self._is_stuck(record, known)):
                pass
            case _:
                known.acted = True
                known.load = await self._models.loading.begin(record)

    def _is_stuck(self, record: ModelVersion, known: Known) -> bool:
        """It is to be loaded, and will not be by itself: it failed, or this gateway's load of it lost the registry."""
        failed = record.state is State.FAILED and record.key not in self._models.loading.not_here
        is_lost = record.state is State.LOADING and known.failures > 0
        return (failed or is_lost) and self._clock.monotonic() >= known.reload_at

    def _counted(self, record: ModelVersion) -> rules.Replicas:
        me = self._models.serving.is_ready(record.name, record.version)
        others = {name: serves for name, serves in self._others.items() if name != self._presence.key}
        return rules.Replicas(1 + len(others), me + sum(record.key in serves for serves in others.values()))

    # -- its end -----------------------------------------------------------------------------------------

    async def _end(self, thing: Object, known: Known) -> float | None:
        """Its versions go, and then the object; why they cannot is told, and it is tried again."""
        try:
            again_s = await self._remove(thing, known)
        except MeshError as error:
            if not isinstance(error, (Aborted, NotFound)):          # these are gone, or others, at the next look
                await self._tell(thing, rules.held(thing, error, now=self._clock.now()))
            if not isinstance(error, CallerError) or isinstance(error, NotFound):
                raise
            return LOOK_S
        if again_s is None and is_held(thing, MODEL_FINALIZER):
            await self._things.hold(thing, held=False)
        return again_s

    async def _remove(self, thing: Object, known: Known) -> float | None:
        """Unregistered, and so unloaded by every gateway; seconds after which to look again, if it is too early."""
        status = thing.get("status") or {}
        model = known.model or str(status.get("model") or "")
        records = await self._models.versions(model) if model else []
        mine = rules.own(records, known.uid)
        if known.load is not None and not known.load.done():
            return SOON_S
        if mine and len(mine) == len(records):
            await self._unregister(model, "")
        else:
            for record in mine:
                await self._unregister(model, record.version)
            if records and status.get("traffic") is not None:
                await self._give_back(model, self._other_claim(thing, model))
        return None

    async def _unregister(self, model: str, version: str) -> None:
        try:
            await self._models.unregister(model, version)
        except NotFound:
            pass        # somebody else has

    # -- what is told ------------------------------------------------------------------------------------

    async def _tell(self, thing: Object, told: dict[str, Any]) -> None:
        before = thing.get("status") or {}
        if not self._lease.is_held or told == before:
            return
        ref = ThingRef.of(thing)
        self._reconciling.keep(thing, await self._things.tell_status(ref, told))
        event = rules.event_of(ref.uid, told, before, self._clock.now())
        if event is not None and self._pace.lets(ref, now_s=self._clock.monotonic()):
            await self._things.tell(ref, event)


def _of(records: Sequence[ModelVersion], request_id: str, known: Known) -> ModelVersion | None:
    """The version that came of the request; by its number, where it had been there before."""
    found = next((item for item in records if item.request_id == request_id), None)
    if found is None and known.request_id == request_id:
        found = next((item for item in records if item.version == known.version), None)
    return found
