"""What users ask of jobs, and the registry of those that this jobmaster runs."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recmesh.runtime.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Violation,
)
from recmesh.runtime.telemetry import get_logger
from recmesh.spec.job import TrainingJob
from recmesh.spec.quantity import LEAST_MEMORY_BYTES, MIB, memory_fault
from services.jobmaster.app import submit as submission
from services.jobmaster.app import unreadable
from services.jobmaster.app.context import Context
from services.jobmaster.app.run import Run
from services.jobmaster.app.runner import Runner
from services.jobmaster.domain import plan as plans
from services.jobmaster.domain.facts import namespace_of
from services.jobmaster.domain.job import AcceptedJob, Intent, JobStatus, ObjectRef, Size
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.record import RunRecord
from services.jobmaster.domain.shards import BUCKETS, bucket_of
from services.jobmaster.domain.suspension import resumed, suspended

logger = get_logger(__name__)

READS_AT_ONCE = 32
"""Of the store, by a jobmaster that takes buckets: their jobs are without one meanwhile."""
NOT_HELD = "NOT_HELD"
RELOAD_S = 1.0
MAX_RELOAD_S = 10.0
DELETE_WAIT_S = 45.0
CHECKPOINT_WAIT_S = 60.0
MAX_TAIL = 2000
MAX_PAGE = 500
_UNREADABLE = (InvalidArgument, ValueError, TypeError)
"""What comes of documents that this version cannot read."""
SCALABLE = ("ps", "worker", "data", "evaluator")


@dataclass(frozen=True, slots=True)
class Tail:
    """The last lines of a place's processes."""

    role: str
    index: int
    incarnation: str
    lines: tuple[str, ...]


class NotHeld(Unavailable):
    """Another jobmaster runs this job, or will in a moment: ask that one, or again. Nothing was done."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"this jobmaster does not run job {job_id} (yet)", reason=NOT_HELD)
        self.job_id = job_id


class Jobs:
    """Users' use cases. A jobmaster answers for the jobs of the buckets that it holds, and of others with `NotHeld`."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.runners: dict[str, Runner] = {}
        self.unreadable: dict[str, Run] = {}
        """Jobs whose documents this version cannot read: shown as failed, and otherwise left alone."""
        self._reloading: set[str] = set()
        self.buckets: frozenset[int] = frozenset()
        """Whose jobs this jobmaster runs."""
        self.live_elsewhere: Callable[[], int] = lambda: 0
        """Jobs that live by other jobmasters, as far as it is known."""
        self._submitting = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()
        self._missed: frozenset[str] = frozenset()

    @property
    def is_leading(self) -> bool:
        """This jobmaster runs jobs, or would."""
        return bool(self.buckets)

    @property
    def live(self) -> int:
        """Jobs here that have not ended."""
        return sum(not runner.run.status.has_ended for runner in self.runners.values())

    def holds(self, name: str) -> bool:
        """Jobs of this name, or id, are run here."""
        return bucket_of(name) in self.buckets

    def check_holds(self, name: str) -> None:
        """NotHeld, or nothing."""
        if not self.holds(name):
            raise NotHeld(name)

    # -- buckets -----------------------------------------------------------------------------------------

    async def lead(self) -> None:
        """Holds all jobs from now on; for a jobmaster that is alone."""
        await self.hold(range(BUCKETS))

    async def follow(self) -> None:
        """Lets go of all jobs, also of those of buckets that were just being taken; their processes go on."""
        await self.release(range(BUCKETS))

    async def hold(self, buckets: Iterable[int]) -> None:
        """Runs the jobs of these buckets, too, from now on; their processes are found by the runners. Where one of them
        could not be read none is run: what is not held is not let go either, when another takes it."""
        new = frozenset(buckets) - self.buckets
        await self.context.cluster.find_again()
        ids = [job_id for job_id in await self.context.store.job_ids() if bucket_of(job_id) in new]
        try:
            await self._take_in(ids)
        except Exception:
            await self.release(new)
            raise
        self.buckets |= new
        self.context.cluster.watch(self._on_change)
        logger.info("%d bucket(s) taken, %d job(s) in them; held: %d", len(new), len(ids), len(self.buckets))

    async def release(self, buckets: Iterable[int]) -> None:
        """Lets go of the jobs of these buckets; their processes go on. What is being written for them is waited for."""
        old = frozenset(buckets)
        given = self.buckets & old
        self.buckets -= old
        async with self._submitting:            # what is being accepted is stored, and will be found by the next holder
            runners = [runner for job_id, runner in self.runners.items() if bucket_of(job_id) in old]
            for runner in runners:
                del self.runners[runner.run.job_id]
            self.unreadable = {job_id: run for job_id, run in self.unreadable.items() if bucket_of(job_id) not in old}
        await asyncio.gather(*(runner.stop() for runner in runners))
        if given or runners:
            logger.info("%d bucket(s) let go, %d job(s) in them; held: %d", len(given), len(runners), len(self.buckets))

    async def sweep(self) -> None:
        """Takes in jobs of held buckets that were stored by a jobmaster which held them before, after this one had
        looked: twice seen, and not known here."""
        known = self.runners.keys() | self.unreadable.keys() | self._reloading
        missed = frozenset(
            job_id for job_id in await self.context.store.job_ids() if self.holds(job_id) and job_id not in known
        )
        late, self._missed = missed & self._missed, missed
        async with self._submitting:
            await self._take_in([job_id for job_id in late if self.holds(job_id) and job_id not in self.runners])

    async def _take_in(self, ids: Sequence[str]) -> None:
        """Runs all of them, those that this version cannot read aside; raises before it runs the first where the store
        did not tell one."""
        turns = asyncio.Semaphore(READS_AT_ONCE)
        read = await asyncio.gather(*(self._read_in_turn(job_id, turns) for job_id in ids), return_exceptions=True)
        for found in read:
            if isinstance(found, BaseException) and not isinstance(found, _UNREADABLE):
                raise found
        for job_id, found in zip(ids, read, strict=True):
            try:
                if isinstance(found, BaseException):
                    raise found
                if found is not None and job_id not in self.runners:
                    self._run(*found)
            except _UNREADABLE as error:
                logger.exception("job %s cannot be read; it is left alone", job_id)
                self.unreadable[job_id] = unreadable.stand_in(self.context, job_id, why=str(error))

    def _on_change(self, job_id: str) -> None:
        runner = self.runners.get(job_id)
        if runner is not None:
            runner.run.wake()

    async def _read_in_turn(
        self, job_id: str, turns: asyncio.Semaphore
    ) -> tuple[AcceptedJob, JobStatus, RunRecord] | None:
        async with turns:
            return await self._read(job_id)

    async def _read(self, job_id: str) -> tuple[AcceptedJob, JobStatus, RunRecord] | None:
        """A job's documents in the store."""
        store = self.context.store
        job = await store.job(job_id)
        if job is None:
            return None
        status = await store.status(job_id) or JobStatus(job_id=job_id)
        record = await store.record(job_id) or submission.first_record(job)
        return job, status, record

    def _run(self, job: AcceptedJob, status: JobStatus, record: RunRecord) -> Run:
        run = Run(self.context, job, status, record)
        runner = Runner(run, on_gone=self._gone, on_lost=self._lost)
        self.runners[job.job_id] = runner
        runner.start()
        return run

    def _gone(self, run: Run) -> None:
        runner = self.runners.pop(run.job_id, None)
        if runner is not None:
            self._keep(runner.stop())

    def _lost(self, run: Run) -> None:
        """Somebody else wrote the job's documents. If this jobmaster still holds it, it reads them again."""
        runner = self.runners.get(run.job_id)
        if runner is not None and runner.run is run:
            del self.runners[run.job_id]
            self._reloading.add(run.job_id)
            self._keep(self._hold_again(runner))

    async def _hold_again(self, runner: Runner) -> None:
        job_id, delay_s = runner.run.job_id, RELOAD_S
        try:
            await runner.stop()
            while True:
                await self.context.clock.sleep(delay_s)
                try:
                    found = await self._read(job_id)
                    if found is None or not self.holds(job_id) or job_id in self.runners:
                        return
                    self._run(*found)
                    return
                except Exception:
                    logger.exception("job %s cannot be read again yet", job_id)
                    delay_s = min(2 * delay_s, MAX_RELOAD_S)
        finally:
            self._reloading.discard(job_id)

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def run_of(self, job_id: str) -> Run:
        """NotFound; NotHeld when another jobmaster runs it; Unavailable while it is read again."""
        self.check_holds(job_id)
        runner = self.runners.get(job_id)
        if runner is None:
            if job_id in self._reloading:
                raise Unavailable(f"job {job_id} is being read again", reason="RELOADING")
            if job_id in self.unreadable:
                return self.unreadable[job_id]
            raise NotFound(f"there is no job {job_id}", reason="NO_SUCH_JOB")
        return runner.run

    def runs(self) -> dict[str, Run]:
        """All that this jobmaster runs."""
        return {job_id: runner.run for job_id, runner in self.runners.items()}

    def held(self, job_id: str) -> Run:
        """For its processes: as `run_of`, but Unavailable when this version cannot read the job."""
        run = self.run_of(job_id)
        if job_id in self.unreadable:
            raise Unavailable(f"job {job_id} cannot be read", reason="UNREADABLE")
        return run

    # -- use cases ---------------------------------------------------------------------------------------

    async def submit(self, spec_json: str, *, request_id: str, submitter: str, dry_run: bool) -> Run:
        """A new job, or the one that this request made before. NotHeld names what another jobmaster is to be asked."""
        if not dry_run:
            earlier = await self.earlier(request_id, spec_json)
            if earlier is not None:
                return earlier
        checked = await submission.check(self.context, spec_json)
        if dry_run:
            job = AcceptedJob(
                job_id=checked.spec.name, spec_json=checked.spec.model_dump_json(), submitter=submitter,
                created=self.context.clock.now(), data_rows=checked.data_rows, data_bytes=checked.data_bytes,
            )
            status = JobStatus(job_id=job.job_id, reason="DryRun", notes=checked.notes)
            return Run(self.context, job, status, submission.first_record(job))
        return await self.accept(
            checked, request_id=request_id, submitter=submitter, spec_digest=submission.digest(spec_json)
        )

    async def accept(
        self, checked: submission.Checked, *, request_id: str, submitter: str, spec_digest: str | None,
        object: ObjectRef | None = None,
    ) -> Run:
        """A job of a specification that may run, or the one that this request made before.

        spec_digest: of what was submitted; None where that may have changed since, as an object does.
        """
        async with self._submitting:
            earlier = await self._made_by(request_id, spec_digest)
            if earlier is not None:
                return earlier
            self.check_holds(checked.spec.name if object is None else object.name)
            live = self.live + self.live_elsewhere()
            if live >= self.context.max_live_jobs:
                raise ResourceExhausted(f"{live} jobs live already", reason="TOO_MANY_JOBS")
            job, record = await submission.create(
                self.context, checked, request_id=request_id, submitter=submitter, spec_digest=spec_digest,
                object=object,
            )
            existing = self.runners.get(job.job_id)
            if existing is not None:
                return existing.run
            self.check_holds(job.job_id)
            run = self._run(job, JobStatus(job_id=job.job_id, notes=checked.notes), record)
        run.telling.submitted(
            name=checked.spec.name, owner=checked.spec.owner, submitter=submitter, request_id=request_id
        )
        return run

    async def earlier(self, request_id: str, spec_json: str) -> Run | None:
        """What this request made before. AlreadyExists when it came with another specification."""
        return await self._made_by(request_id, submission.digest(spec_json))

    async def _made_by(self, request_id: str, spec_digest: str | None) -> Run | None:
        job = await submission.earlier(self.context, request_id, spec_digest) if request_id else None
        if job is None:
            return None
        try:
            return self.run_of(job.job_id)
        except NotFound:
            return None  # stored, but never held: the answer of the store was lost

    def page(
        self, *, owner: str = "", phase: str = "", labels: Mapping[str, str], limit: int, page_token: str,
        namespace: str = "",
    ) -> tuple[Sequence[Run], str]:
        """Of the jobs here, the newest first; and the token of the next page. InvalidArgument for a phase that there
        is not."""
        if phase and phase.lower() not in (known.lower() for known in Phase):
            reason = f"there is no phase {phase}; there are {', '.join(Phase)}"
            raise InvalidArgument("the jobs cannot be listed", violations=[Violation("phase", reason)])
        runs = [*(runner.run for runner in self.runners.values()), *self.unreadable.values()]
        runs = [
            run for run in runs
            if (not owner or run.spec.owner == owner)
            and (not namespace or namespace_of(run.spec, run.job) == namespace)
            and (not phase or run.status.phase.lower() == phase.lower())
            and all(run.spec.labels.get(name) == value for name, value in labels.items())
        ]
        runs.sort(key=lambda run: (-run.job.created, run.job_id))
        if page_token:
            created, _, job_id = page_token.partition("/")
            try:
                after = (-float(created), job_id)
            except ValueError:
                raise InvalidArgument(
                    "the page token is none of ours", violations=[Violation("page_token", "is damaged")]
                ) from None
            runs = [run for run in runs if (-run.job.created, run.job_id) > after]
        size = min(limit or MAX_PAGE, MAX_PAGE)
        page = runs[:size]
        more = f"{page[-1].job.created!r}/{page[-1].job_id}" if len(runs) > size else ""
        return page, more

    async def stop(self, job_id: str, *, reason: str, finish: bool) -> Run:
        """Stops the job; with `finish` it succeeds at its next committed snapshot."""
        run = self.run_of(job_id)
        if run.status.has_ended:
            raise FailedPrecondition(f"job {job_id} has ended: {run.status.phase}", reason="JOB_ENDED")

        def change(intent: Intent) -> Intent:
            wish: dict[str, object] = {"finish": True} if finish and not intent.stop else {"stop": True}
            return intent.model_copy(update=wish | {"reason": reason or intent.reason})

        await run.wish(change)
        return run

    async def scale(self, job_id: str, *, role: str, replicas: int, clear: bool) -> Run:
        """Pins the number of a role's processes, or lifts the pin: then they stay as many until brain decides anew."""
        run = self.run_of(job_id)
        check_scale(run.spec, role, replicas, clear=clear)
        check_trains(run)
        fixed, planned = plans.pin(run.spec, run.job.intent, role), run.status.plan.get(role)
        if clear and fixed is not None and planned is not None and planned.replicas != fixed:
            # What was planned before the pin is as old as the pin. First, for after the wish that plan would hold.
            run.update(plan={**run.status.plan, role: planned.model_copy(update={"replicas": fixed})})
            await run.flush()

        def change(intent: Intent) -> Intent:
            pins = {name: count for name, count in intent.replicas.items() if name != role}
            cleared = [name for name in intent.cleared if name != role]
            if clear:
                cleared.append(role)
            else:
                pins[role] = replicas
            return intent.model_copy(update={"replicas": pins, "cleared": tuple(cleared)})

        await run.wish(change)
        return run

    async def resize(self, job_id: str, *, role: str, cpu: float, memory_bytes: int) -> Run:
        """Another size of a role's processes; 0 leaves cores or memory as they are."""
        run = self.run_of(job_id)
        check_resize(run.spec, role, cpu=cpu, memory_bytes=memory_bytes)
        check_trains(run)

        def change(intent: Intent) -> Intent:
            before = intent.sizes.get(role, Size())
            size = Size(cpu=cpu or before.cpu, memory_bytes=memory_bytes or before.memory_bytes)
            return intent.model_copy(update={"sizes": intent.sizes | {role: size}})

        if memory_bytes and role in run.status.memory:
            # What was raised before is overruled. First, for after the wish nobody would do it in a crash's stead.
            run.update(memory={name: limit for name, limit in run.status.memory.items() if name != role})
            await run.flush()
        await run.wish(change)
        return run

    async def suspend(self, job_id: str, *, reason: str) -> Run:
        """The job saves what it has learned, its processes go, and it waits for `resume`."""
        run = self.run_of(job_id)
        check_trains(run)
        await run.wish(lambda intent: suspended(intent, reason=reason))
        return run

    async def resume(self, job_id: str) -> Run:
        """The job goes on from what it saved."""
        run = self.run_of(job_id)
        check_trains(run)
        await run.wish(resumed)
        return run

    async def checkpoint(self, job_id: str) -> int:
        """The number of a snapshot that was cut after this was asked."""
        run = self.run_of(job_id)
        if run.record.phase not in ("open", "finishing"):
            message = f"job {job_id} is {run.status.phase}: there is nothing to save"
            raise FailedPrecondition(message, reason="NOT_TRAINING")
        await run.wish(lambda intent: intent.model_copy(update={"checkpoint": intent.checkpoint + 1}))
        asked = run.job.intent.checkpoint
        deadline = self.context.clock.monotonic() + CHECKPOINT_WAIT_S
        while run.status.checkpoint_served < asked:
            if run.status.has_ended or self.context.clock.monotonic() > deadline:
                raise Unavailable(f"job {job_id} has no new snapshot yet", reason="NOT_COMMITTED")
            await self.context.clock.sleep(0.05)
        return run.record.last_committed

    async def delete(self, job_id: str) -> None:
        """Stops the job if need be, and removes everything of it except its model."""
        run = self.run_of(job_id)
        if job_id in self.unreadable:
            await unreadable.remove(run)
            self.unreadable.pop(job_id, None)
            return
        await run.wish(lambda intent: intent.model_copy(update={"delete": True, "reason": "deleted"}))
        deadline = self.context.clock.monotonic() + DELETE_WAIT_S
        while job_id in self.runners or job_id in self._reloading:
            if self.context.clock.monotonic() > deadline:
                raise Unavailable(f"job {job_id} is being deleted", reason="STILL_DELETING")
            await self.context.clock.sleep(0.05)

    async def logs(self, job_id: str, *, role: str, index: int, tail: int) -> list[Tail]:
        """The last lines of each place's processes."""
        run = self.run_of(job_id)
        lines = min(tail or 100, MAX_TAIL)
        result = []
        for state in run.status.roles:
            if (role and state.role != role) or (index >= 0 and state.index != index):
                continue
            text = await self.context.cluster.tail(job_id, state.name, lines=lines)
            result.append(Tail(state.role, state.index, state.incarnation, tuple(text)))
        return result

    def events(self, job_id: str, *, limit: int) -> list[dict[str, Any]]:
        """What happened, oldest first: the newest that are kept."""
        history = list(self.run_of(job_id).telling.history)
        return history[-limit:] if limit else history


def check_trains(run: Run) -> None:
    """FailedPrecondition for a job that has ended, or whose last snapshot is committed."""
    if run.status.has_ended or run.status.ending is not None or run.record.phase == "closed":
        raise FailedPrecondition(f"job {run.job_id} trains no more", reason="JOB_ENDED")


def check_scale(spec: TrainingJob, role: str, replicas: int, *, clear: bool) -> None:
    """InvalidArgument with the reason; nothing when it may be done."""

    def refuse(path: str, reason: str) -> InvalidArgument:
        what = role or "this role"
        return InvalidArgument(f"{what} cannot be scaled", violations=[Violation(path, reason)])

    if role not in SCALABLE:
        raise refuse("role", f"{role!r} is no role that can be scaled; worker, ps, data and evaluator are")
    if clear:
        return
    bounds = getattr(spec.roles, role)
    least = 0 if role in ("evaluator", "data") else 1
    if not least <= replicas <= bounds.max:
        raise refuse("replicas", f"must be from {least} to {bounds.max} (roles.{role}.max)")


def check_resize(spec: TrainingJob, role: str, *, cpu: float, memory_bytes: int) -> None:
    """InvalidArgument names what is wrong."""
    wrong = []
    most = getattr(spec.roles, role).memory_max if role in SCALABLE else None
    if role not in SCALABLE:
        wrong.append(Violation("role", f"{role!r} is no role that can be resized; worker, ps, data and evaluator are"))
    if not math.isfinite(cpu) or cpu < 0:
        wrong.append(Violation("cpu", f"{cpu:g} is no number of cores"))
    if not cpu and not memory_bytes:
        wrong.append(Violation("cpu", "neither cpu nor memory is given"))
    if memory_bytes and (reason := memory_fault(memory_bytes)):
        wrong.append(Violation("memory", reason))
    elif memory_bytes and role == "data" and memory_bytes < spec.roles.data.buffer + LEAST_MEMORY_BYTES:
        wrong.append(Violation("memory", "leaves less than 64 MiB beside the buffer (roles.data.buffer)"))
    if most is not None and memory_bytes > most:
        wrong.append(Violation("memory", f"is {memory_bytes / MIB:,.0f} MiB, above the {most / MIB:,.0f} MiB of "
                                         f"roles.{role}.memory_max"))
    if wrong:
        raise InvalidArgument(f"{role or 'this role'} cannot be resized", violations=wrong)


def wanted_of(run: Run) -> dict[str, int]:
    """How many processes of each role are wanted."""
    return {
        role: plans.wanted(run.spec, run.job.intent, run.status.plan, role)
        for role in SCALABLE
    }


def pinned_of(run: Run) -> dict[str, bool]:
    """Which roles a user has pinned."""
    return {
        role: plans.pin(run.spec, run.job.intent, role) is not None for role in SCALABLE
    }
