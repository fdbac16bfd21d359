"""The reconciler: every TrainingJob object becomes what it asks for, and says what became of it.

Objects are looked at when they change (`recmesh.crd.reconciling`), and when their jobs do. A jobmaster acts on objects
of its own buckets; it watches all, so that it knows them when it takes more.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from recmesh.crd.reconciling import Key, Reconciling
from recmesh.crd.telling import MAX_NOTE, Pace, Told
from recmesh.runtime.clock import Clock
from recmesh.runtime.errors import Aborted, CallerError, MeshFault, NotFound, ResourceExhausted
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.jobs import SCALABLE, pinned_of, wanted_of
from services.jobmaster.app.objects import ObjectJobs, name_of, ref_of
from services.jobmaster.app.run import Run
from services.jobmaster.app.submit import NO_DATASET
from services.jobmaster.domain import objects as rules
from services.jobmaster.domain.job import ObjectRef
from services.jobmaster.domain.objects import Counts, Synced
from services.jobmaster.domain.phase import ENDED
from services.jobmaster.domain.shards import bucket_of
from services.jobmaster.peers.objects import Object

logger = get_logger(__name__)

WORKERS = 8
LOOK_S = 1.0
"""Jobs are looked at for news so often."""
PROGRESS_S = 10.0
"""What changes all the time is told so often; all else at once."""
LINGER_S = 0.5
"""An object that waits for the end of its job's processes is looked at so often."""
DATASET_S = 30.0
"""An object whose dataset is not registered is tried again after so long, or once a TrainingDataset of the name is."""
EVENTS_SINCE_S = 120.0
"""A jobmaster that takes a bucket tells Events of this age at most: older ones were told, or are of no more use."""


@dataclass(slots=True)
class Known:
    """What is remembered of one object beside the object itself."""

    told_at: float = float("-inf")
    refused: tuple[str, int] = ("", 0)
    """The object and its generation that was refused: it would be again."""
    synced: Synced = field(default_factory=Synced)
    seen: set[str] = field(default_factory=set)
    """Lines of the job's history that were told, or left out."""


class Reconciler:
    """A component: it watches from its start, and acts on what its jobmaster holds."""

    name = "objects"

    def __init__(self, jobs: ObjectJobs, *, clock: Clock, progress_s: float = PROGRESS_S) -> None:
        self._jobs, self._clock, self._progress_s = jobs, clock, progress_s
        self._known: dict[Key, Known] = {}
        self._reconciling = Reconciling("TrainingJob", jobs.objects, self.look, clock=clock, workers=WORKERS)
        self._since: dict[int, float] = {}
        """When each bucket that is held was taken."""
        self._pace = Pace()
        self._seer: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to watch."""
        await self._reconciling.start()
        self._seer = asyncio.create_task(self._see_jobs())

    async def stop(self) -> None:
        """Whatever is under way is begun anew by the next holder, where there can be one."""
        if self._seer is not None:
            self._seer.cancel()
            await asyncio.gather(self._seer, return_exceptions=True)
        await self._reconciling.stop()
        await self._jobs.go_with_namespace(self._reconciling.objects.values())

    async def wait(self) -> None:
        """Raises what ended one of its tasks."""
        seeing = [asyncio.shield(self._seer)] if self._seer is not None else []
        await asyncio.gather(self._reconciling.wait(), *seeing)

    def known_objects(self) -> Collection[Object] | None:
        """All that there are; None before the first list of them."""
        return self._reconciling.objects.values() if self._reconciling.is_listed else None

    def dataset_changed(self, namespace: str, name: str) -> None:
        """Objects that wait for the dataset are looked at."""
        for key, thing in self._reconciling.objects.items():
            spec, status = thing.get("spec") or {}, thing.get("status") or {}
            if key[0] == namespace and spec.get("dataset") == name and not status.get("job_id"):
                self._reconciling.put(key)

    # -- what changes ------------------------------------------------------------------------------------

    async def _see_jobs(self) -> None:
        """Jobs change without their objects; and buckets come and go."""
        while True:
            await self._clock.sleep(LOOK_S)
            if not self._reconciling.is_listed:
                continue
            self._see_buckets()
            runs, objects = self._jobs.runs(), self._reconciling.objects
            for key, thing in objects.items():
                is_here = _is_over(thing) and self._jobs.holds(name_of(thing))
                if is_here and (thing.get("status") or {}).get("job_id") not in runs:
                    self._reconciling.put(key)
            for run in runs.values():
                if run.job.object is not None:
                    key = (run.job.object.namespace, run.job.object.name)
                    known = objects.get(key)
                    if known is None or self._has_news(key, known, run):
                        self._reconciling.put(key)

    def _see_buckets(self) -> None:
        held = self._jobs.buckets
        new = held - self._since.keys()
        if new or len(held) < len(self._since):
            now = self._clock.now()
            self._since = {bucket: self._since.get(bucket, now) for bucket in held}
            for key, thing in self._reconciling.objects.items():
                bucket = bucket_of(name_of(thing))
                if bucket not in held:
                    self._known.pop(key, None)
                elif bucket in new:
                    self._reconciling.put(key)

    # -- one object --------------------------------------------------------------------------------------

    async def look(self, key: Key, thing: Object | None) -> float | None:
        """Look, decide, act; seconds after which to look again, None when only news can change anything."""
        if thing is None:
            again_s = await self._without_object(key)
            if again_s is None:
                self._known.pop(key, None)
            return again_s
        if not self._jobs.holds(name_of(thing)):
            return None
        known = self._known.setdefault(key, Known())     # its own until the end, also where the bucket goes meanwhile
        run = self._jobs.run_of_object(thing)
        if thing["metadata"].get("deletionTimestamp"):
            if run is not None:
                await self._tell(thing, run, known, Synced())
            return None if await self._jobs.let_go(thing, run) else LINGER_S
        if run is None:
            return await self._begin(key, thing, known)
        known.synced = await self._jobs.follow_object(thing, run)
        await self._tell(thing, run, known, known.synced)
        return None

    async def _begin(self, key: Key, thing: Object, known: Known) -> float | None:
        if rules.is_foreign(thing):
            return None
        generation = int(thing["metadata"].get("generation", 0))
        before = thing.get("status") or {}
        if before.get("job_id") and before.get("phase") in ENDED:
            await self._after_the_end(thing)
            return None
        this = (ref_of(thing).uid, generation)
        if known.refused == this:
            return None
        conditions = before.get("conditions") or []
        try:
            run = await self._jobs.adopt(thing)
        except (MeshFault, ResourceExhausted) as error:
            if isinstance(error, Aborted):
                raise
            told = rules.waits(error, generation=generation, before=conditions, now=self._clock.now())
            await self._tell_if_new(thing, known, told)
            raise
        except NotFound:
            raise
        except CallerError as error:
            if error.reason == NO_DATASET:      # applied before its dataset, or misnamed: the status says which
                told = rules.waits(error, generation=generation, before=conditions, now=self._clock.now())
                await self._tell_if_new(thing, known, told)
                return DATASET_S
            known.refused = this
            told = rules.refused(error, generation=generation, before=conditions, now=self._clock.now())
            logger.info("object %s/%s is refused: %s", *key, error)
            await self._tell_if_new(thing, known, told)
            event = Told(f"{ref_of(thing).uid}.{generation}", self._clock.now(), told["reason"],
                               told["message"][: MAX_NOTE], is_warning=True)
            await self._jobs.objects.tell(ref_of(thing), event)
            return None
        logger.info("object %s/%s is job %s", *key, run.job_id)
        await self._tell(thing, run, known, Synced())
        return None

    async def _after_the_end(self, thing: Object) -> None:
        """Its job has ended and is forgotten: so is the object, where that was the job's time to live."""
        if _is_over(thing):
            self._jobs.context.may_write(name_of(thing))
            await self._jobs.objects.delete(ref_of(thing))

    async def _without_object(self, key: Key) -> float | None:
        """The object is gone. Its job goes too: somebody has taken the finalizer away, or jobmaster did at the end."""
        orphans = [
            run for run in self._jobs.runs().values()
            if run.job.object is not None and (run.job.object.namespace, run.job.object.name) == key
        ]
        for run in orphans:
            ref = run.job.object
            if ref is None or await self._jobs.objects.get(ref) is not None:
                continue      # it is newer than what the watch has told
            logger.warning("job %s is deleted: its object %s/%s is gone", run.job_id, *key)
            await run.wish(lambda intent: intent.model_copy(update={"delete": True, "reason": "its object is gone"}))
        return LINGER_S if orphans else None

    # -- what is told ------------------------------------------------------------------------------------

    def _status(self, thing: Object, run: Run, synced: Synced) -> dict[str, Any]:
        wanted, pinned = wanted_of(run), pinned_of(run)
        return rules.status_of(
            run.job, run.spec, run.status, run.record,
            counts={role: Counts(wanted[role], pinned[role]) for role in SCALABLE},
            generation=int(thing["metadata"].get("generation", 0)), synced=synced,
            before=(thing.get("status") or {}).get("conditions") or [], now=self._clock.now(),
        )

    def _has_news(self, key: Key, thing: Object, run: Run) -> bool:
        known = self._known.get(key)
        if known is None:
            return True
        told, before = self._status(thing, run, known.synced), thing.get("status") or {}
        history = run.telling.history
        if rules.is_news(told, before) or (history and history[-1]["id"] not in known.seen):
            return True
        return told != before and self._clock.monotonic() >= known.told_at + self._progress_s

    async def _tell(self, thing: Object, run: Run, known: Known, synced: Synced) -> None:
        told, before = self._status(thing, run, synced), thing.get("status") or {}
        is_due = self._clock.monotonic() >= known.told_at + self._progress_s
        if told != before and (is_due or rules.is_news(told, before)):
            await self._tell_if_new(thing, known, told)
        await self._tell_events(ref_of(thing), run, known)

    async def _tell_if_new(self, thing: Object, known: Known, told: dict[str, Any]) -> None:
        if told == (thing.get("status") or {}):
            return
        self._jobs.context.may_write(name_of(thing))
        written = await self._jobs.objects.tell_status(ref_of(thing), told)
        known.told_at = self._clock.monotonic()
        self._reconciling.keep(thing, written)

    async def _tell_events(self, ref: ObjectRef, run: Run, known: Known) -> None:
        since = self._since.get(bucket_of(run.job_id), 0.0) - EVENTS_SINCE_S
        for entry in list(run.telling.history):
            if entry["id"] in known.seen:
                continue
            told = rules.event_of(entry)
            if told is not None and told.at >= since:
                if self._pace.lets(ref, now_s=self._clock.monotonic()):     # the others stay in the job's own history
                    self._jobs.context.may_write(run.job_id)
                    await self._jobs.objects.tell(ref, told)
            known.seen.add(entry["id"])
        if len(known.seen) > 2 * len(run.telling.history):
            known.seen &= {entry["id"] for entry in run.telling.history}


def _is_over(thing: Object) -> bool:
    """Its job has ended and was not to be kept for ever."""
    ended = (thing.get("status") or {}).get("phase") in ENDED and not thing["metadata"].get("deletionTimestamp")
    return ended and (thing.get("spec") or {}).get("ttl_after_end_s") is not None
