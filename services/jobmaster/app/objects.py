"""Jobs whose intent is an object of Kubernetes: users' calls change the object first, and the job follows it.

The object says what is wanted, the store what happened (DESIGN §1). Whatever dies between the two is made good by the
reconciler, which asks of each object: is there its job, and is it as the object says? All of it may be repeated.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from recmesh.crd import objects as shapes
from recmesh.crd.kinds import FINALIZER
from recmesh.crd.things import go_with_namespace
from recmesh.runtime.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
    Violation,
)
from recmesh.spec.job import TrainingJob
from services.jobmaster.app import submit as submission
from services.jobmaster.app.context import Context
from services.jobmaster.app.jobs import Jobs, check_resize, check_scale, check_trains
from services.jobmaster.app.run import Run
from services.jobmaster.domain import objects as rules
from services.jobmaster.domain.job import ObjectRef
from services.jobmaster.domain.objects import Scale, Suspend, Synced
from services.jobmaster.peers.objects import Object, Objects


def ref_of(thing: Object) -> ObjectRef:
    """Which object it is."""
    metadata = thing["metadata"]
    return ObjectRef(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


def name_of(thing: Object) -> str:
    """By which its bucket is found: its job's, which is its own unless that was taken."""
    return str((thing.get("status") or {}).get("job_id") or thing["metadata"]["name"])


class ObjectJobs(Jobs):
    """`Jobs`, with the object as the place where intent is written."""

    def __init__(self, context: Context, objects: Objects, *, namespace: str, everywhere: bool = False) -> None:
        """namespace: of the objects of jobs that come by REST or event and name none. everywhere: objects of all
        namespaces are followed."""
        super().__init__(context)
        self.objects, self._namespace, self._everywhere = objects, namespace, everywhere

    # -- users' calls ------------------------------------------------------------------------------------

    async def submit(self, spec_json: str, *, request_id: str, submitter: str, dry_run: bool) -> Run:
        """See Jobs; the object is there before the job."""
        if dry_run:
            return await super().submit(spec_json, request_id=request_id, submitter=submitter, dry_run=True)
        if (earlier := await self.earlier(request_id, spec_json)) is not None:
            return earlier
        checked = await submission.check(self.context, spec_json)
        self._check_followed(checked.spec)
        self.check_holds(checked.spec.name)
        digest = submission.digest(spec_json)
        request_id = request_id or f"object/{self.context.rng.getrandbits(128):032x}"
        thing = await self._write(spec_json, request_id=request_id, submitter=submitter, digest=digest)
        return await self.accept(
            checked, request_id=request_id, submitter=submitter, spec_digest=digest, object=ref_of(thing)
        )

    def _check_followed(self, spec: TrainingJob) -> None:
        if spec.namespace not in (None, self._namespace) and not self._everywhere:
            reason = f"objects are followed in {self._namespace} alone (RECMESH_OBJECTS_ALL_NAMESPACES)"
            raise InvalidArgument(
                "the TrainingJob has 1 wrong field(s)", violations=[Violation("namespace", reason)]
            )

    async def _write(self, spec_json: str, *, request_id: str, submitter: str, digest: str) -> Object:
        """The new object, or the one that an earlier try of this request has written."""
        job = TrainingJob.parse(orjson.loads(spec_json))
        namespace = job.namespace or self._namespace
        notes = {shapes.REQUEST: request_id, shapes.SUBMITTER: submitter, shapes.DIGEST: digest}
        name = job.name
        while True:
            body = shapes.training_job(job, namespace=namespace, name=name, annotations=notes)
            try:
                return await self.objects.create(body)
            except AlreadyExists:
                known = await self.objects.find(namespace, name)
            if known is not None and _annotations(known).get(shapes.REQUEST) == request_id:
                return known
            if known is not None:
                name = submission.other_name(self.context, job.name)

    async def scale(self, job_id: str, *, role: str, replicas: int, clear: bool) -> Run:
        """See Jobs; the object says so from now on, as `kubectl scale` makes it say."""
        run = self.run_of(job_id)
        check_scale(run.spec, role, replicas, clear=clear)
        check_trains(run)
        if run.job.object is not None:
            await self.objects.set_fields(run.job.object, {"roles": {role: {"replicas": None if clear else replicas}}})
        return await super().scale(job_id, role=role, replicas=replicas, clear=clear)

    async def resize(self, job_id: str, *, role: str, cpu: float, memory_bytes: int) -> Run:
        """See Jobs; the object says so from now on."""
        run = self.run_of(job_id)
        check_resize(run.spec, role, cpu=cpu, memory_bytes=memory_bytes)
        check_trains(run)
        if run.job.object is not None:
            size = ({"cpu": shapes.cores(cpu)} if cpu else {}) | ({"memory": memory_bytes} if memory_bytes else {})
            await self.objects.set_fields(run.job.object, {"roles": {role: size}})
        return await super().resize(job_id, role=role, cpu=cpu, memory_bytes=memory_bytes)

    async def suspend(self, job_id: str, *, reason: str) -> Run:
        """See Jobs; the object says so from now on."""
        await self._say(self.run_of(job_id), {"suspend": True})
        return await super().suspend(job_id, reason=reason)

    async def resume(self, job_id: str) -> Run:
        """See Jobs; the object says so from now on."""
        await self._say(self.run_of(job_id), {"suspend": False})
        return await super().resume(job_id)

    async def _say(self, run: Run, fields: Mapping[str, Any]) -> None:
        check_trains(run)
        if run.job.object is not None:
            await self.objects.set_fields(run.job.object, fields)

    async def delete(self, job_id: str) -> None:
        """See Jobs; the object goes as soon as nothing of the job is left."""
        run = self.run_of(job_id)
        if run.job.object is not None:
            await self.objects.delete(run.job.object)
        await super().delete(job_id)

    # -- what the reconciler does with one object --------------------------------------------------------

    def run_of_object(self, thing: Object) -> Run | None:
        """The object's job; None when there is none. Unavailable while it is read again, or another runs it."""
        ref, job_id = ref_of(thing), str((thing.get("status") or {}).get("job_id") or "")
        if job_id:
            try:
                run = self.run_of(job_id)
            except NotFound:
                pass
            else:
                if run.job.object is not None and run.job.object.uid == ref.uid:
                    return run
        self.check_holds(name_of(thing))
        if self._reloading:
            raise Unavailable("some job is being read again", reason="RELOADING")
        return next((run for run in self.runs().values() if run.job.object == ref), None)

    async def adopt(self, thing: Object) -> Run:
        """The object becomes a job, or is found to be one. Errors as of `submit`."""
        ref, notes = ref_of(thing), _annotations(thing)
        if FINALIZER not in thing["metadata"].get("finalizers", []):
            self.context.may_write(name_of(thing))
            await self.objects.hold(thing, held=True)      # before anything is there that it must remove
        spec_json = orjson.dumps(shapes.job_document(thing)).decode()
        checked = await submission.check(self.context, spec_json)
        run = await self.accept(
            checked, request_id=notes.get(shapes.REQUEST) or f"object/{ref.uid}", spec_digest=None, object=ref,
            submitter=notes.get(shapes.SUBMITTER) or "kubernetes",
        )
        if run.job.object != ref:
            reason = "is that of a job of another object"
            raise InvalidArgument(
                f"the annotation {shapes.REQUEST} is taken", reason="REQUEST_REUSED",
                violations=[Violation(f"metadata.annotations.{shapes.REQUEST}", reason)],
            )
        return run

    async def follow_object(self, thing: Object, run: Run) -> Synced:
        """What the object asks for and the job has not is done; what cannot be done is told."""
        if run.status.has_ended or run.status.ending is not None or run.record.phase == "closed":
            return Synced()
        try:
            asked = TrainingJob.parse(shapes.job_document(thing))
        except InvalidArgument as error:
            return rules.refusal(error)
        wishes = rules.wishes(asked, run.spec, run.job.intent)
        try:
            for change in wishes.changes:
                if isinstance(change, Suspend) and change.wanted:
                    await super().suspend(run.job_id, reason="")
                elif isinstance(change, Suspend):
                    await super().resume(run.job_id)
                elif isinstance(change, Scale):
                    await super().scale(
                        run.job_id, role=change.role, replicas=change.replicas or 0, clear=change.replicas is None
                    )
                else:
                    await super().resize(
                        run.job_id, role=change.role, cpu=change.cpu, memory_bytes=change.memory_bytes
                    )
        except (InvalidArgument, FailedPrecondition) as error:
            return rules.refusal(error)
        return rules.differs(wishes.fixed)

    async def let_go(self, thing: Object, run: Run | None) -> bool:
        """Of an object that is being deleted: True once nothing of its job is left, and the object may go."""
        if run is not None:
            if run.job_id in self.unreadable:
                await super().delete(run.job_id)
            else:
                await run.wish(lambda intent: intent.model_copy(update={"delete": True, "reason": "deleted"}))
                return False
        if FINALIZER in thing["metadata"].get("finalizers", []):
            self.context.may_write(name_of(thing))
            await self.objects.hold(thing, held=False)
        return True

    async def go_with_namespace(self, things: Iterable[Object]) -> None:
        """Of a jobmaster that ends: see `recmesh.crd.things.go_with_namespace`; pods, leases and snapshots on claims go
        with the namespace."""
        await go_with_namespace(self.objects, things, namespace=self._namespace, finalizer=FINALIZER)


def _annotations(thing: Object) -> Mapping[str, Any]:
    return thing["metadata"].get("annotations") or {}
