"""TrainingDataset objects of Kubernetes: each becomes a registered dataset that jobs name, and is held while they do.

A jobmaster acts on objects whose names are in its buckets, as on jobs; all of them follow all objects.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from recmesh.crd.kinds import DATASET_FINALIZER
from recmesh.crd.reconciling import Key, Reconciling, key_of
from recmesh.crd.telling import Pace, ThingRef
from recmesh.crd.things import Object, Things, go_with_namespace, is_held
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Aborted, CallerError, InvalidArgument, MeshFault, NotFound, ResourceExhausted
from recmesh.runtime.telemetry import get_logger
from recmesh.spec.dataset import DatasetSpec
from services.jobmaster.app.context import Context
from services.jobmaster.app.jobs import Jobs
from services.jobmaster.domain import datasets as rules
from services.jobmaster.domain.datasets import Registered

logger = get_logger(__name__)

LOOK_S = 3.0
"""Jobs that name a dataset come and go, and so do buckets: each object is looked at so often."""
REFUSED_S = 30.0
"""What was refused may be right by now: files that were not there."""
SOON_S = 0.5
"""While it is not known which jobs there are."""
COUNT_S = 300.0
"""Files are counted anew so often."""


@dataclass(slots=True)
class Known:
    """What is remembered of an object."""

    uid: str
    generation: int
    registered: Registered
    counted_at: float


class DatasetObjects:
    """A component: it follows from its start, and acts on what its jobmaster holds."""

    name = "dataset objects"

    def __init__(
        self, jobs: Jobs, things: Things, *, namespace: str, clock: Clock,
        of_jobs: Callable[[], Iterable[Object] | None],
        changed: Callable[[str, str], None] = lambda namespace, name: None,
    ) -> None:
        """namespace: the mesh's own, whose datasets have names without one. of_jobs: all TrainingJob objects; None:
        they are not known yet. changed: is told (namespace, name) of datasets that jobs may have waited for."""
        self._jobs, self._things, self._namespace, self._clock = jobs, things, namespace, clock
        self._of_jobs, self._changed = of_jobs, changed
        self._known: dict[Key, Known] = {}
        self._pace = Pace()
        self._reconciling = Reconciling("TrainingDataset", things, self.look, clock=clock)

    @property
    def _context(self) -> Context:
        return self._jobs.context

    async def start(self) -> None:
        """Begins to follow."""
        await self._reconciling.start()

    async def stop(self) -> None:
        """Where the namespace is being deleted, objects are let go with it."""
        await self._reconciling.stop()
        await go_with_namespace(
            self._things, self._reconciling.objects.values(), namespace=self._namespace, finalizer=DATASET_FINALIZER
        )

    async def wait(self) -> None:
        """Raises what ended it."""
        await self._reconciling.wait()

    async def look(self, key: Key, thing: Object | None) -> float | None:
        """See, decide, act, tell."""
        if thing is None:
            self._known.pop(key, None)
            return None
        namespace, name = key
        in_mesh = rules.name_in_mesh(name, namespace=namespace, own=self._namespace)
        if not self._jobs.holds(in_mesh):
            self._known.pop(key, None)
            return LOOK_S
        if (jobs := self._of_jobs()) is None:
            return SOON_S           # to take them for none would remove what they use
        users = rules.users(thing, jobs)
        if thing["metadata"].get("deletionTimestamp"):
            return await self._end(thing, in_mesh, users)
        if not is_held(thing, DATASET_FINALIZER):
            self._context.may_write(in_mesh)
            before, thing = thing, await self._things.hold(thing, held=True)
            self._reconciling.keep(before, thing)
        generation, status = int(thing["metadata"].get("generation", 0)), thing.get("status") or {}
        try:
            in_mesh, spec = rules.asked(thing, own=self._namespace)
            registered = await self._registered(key, thing, in_mesh, spec)
        except (MeshFault, ResourceExhausted, NotFound) as error:
            if not isinstance(error, Aborted):
                await self._tell(thing, in_mesh, rules.not_made(
                    error, users, generation=generation, before=status, now=self._clock.now(), is_final=False
                ))
            raise
        except CallerError as error:
            await self._tell(thing, in_mesh, rules.not_made(
                error, users, generation=generation, before=status, now=self._clock.now(), is_final=True
            ))
            return REFUSED_S
        await self._tell(thing, in_mesh, rules.status_of(
            in_mesh, spec, registered, users, generation=generation, before=status, now=self._clock.now()
        ))
        return LOOK_S

    async def _registered(self, key: Key, thing: Object, name: str, spec: DatasetSpec) -> Registered:
        """As shardsvc has it, where it is asked only when the object changed, or files are to be counted."""
        ref, generation = ThingRef.of(thing), int(thing["metadata"].get("generation", 0))
        known, now = self._known.get(key), self._clock.monotonic()
        if known is not None and (known.uid, known.generation) == (ref.uid, generation):
            if now < known.counted_at + COUNT_S:
                return known.registered
        self._context.may_write(name)
        found = await self._context.peers.shards.register_dataset(name, spec.model_dump_json())
        made = Registered(
            found.revision, found.created, found.rows, found.files, found.size_bytes, found.tasks, found.columns
        )
        if known is None or known.generation != generation:
            logger.info("TrainingDataset %s/%s is dataset %s, revision %d", *key, name, made.revision)
        self._known[key] = Known(ref.uid, generation, made, now)
        self._changed(*key)
        return made

    async def _end(self, thing: Object, name: str, users: list[str]) -> float | None:
        """It goes as soon as no job uses it."""
        status = thing.get("status") or {}
        if users and "revision" in status:
            await self._tell(thing, name, rules.held(thing, users, now=self._clock.now()))
            return LOOK_S
        self._context.may_write(name)
        if await self._is_its_own(thing, name):
            await self._context.peers.shards.remove_dataset(name)
        if is_held(thing, DATASET_FINALIZER):
            await self._things.hold(thing, held=False)
        return None

    async def _is_its_own(self, thing: Object, name: str) -> bool:
        """Whether the registered dataset is of this object: where that was refused, somebody else may have the name."""
        if "revision" in (thing.get("status") or {}) or key_of(thing) in self._known:
            return True
        try:                        # it may have been registered, and not told of, before a restart
            _, spec = rules.asked(thing, own=self._namespace)
            return DatasetSpec.parse(orjson.loads(await self._context.peers.shards.dataset(name))) == spec
        except (InvalidArgument, NotFound):
            return False

    async def _tell(self, thing: Object, name: str, told: dict[str, Any]) -> None:
        before = thing.get("status") or {}
        if told == before:
            return
        self._context.may_write(name)
        ref = ThingRef.of(thing)
        self._reconciling.keep(thing, await self._things.tell_status(ref, told))
        event = rules.event_of(ref.uid, told, before, self._clock.now())
        if event is not None and self._pace.lets(ref, now_s=self._clock.monotonic()):
            await self._things.tell(ref, event)
