"""The world of jobs with an API server in memory: its TrainingJob objects are what jobs are made of."""

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping
from typing import Any

from recmesh.crd.kinds import FINALIZER
from recmesh.runtime.errors import Aborted, AlreadyExists, NotFound, Unavailable
from recmesh.runtime.kube import Change, Listing
from services.jobmaster.app.context import Context
from services.jobmaster.app.objects import ObjectJobs
from services.jobmaster.app.reconciler import Reconciler
from services.jobmaster.domain.job import ObjectRef
from services.jobmaster.domain.objects import Told
from services.jobmaster.peers.objects import Object
from tests.support.job_fakes import LoopClock
from tests.support.job_world import JobWorld

NAMESPACE = "ads"


class FakeObjects:
    """Objects by (namespace, name), as an API server keeps them. `away` makes every call fail."""

    def __init__(self) -> None:
        self.things: dict[tuple[str, str], Object] = {}
        self.events: list[Told] = []
        self.statuses = 0
        """Calls that told a status."""
        self.away = False
        self.ending: set[str] = set()
        """Namespaces that are being deleted."""
        self.lost_answers = 0
        """So many creations happen, and their answers are lost."""
        self._version = 0
        self._followers: list[asyncio.Queue[Change]] = []

    def put(self, name: str, spec: Mapping[str, Any], **metadata: Any) -> Object:
        """What a user applies: a new object, or another specification of one that is there."""
        key, old = (NAMESPACE, name), self.things.get((NAMESPACE, name))
        thing: Object = copy.deepcopy(old) if old else {"metadata": {"namespace": NAMESPACE, "name": name}}
        self._version += 1
        thing["spec"] = copy.deepcopy(dict(spec))
        thing["metadata"] = {
            "uid": f"uid-{self._version}", **thing["metadata"], **metadata,
            "generation": thing["metadata"].get("generation", 0) + 1,
        }
        return self._keep(key, thing, "MODIFIED" if old else "ADDED")

    def ask_to_delete(self, name: str) -> None:
        """`kubectl delete`."""
        thing = copy.deepcopy(self.things[NAMESPACE, name])
        thing["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"
        self._keep((NAMESPACE, name), thing, "MODIFIED")

    def _keep(self, key: tuple[str, str], thing: Object, kind: Any) -> Object:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        gone = thing["metadata"].get("deletionTimestamp") and not thing["metadata"].get("finalizers")
        if gone:
            self.things.pop(key, None)
        else:
            self.things[key] = thing
        for queue in self._followers:
            queue.put_nowait(Change("DELETED" if gone else kind, copy.deepcopy(thing)))
        return copy.deepcopy(thing)

    async def _touch(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("no API server")

    def _of(self, ref: ObjectRef) -> Object:
        thing = self.things.get((ref.namespace, ref.name))
        if thing is None or thing["metadata"]["uid"] != ref.uid:
            raise NotFound(ref.name)
        return copy.deepcopy(thing)

    async def follow(self) -> AsyncIterator[Listing | Change]:
        queue: asyncio.Queue[Change] = asyncio.Queue()
        self._followers.append(queue)
        yield Listing(copy.deepcopy(list(self.things.values())), str(self._version))
        while True:
            yield await queue.get()

    async def get(self, ref: ObjectRef) -> Object | None:
        await self._touch()
        try:
            return self._of(ref)
        except NotFound:
            return None

    async def find(self, namespace: str, name: str) -> Object | None:
        await self._touch()
        return copy.deepcopy(self.things.get((namespace, name)))

    async def create(self, body: Object) -> Object:
        await self._touch()
        key = body["metadata"]["namespace"], body["metadata"]["name"]
        if key in self.things:
            raise AlreadyExists(key[1])
        metadata = {name: value for name, value in body["metadata"].items() if name not in ("namespace", "name")}
        made = self.put(key[1], body["spec"], **metadata)
        if self.lost_answers:
            self.lost_answers -= 1
            raise AlreadyExists(key[1])     # what the client's second try is told
        return made

    async def set_fields(self, ref: ObjectRef, fields: Mapping[str, Any]) -> None:
        await self._touch()
        self.put(ref.name, _merged(self._of(ref)["spec"], fields))

    async def tell_status(self, ref: ObjectRef, status: Object) -> Object:
        await self._touch()
        thing = self._of(ref)
        thing["status"] = copy.deepcopy(status)
        self.statuses += 1
        return self._keep((ref.namespace, ref.name), thing, "MODIFIED")

    async def hold(self, thing: Object, *, held: bool) -> Object:
        await self._touch()
        metadata = thing["metadata"]
        now = self._of(ObjectRef(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"]))
        if now["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise Aborted("it was changed")
        now["metadata"]["finalizers"] = [FINALIZER] if held else []
        return self._keep((metadata["namespace"], metadata["name"]), now, "MODIFIED")

    async def delete(self, ref: ObjectRef) -> None:
        await self._touch()
        if (ref.namespace, ref.name) in self.things:
            self.ask_to_delete(ref.name)

    async def tell(self, ref: ObjectRef, told: Told) -> None:
        await self._touch()
        if told.name_suffix not in {item.name_suffix for item in self.events}:
            self.events.append(told)

    async def is_ending(self, namespace: str) -> bool:
        return namespace in self.ending and not self.away


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """As RFC 7396 has it."""
    made = dict(old)
    for name, value in new.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = _merged(made.get(name) or {}, value) if isinstance(value, Mapping) else value
    return made


class ObjectWorld(JobWorld):
    """Its jobmaster's jobs are objects."""

    jobs: ObjectJobs

    def __init__(self) -> None:
        self.objects = FakeObjects()
        self.reconciler: Reconciler | None = None
        super().__init__()

    def jobs_of(self, context: Context) -> ObjectJobs:
        return ObjectJobs(context, self.objects, namespace=NAMESPACE)

    async def begin(self) -> None:
        """Leads, and follows objects."""
        await self.jobs.lead()
        self.reconciler = Reconciler(self.jobs, clock=LoopClock())
        await self.reconciler.start()

    async def restart_jobmaster(self) -> None:
        assert self.reconciler is not None
        await self.reconciler.stop()
        await super().restart_jobmaster()
        self.reconciler = Reconciler(self.jobs, clock=LoopClock())
        await self.reconciler.start()

    async def close(self) -> None:
        if self.reconciler is not None:
            await self.reconciler.stop()
        await super().close()

    def status(self, name: str) -> dict[str, Any]:
        """What the object says of its job."""
        thing = self.objects.things.get((NAMESPACE, name)) or {}
        found: dict[str, Any] = thing.get("status") or {}
        return found

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """One of its conditions; empty when it has none."""
        return next((item for item in self.status(name).get("conditions", []) if item["type"] == kind), {})

    async def until_told(self, name: str, **fields: Any) -> None:
        """The object's status has these fields."""
        await self.until(lambda: all(self.status(name).get(key) == value for key, value in fields.items()))
