"""One job as its jobmaster holds it: the documents, what was heard, and how changes become durable."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from recmesh.runtime.errors import Aborted, MeshFault, ResourceExhausted, Unavailable
from recmesh.runtime.telemetry import get_logger
from recmesh.spec.job import TrainingJob
from services.jobmaster.app.context import Context
from services.jobmaster.app.telling import Telling
from services.jobmaster.domain import phase as phases
from services.jobmaster.domain import stamps
from services.jobmaster.domain.handoff import Handoff
from services.jobmaster.domain.job import (
    MAX_TRANSITIONS,
    AcceptedJob,
    Intent,
    JobStatus,
    RoleState,
    Transition,
)
from services.jobmaster.domain.ledgers import Interval
from services.jobmaster.domain.minutes import Minutes
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.record import RunRecord
from services.jobmaster.domain.tuning import SteadyRate
from services.jobmaster.domain.vitals import Vitals
from services.jobmaster.peers import QueueProgress

logger = get_logger(__name__)

WISH_S = 3.0
"""So long what is being stored for users is waited for when a run is closed."""

Document = TypeVar("Document", AcceptedJob, JobStatus, RunRecord)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Pending:
    """The effect of a decision that is still to be seen."""

    before: float
    """Samples per second when it was decided."""
    due: float | None = None
    """None: it is not done yet."""


class LostRun(Exception):
    """Somebody else has written what only this job's runner writes: another jobmaster holds it."""


class Run:
    """Memory of a job. `status` changes at once and is made durable by `flush`; `record` only by CAS."""

    def __init__(self, context: Context, job: AcceptedJob, status: JobStatus, record: RunRecord) -> None:
        self.context = context
        self.job = job
        self.spec = TrainingJob.parse(orjson.loads(job.spec_json))
        self.status = stamps.none_ahead(
            status, now=context.clock.now(), longest_pause_s=context.limits.retry_ceiling_s
        ).model_copy(update={"revision": 0})
        self.record = record
        self._wishing, self._closed = asyncio.Lock(), False
        self.vitals = Vitals()
        self.minutes = Minutes(self.spec.data.label_columns if self.spec.data is not None else ())
        self.steady = SteadyRate()
        self.queue: QueueProgress | None = None
        self.queue_opening: asyncio.Task[object] | None = None
        """OpenRun of the first generation, begun while processes start."""
        self.passed_over: list[str] = []
        """Why snapshots could not be restored, until the rollback to an older one is told."""
        self.killing: dict[str, float] = {}
        self.waited: dict[str, float] = {}
        """When a process was last seen waiting for its place in the cluster, by name."""
        self.killed_for: dict[str, str] = {}
        """By process name: why it was killed without warning."""
        self.handoff = Handoff.first(context.limits.move_slots, context.limits.freeze_s)
        """The next one."""
        self.copied = 0.0
        """Slots of the move under way that are copied, about."""
        self.queued_since: float | None = None
        """Since when the queue has positions that nobody holds."""
        self.work_since: float | None = None
        """Since when the queue has positions to train, held or not."""
        self.unfit: set[str] = set()
        """Processes that cannot be given another size while they run, by name."""
        self.errors: dict[str, str] = {}
        """By process name: the last words of those that told them."""
        self.effects_due: dict[int, Pending] = {}
        """By the decision's number. A jobmaster tells of the effects of its own decisions only."""
        self.data_fingerprint: str | None = None
        """Of the way in which its data are read, once it was asked for."""
        self.watching_since = context.clock.now()
        self.life = asyncio.Lock()
        """Held while brain is told that the job holds nothing, or that it begins: the order is theirs."""
        self.telling = Telling(context, job.job_id)
        self._wake = asyncio.Event()
        self._saved = self.status
        self._status_revision = status.revision
        self._status_lock = asyncio.Lock()
        self._record_lock = asyncio.Lock()
        self._record_changed = asyncio.Event()
        self._kept: set[asyncio.Task[Any]] = set()

    @property
    def job_id(self) -> str:
        """Its name in the mesh."""
        return self.job.job_id

    @property
    def quarantine(self) -> list[Interval]:
        """Batches to set aside, in the order in which they were found."""
        enough, record = self.context.limits.deaths_to_quarantine, self.record
        aside = {*record.voids, *record.pending_voids}
        return [item.batch for item in self.status.deadly if item.deaths >= enough and item.batch not in aside]

    @property
    def why_scaled(self) -> str:
        """Why counts change: a plan under trial, a loan to serving, or what a user said."""
        trial = self.status.trial
        if trial is not None:
            return trial.taken_back or trial.why
        last = self.status.timeline[-1] if self.status.timeline else None
        if last is not None and last.matter == "loan" and not last.done:
            return f"loan: {last.seen}"
        return self.job.intent.reason

    # -- waking ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something changed: the runner should look now."""
        self._wake.set()

    async def woken(self, timeout_s: float) -> None:
        """Waits for `wake`, at most so long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    # -- status ------------------------------------------------------------------------------------------

    def update(self, **changes: object) -> None:
        """Changes the status in memory; the next `flush` makes it durable."""
        self.status = self.status.model_copy(update=changes)

    def put_role(self, role: RoleState) -> None:
        """The place's new state, in memory."""
        self.status = self.status.with_role(role)

    def slots_placed(self, servers: tuple[int, ...]) -> None:
        """All slots are on these parameter servers, as wanted; in memory, and the event where their number changed."""
        before = len(self.status.settled_ps)
        if before and before != len(servers):
            self.telling.scaled(role="ps", before=before, after=len(servers), reason=self.why_scaled)
        self.update(settled_ps=servers, rebalance="", relief=None, placed_at=self.context.clock.now())

    def note(self, text: str, *, instead_of: str = "") -> None:
        """A line for the user, once, in place of older ones that begin as `instead_of`."""
        self.status = self.status.with_note(text, instead_of=instead_of)

    def move(self, target: Phase, *, reason: str, message: str = "") -> None:
        """Another phase, in memory, and the event that says so."""
        source, now = self.status.phase, self.context.clock.now()
        phases.check(source, target)
        step = Transition(source=source, target=target, reason=reason, at=now)
        self.update(
            phase=target, reason=reason, message=message,
            transitions=(*self.status.transitions, step)[-MAX_TRANSITIONS:],
        )
        logger.info("job %s: %s -> %s (%s) %s", self.job_id, source, target, reason, message)
        self.telling.transitioned(step, message, number=len(self.status.transitions))

    async def flush(self) -> None:
        """The status in memory is in the store when this returns. LostRun."""
        await self._keep(self._flush())

    @property
    def is_dirty(self) -> bool:
        """Something in memory is not yet stored."""
        return self.status != self._saved

    async def _flush(self) -> None:
        store = self.context.store
        async with self._status_lock:
            while self.is_dirty:
                wanted = self.status
                document = wanted.model_copy(update={"revision": self._status_revision})
                saved = await self._durably(document, store.save_status, lambda: store.status(self.job_id))
                self._status_revision, self._saved = saved.revision, wanted

    # -- the run record ----------------------------------------------------------------------------------

    async def change_record(self, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
        """Compare-and-set of the record by a rule of domain.record. Refused, LostRun.

        Once begun it is carried through, also when the caller is cancelled: what is in the store and what is
        in memory may not differ.
        """
        return await self._keep(self._change_record(change))

    async def _change_record(self, change: Callable[[RunRecord], RunRecord]) -> RunRecord:
        async with self._record_lock:
            wanted = change(self.record)
            if wanted != self.record:
                store = self.context.store
                self.record = await self._durably(
                    wanted, store.save_record, lambda: store.record(self.job_id)
                )
                self._record_changed.set()
                self._record_changed = asyncio.Event()
            return self.record

    async def record_newer_than(self, gen: int, *, wait_s: float) -> RunRecord:
        """The record, once a generation newer than `gen` is open or the job is over; or after the wait."""
        try:
            async with asyncio.timeout(wait_s):
                while not (self.record.phase == "closed" or _is_open_after(self.record, gen)):
                    await self._record_changed.wait()
        except TimeoutError:
            pass
        return self.record

    async def record_news(self, *, timeout_s: float) -> None:
        """Waits for the record's next change, at most so long."""
        changed = self._record_changed
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            pass

    async def no_move_pending(self) -> RunRecord:
        """The record, once no slots are between two servers: that takes milliseconds, or until one of them dies."""
        while self.record.moving:
            await self.record_news(timeout_s=1.0)
        return self.record

    # -- users' wishes -----------------------------------------------------------------------------------

    async def wish(self, change: Callable[[Intent], Intent]) -> None:
        """Changes what users want of the job; durable when this returns. Unavailable once the run is closed."""
        async with self._wishing:
            if self._closed:
                raise Unavailable(f"job {self.job_id} is being handed over", reason="NOT_HELD")
            await self._wish(change)

    async def _wish(self, change: Callable[[Intent], Intent]) -> None:
        store, job_id = self.context.store, self.job_id
        while True:
            intent = change(self.job.intent)
            if intent == self.job.intent:
                return
            try:
                self.job = await store.save_job(self.job.model_copy(update={"intent": intent}))
            except Aborted:
                newest = await store.job(job_id)
                if newest is None:
                    raise LostRun(f"job {job_id} is gone") from None
                self.job = newest
                continue
            self.wake()
            return

    # -- making durable ----------------------------------------------------------------------------------

    async def _durably(
        self,
        document: Document,
        save: Callable[[Document], Awaitable[Document]],
        load: Callable[[], Awaitable[Document | None]],
    ) -> Document:
        """Retries while the store is away; an answer that was lost is recognised by reading again."""
        delay_s = 0.1
        while True:
            try:
                return await save(document)
            except Aborted:
                current = await load()
                if current is not None and _same(current, document):
                    return current
                raise LostRun(f"{type(document).__name__} of {self.job_id} was written by another") from None
            except (MeshFault, ResourceExhausted) as fault:   # a full disk is an absence, too
                logger.warning("job %s: the store is away: %s", self.job_id, fault.message)
                await self.context.clock.sleep(delay_s)
                delay_s = min(2 * delay_s, 2.0)

    async def _keep(self, work: Coroutine[Any, Any, Result]) -> Result:
        # Not in the caller's context: its deadline must not cut a write short.
        task = asyncio.create_task(work, context=contextvars.Context())
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
        return await asyncio.shield(task)

    def in_background(self, work: Coroutine[Any, Any, object]) -> None:
        """Runs beside the runner; it must handle its own errors."""
        task = asyncio.create_task(work, context=contextvars.Context())
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    async def close(self) -> None:
        """Ends what runs beside the runner. What users want is stored before, or refused."""
        try:
            async with asyncio.timeout(WISH_S), self._wishing:
                self._closed = True
        except TimeoutError:
            self._closed = True
        tasks = [*self._kept]
        if self.queue_opening is not None:
            tasks.append(self.queue_opening)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _same(a: Document, b: Document) -> bool:
    return a.model_copy(update={"revision": 0}) == b.model_copy(update={"revision": 0})


def _is_open_after(record: RunRecord, gen: int) -> bool:
    return record.gen > gen and record.phase in ("open", "finishing")


