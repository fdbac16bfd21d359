"""The world of jobs with an API server in memory: its TrainingJob objects are what jobs are made of."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recmesh.crd.kinds import FINALIZER
from recmesh.crd.telling import Ref
from recmesh.crd.things import Object
from recmesh.runtime.errors import AlreadyExists
from services.jobmaster.app.context import Context
from services.jobmaster.app.objects import ObjectJobs
from services.jobmaster.app.reconciler import Reconciler
from tests.support.job_fakes import LoopClock
from tests.support.job_world import JobWorld
from tests.support.things import NAMESPACE, FakeThings

__all__ = ["NAMESPACE", "FakeObjects", "ObjectWorld"]


class FakeObjects(FakeThings):
    """TrainingJob objects."""

    def __init__(self) -> None:
        super().__init__(FINALIZER)
        self.lost_answers = 0
        """So many creations happen, and their answers are lost."""

    async def create(self, body: Object) -> Object:
        await self._touch()
        key = body["metadata"]["namespace"], body["metadata"]["name"]
        if key in self.things:
            raise AlreadyExists(key[1])
        metadata = {name: value for name, value in body["metadata"].items() if name not in ("namespace", "name")}
        made = self.put(key[1], body["spec"], namespace=key[0], **metadata)
        if self.lost_answers:
            self.lost_answers -= 1
            raise AlreadyExists(key[1])     # what the client's second try is told
        return made

    async def set_fields(self, ref: Ref, fields: Mapping[str, Any]) -> None:
        await self._touch()
        self.put(ref.name, _merged(self._of(ref)["spec"], fields), namespace=ref.namespace)

    async def delete(self, ref: Ref) -> None:
        await self._touch()
        if (ref.namespace, ref.name) in self.things:
            self.ask_to_delete(ref.name, namespace=ref.namespace)


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
        context = replace(context, namespace=NAMESPACE)
        return ObjectJobs(context, self.objects, namespace=NAMESPACE, everywhere=True)

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
        return self.objects.status(name)

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """One of its conditions; empty when it has none."""
        return self.objects.condition(name, kind)

    async def until_told(self, name: str, **fields: Any) -> None:
        """The object's status has these fields."""
        await self.until(lambda: all(self.status(name).get(key) == value for key, value in fields.items()))
