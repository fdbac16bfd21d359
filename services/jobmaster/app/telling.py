"""What a job tells the world: events on the bus, and their history in the store.

Neither may hold training up: events go through a bounded queue, and the newest matter most when the bus is
away for long. A transition's event has a fixed id: telling it again after a restart is no second event.
"""

import asyncio
from collections import deque
from typing import Any

from recmesh.runtime.errors import InvalidArgument, MeshError
from recmesh.runtime.events import Event, EventType, catalog
from recmesh.runtime.events.types import Payload
from recmesh.runtime.telemetry import current_traceparent, get_logger
from services.jobmaster.app.context import Context
from services.jobmaster.domain.job import Decision, RoleState, SlowWorker, Transition
from services.jobmaster.domain.ledgers import Interval
from services.jobmaster.domain.minutes import Minute
from services.jobmaster.store import MAX_EVENTS

logger = get_logger(__name__)

MAX_WAITING = 500
MAX_TEXT = 600
"""Characters of a message in an event; the history of a job stays under the bus's message limit."""


class Telling:
    """Events of one job, in order."""

    def __init__(self, context: Context, job_id: str) -> None:
        self._context = context
        self._job_id = job_id
        self._waiting: deque[Event[Any]] = deque(maxlen=MAX_WAITING)
        self._something = asyncio.Event()
        self._nothing = asyncio.Event()
        self._nothing.set()
        self.history: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._unsaved = False

    # -- facts -------------------------------------------------------------------------------------------

    def submitted(self, *, name: str, owner: str, submitter: str, request_id: str = "") -> None:
        """The job was accepted."""
        data = catalog.JobSubmitted(name=name, owner=owner, submitter=submitter, request_id=request_id)
        self._tell(catalog.JOB_SUBMITTED, data, event_id=f"{self._job_id}.submitted")

    def transitioned(self, step: Transition, message: str, *, number: int) -> None:
        """The job has another phase."""
        data = catalog.JobTransitioned(
            from_phase=step.source, to_phase=step.target, reason=step.reason, message=message[:MAX_TEXT]
        )
        event_id = f"{self._job_id}.transition.{number}.{int(step.at * 1000)}"
        self._tell(catalog.JOB_TRANSITIONED, data, event_id=event_id, at=step.at)

    def progressed(
        self, *, samples: int, total: int, samples_per_s: float, loss: float | None, auc: float | None
    ) -> None:
        """How far the job is. Too frequent for the history."""
        data = catalog.JobProgressed(
            samples=samples, total=total, samples_per_s=samples_per_s, loss=loss, auc=auc
        )
        self._tell(catalog.JOB_PROGRESSED, data, keep=False)

    def measured(self, minute: Minute) -> None:
        """Loss and AUC of a minute. Too frequent for the history."""
        data = catalog.JobMeasured(at=minute.at, samples=minute.samples, loss=minute.loss, auc=minute.auc)
        self._tell(catalog.JOB_MEASURED, data, keep=False)

    def rate(self, samples_per_s: float, *, at: float, step_s: float) -> None:
        """The job's throughput, for the forecaster."""
        series = f"job/{self._job_id}/samples"
        data = catalog.RateObserved(series=series, step_s=step_s, points=[(at, samples_per_s)])
        self._tell(catalog.RATE_OBSERVED, data, keep=False, entity=f"job-{self._job_id}")

    def scaled(self, *, role: str, before: int, after: int, reason: str) -> None:
        """Another number of processes is wanted."""
        data = catalog.JobScaled(role=role, from_replicas=before, to_replicas=after, reason=reason)
        self._tell(catalog.JOB_SCALED, data)

    def slots_moved(self, data: catalog.JobSlotsMoved) -> None:
        """Slots have another parameter server."""
        self._tell(catalog.JOB_SLOTS_MOVED, data)

    def role_resized(self, role: RoleState, *, cpu: float, memory_bytes: int) -> None:
        """A process got other limits while it ran."""
        data = catalog.JobRoleResized(role=role.role, index=role.index, cpu=cpu, memory_bytes=memory_bytes)
        self._tell(catalog.JOB_ROLE_RESIZED, data)

    def role_started(self, role: RoleState) -> None:
        """A process was started."""
        data = catalog.JobRoleStarted(
            role=role.role, index=role.index, incarnation=role.incarnation, handle=role.handle,
            restarts=role.attempt - 1,
        )
        self._tell(catalog.JOB_ROLE_STARTED, data)

    def role_exited(self, role: RoleState, *, code: int | None, reason: str, expected: bool) -> None:
        """A process has ended."""
        data = catalog.JobRoleExited(
            role=role.role, index=role.index, incarnation=role.incarnation, exit_code=code,
            reason=reason[:MAX_TEXT], expected=expected,
        )
        self._tell(catalog.JOB_ROLE_EXITED, data)

    def batch_quarantined(self, batch: Interval, *, deaths: int, partly_applied: bool) -> None:
        """A batch was set aside."""
        line, lo, hi = batch
        reason = "it was applied in part" if partly_applied else ""
        data = catalog.JobBatchQuarantined(line=line, lo=lo, hi=hi, attempts=deaths, reason=reason)
        self._tell(catalog.JOB_BATCH_QUARANTINED, data)

    def snapshot_committed(self, *, snapshot: int, gen: int, samples: int, size_bytes: int) -> None:
        """A snapshot exists."""
        data = catalog.JobSnapshotCommitted(
            snapshot=snapshot, samples=samples, gen=gen, size_bytes=size_bytes
        )
        self._tell(catalog.JOB_SNAPSHOT_COMMITTED, data)

    def evaluated(self, *, samples: int, metrics: dict[str, float], snapshot: int) -> None:
        """The model was measured."""
        data = catalog.JobEvaluated(samples=samples, metrics=metrics, snapshot=snapshot)
        self._tell(catalog.JOB_EVALUATED, data)

    def rolled_back(self, *, gen: int, snapshot: int, reason: str, lost_samples: int) -> None:
        """A new generation began from a snapshot."""
        data = catalog.JobRolledBack(
            snapshot=snapshot, gen=gen, reason=reason[:MAX_TEXT], lost_samples=lost_samples
        )
        self._tell(catalog.JOB_ROLLED_BACK, data)

    def decided(self, item: Decision) -> None:
        """A line of the timeline."""
        data = catalog.JobDecided(
            decision=item.number, matter=item.matter, place=item.place, seen=item.seen, decided=item.decided
        )
        self._tell(catalog.JOB_DECIDED, data)

    def effect_observed(self, item: Decision) -> None:
        """What came of it."""
        data = catalog.JobEffectObserved(
            decision=item.number, matter=item.matter, done=item.done, effect=item.effect
        )
        self._tell(catalog.JOB_EFFECT_OBSERVED, data)

    def straggler_detected(
        self, worker: SlowWorker, *, answer: str, shard_batches: int, window_s: float, reason: str
    ) -> None:
        """A worker is slow."""
        data = catalog.JobStragglerDetected(
            index=worker.index, incarnation=worker.incarnation, share=worker.share, window_s=window_s,
            answer=answer, shard_batches=shard_batches, reason=reason[:MAX_TEXT],
        )
        self._tell(catalog.JOB_STRAGGLER_DETECTED, data)

    def straggler_recovered(self, worker: SlowWorker, *, reason: str) -> None:
        """A worker is slow no more."""
        data = catalog.JobStragglerRecovered(
            index=worker.index, incarnation=worker.incarnation, reason=reason[:MAX_TEXT]
        )
        self._tell(catalog.JOB_STRAGGLER_RECOVERED, data)

    def memory_raised(self, *, role: str, before: int, after: int, cause: str, reason: str) -> None:
        """Processes of a role may use more memory."""
        data = catalog.JobMemoryRaised(
            role=role, from_bytes=before, to_bytes=after, cause=cause, reason=reason[:MAX_TEXT]
        )
        self._tell(catalog.JOB_MEMORY_RAISED, data)

    def executor_room(self, role: RoleState, *, accepting: bool, queued: int) -> None:
        """A data executor has room for others' tasks, or none. Too frequent for the history."""
        data = catalog.JobExecutorRoomChanged(
            index=role.index, incarnation=role.incarnation, address=role.address, accepting=accepting, queued=queued
        )
        self._tell(catalog.JOB_EXECUTOR_ROOM_CHANGED, data, keep=False)

    def role_notified(self, role: RoleState, *, reason: str) -> None:
        """A process was told by others to go."""
        data = catalog.JobRoleNotified(
            role=role.role, index=role.index, incarnation=role.incarnation, reason=reason[:MAX_TEXT]
        )
        self._tell(catalog.JOB_ROLE_NOTIFIED, data)

    def _tell(
        self,
        kind: EventType[Any],
        data: Payload,
        *,
        event_id: str = "",
        at: float = 0.0,
        keep: bool = True,
        entity: str = "",
    ) -> None:
        now = at or self._context.clock.now()
        event_id = event_id or f"{self._context.rng.getrandbits(128):032x}"
        event = Event(
            type=kind, entity_id=entity or self._job_id, data=data, id=event_id, time=now,
            traceparent=current_traceparent(),   # it is sent later, outside of the call that made it
        )
        self._waiting.append(event)
        self._something.set()
        self._nothing.clear()
        if keep:
            item = {"id": event_id, "type": kind.name, "at": now, "data": data.model_dump(mode="json")}
            self.history.append(item)
            self._unsaved = True

    # -- sending and keeping -----------------------------------------------------------------------------

    async def load(self) -> None:
        """The history as it was stored."""
        self.history.extendleft(reversed(await self._context.store.events(self._job_id)))

    async def save(self) -> None:
        """Stores the history, when it has changed."""
        if self._unsaved:
            self._unsaved = False
            try:
                await self._context.store.save_events(self._job_id, list(self.history))
            except MeshError as error:
                self._unsaved = True
                logger.warning("job %s: its history is not stored: %s", self._job_id, error.message)

    async def send_all(self) -> None:
        """Sends events as they come; runs until it is cancelled."""
        delay_s = 0.1
        while True:
            if not self._waiting:
                self._something.clear()
                await self._something.wait()
            event = self._waiting[0]
            try:
                await self._context.publish(event)
                delay_s = 0.1
            except InvalidArgument as error:
                logger.error("job %s: %s is not sent: %s", self._job_id, event.type.name, error.message)
            except MeshError as error:
                logger.warning("job %s: %s waits: %s", self._job_id, event.type.name, error.message)
                await self._context.clock.sleep(delay_s)
                delay_s = min(2 * delay_s, 5.0)
                continue
            if self._waiting and self._waiting[0] is event:
                self._waiting.popleft()
            if not self._waiting:
                self._nothing.set()

    async def drain(self, *, timeout_s: float) -> None:
        """Waits until everything is sent, at most so long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._nothing.wait()
        except TimeoutError:
            logger.warning("job %s: %d events were not sent", self._job_id, len(self._waiting))
