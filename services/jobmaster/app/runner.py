"""The runner of one job: it looks, decides by `domain.rules`, and acts, until the job is gone.

Long procedures run beside it, one at a time, and moves of slots beside those, so that a process that ends is seen
at once. Whatever fails for
want of a service is tried again with growing pauses; the loop itself never ends by an error.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from recmesh.runtime.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    MeshError,
    NotFound,
)
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app import ending, generation, moving, planning, publishing, queue, snapshots, suspending
from services.jobmaster.app.acts import Acts
from services.jobmaster.app.feeding import Feeder
from services.jobmaster.app.lending import Lender
from services.jobmaster.app.memory import MemoryWatch
from services.jobmaster.app.profile import Profiler
from services.jobmaster.app.run import LostRun, Run
from services.jobmaster.app.scaling import Scaler
from services.jobmaster.app.straggling import StragglerWatch
from services.jobmaster.app.timeline import see_effects
from services.jobmaster.app.tuning import Tuner
from services.jobmaster.cluster import RoleProcess
from services.jobmaster.domain.exits import retry_delay_s
from services.jobmaster.domain.job import Ending
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.record import Refused
from services.jobmaster.domain.rules import decide, next_look_s
from services.jobmaster.domain.situation import Launch, Operate, Process, Seen, Situation
from services.jobmaster.domain.snapshot import NotAPartition
from services.jobmaster.domain.vitals import share_of_calls

logger = get_logger(__name__)

FLUSH_S = 2.0
"""Progress is stored at most so often; what matters is stored at once."""
TRIED_AGAIN = "; it is tried again"
"""How a message ends that holds only until the next success."""
FINAL = (InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, DataLoss)
"""Asking again would be answered in the same way; all other errors pass."""
MAX_ROUNDS = 100
"""Decisions in a row without waiting; more would be a rule that does not change what it looks at."""


@dataclass(slots=True)
class Lane:
    """One procedure at a time."""

    name: str = ""
    task: asyncio.Task[None] | None = None
    retry_at: float = 0.0
    """After a failure nothing begins here before it."""


class Runner:
    """Owns the tasks of one job."""

    def __init__(self, run: Run, *, on_gone: Callable[[Run], None], on_lost: Callable[[Run], None]) -> None:
        self.run = run
        self._on_gone, self._on_lost = on_gone, on_lost
        self._acts = Acts(run)
        self._profiler = Profiler(run)
        self._tasks: list[asyncio.Task[None]] = []
        self._operation, self._moves, self._publishing = Lane(), Lane(), Lane()
        self._failures: dict[str, int] = {}
        """In a row, by procedure."""
        self._refusals: dict[str, int] = {}
        self._flushed_at = 0.0
        self._gone = False

    def start(self) -> None:
        """Begins in a context of its own: a job outlives the call (and its deadline) that submitted it."""
        watch = queue.QueueWatch(self.run)
        works = (
            self._loop(), watch.watch(), self.run.telling.send_all(), self._profiler.tell(),
            StragglerWatch(self.run).watch(), MemoryWatch(self.run).watch(), Tuner(self.run).watch(),
            Feeder(self.run).watch(), Scaler(self.run).watch(), Lender(self.run).watch(),
        )
        for work in works:
            self._tasks.append(asyncio.create_task(work, context=contextvars.Context()))

    async def stop(self) -> None:
        """Ends the tasks; the job's processes go on."""
        tasks = [*self._tasks, *(lane.task for lane in self._lanes if lane.task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.run.close()
        if not self._gone and self.run.is_dirty:
            try:
                async with asyncio.timeout(2.0):
                    await self.run.flush()
            except (TimeoutError, LostRun, MeshError) as error:
                logger.warning("job %s: the last status is not stored: %s", self.run.job_id, error)
                await self.run.close()      # else it would be tried for ever, and stored when the job is long another's

    # -- the loop ----------------------------------------------------------------------------------------

    async def _loop(self) -> None:
        failures = 0
        recovered = False
        while not self._gone:
            try:
                if not recovered:
                    await self._recover()
                    recovered = True
                await self._round()
                failures = 0
            except LostRun as error:
                logger.warning("job %s: %s", self.run.job_id, error)
                self._on_lost(self.run)
                return
            except Exception:
                failures += 1
                logger.exception("job %s: the round failed", self.run.job_id)
                await self.run.context.clock.sleep(min(0.1 * 2.0**failures, 5.0))
        self._on_gone(self.run)

    async def _recover(self) -> None:
        """What a jobmaster does that has just begun to hold the job."""
        run = self.run
        await run.telling.load()
        if run.record.gen and not run.status.has_ended:
            await generation.take_over(run)
            if run.record.last_committed:
                run.in_background(snapshots.tell_again(run, run.record.last_committed))
        if run.status.phase is Phase.SUSPENDED:
            run.in_background(suspending.release(run))
        run.watching_since = run.context.clock.now()

    async def _round(self) -> None:
        """Snapshot, decide, act; then wait for news."""
        run = self.run
        snapshots.tell_set_aside(run)
        at = await self._situation()
        for _ in range(MAX_ROUNDS):
            actions = decide(at)
            if not actions:
                break
            await self._acts.launch([action.key for action in actions if isinstance(action, Launch)])
            for action in actions:
                if isinstance(action, Launch):
                    continue
                if isinstance(action, Operate):
                    self._begin(action)
                else:
                    await self._acts.carry_out(action, self._cancel_operation)
            at = await self._situation()
        else:
            logger.error("job %s: decisions do not settle: %s", run.job_id, decide(at))
            await run.context.clock.sleep(0.5)
        await self._flush_now_and_then()
        await run.woken(next_look_s(at))

    async def _situation(self) -> Situation:
        run = self.run
        found = await run.context.cluster.processes(run.job_id)
        processes = {item.name: Process(item.name, item.exit) for item in found}
        now = run.context.clock.now()
        run.killing = {name: at for name, at in run.killing.items() if name in processes}
        self._note_waits(found, now)
        seen = Seen(
            processes=processes,
            heard={key: beat.at for key, beat in run.vitals.beats.items()},
            watching_since=run.watching_since,
            drained=run.queue.drained if run.queue is not None else None,
            operation=self._operation.name, operation_retry_at=self._operation.retry_at,
            moving=bool(self._moves.name), moving_retry_at=self._moves.retry_at,
            publishing=bool(self._publishing.name), publishing_retry_at=self._publishing.retry_at,
            busy=run.vitals.busy_over("ps", run.context.limits.hot_window_s, now=now),
            copied=run.copied, waiting=share_of_calls(run.vitals.of("worker")),
            quarantine_due=bool(run.quarantine),
            killing=frozenset(run.killing), unfit=frozenset(run.unfit & processes.keys()),
            waited=run.waited,
            grown=dict(run.vitals.grown), queued_since=run.queued_since, work_since=run.work_since,
            skipped_nan=sum(beat.skipped_nan for beat in run.vitals.of("worker")),
            bad_records=sum(beat.bad_records for beat in run.vitals.of("worker")),
        )
        return Situation(run.spec, run.job, run.status, run.record, seen, run.context.limits, now)

    def _note_waits(self, found: Sequence[RoleProcess], now: float) -> None:
        """Processes that a cluster has not started yet, and why: they are not silent."""
        run = self.run
        waiting = [item for item in found if item.exit is None and not item.begun]
        run.waited = {
            name: at for name, at in run.waited.items() if any(item.name == name for item in found)
        } | {item.name: now for item in waiting}
        for item in waiting:
            if item.waiting:
                run.note(f"{item.name} does not run yet: {item.waiting}")

    async def _flush_now_and_then(self) -> None:
        now = self.run.context.clock.monotonic()
        if not self._gone and now - self._flushed_at >= FLUSH_S:
            self._flushed_at = now
            self._profiler.refresh()
            see_effects(self.run)
            await self.run.flush()
            await self.run.telling.save()

    # -- procedures --------------------------------------------------------------------------------------

    @property
    def _lanes(self) -> tuple[Lane, ...]:
        return self._operation, self._moves, self._publishing

    def _lane(self, name: str) -> Lane:
        if name in ("publish", "announce"):
            return self._publishing
        return self._moves if name == "move" else self._operation

    def _begin(self, operation: Operate) -> None:
        lane = self._lane(operation.name)
        if lane.name:
            return
        lane.name = operation.name
        lane.task = asyncio.create_task(self._carry_through(operation, lane))

    def _cancel_operation(self, names: frozenset[str]) -> None:
        """A parameter server has died, or the job ends: what is under way makes no sense any more."""
        for lane in self._lanes:
            if lane.task is not None and lane.name in names:
                lane.task.cancel()

    async def _carry_through(self, operation: Operate, lane: Lane) -> None:
        run, name = self.run, operation.name
        try:
            await self._procedure(operation)
            if not self._gone:
                await run.flush()
            self._failures.pop(name, None)
            self._refusals.pop(name, None)
            lane.retry_at = 0.0
            if run.status.message.endswith(TRIED_AGAIN):
                run.update(message="")
        except LostRun as error:
            logger.warning("job %s: %s", run.job_id, error)
            self._on_lost(run)
        except Refused as error:
            logger.info("job %s: %s is refused: %s", run.job_id, name, error)
            self._pause(name)
        except FINAL as error:
            self._refused(name, error)
        except (MeshError, snapshots.Aborted, moving.MoveFailed, NotAPartition) as error:
            logger.warning("job %s: %s failed, and is tried again: %s", run.job_id, name, error)
            self._pause(name)
            self._tell_trouble(name, error)
        except Exception:
            logger.exception("job %s: %s failed, and is tried again", run.job_id, name)
            self._pause(name)
        finally:
            lane.task, lane.name = None, ""
            run.wake()

    async def _procedure(self, operation: Operate) -> None:
        run = self.run
        procedures: dict[str, Callable[[], Awaitable[None]]] = {
            "plan": lambda: planning.plan(run),
            "open": lambda: generation.open_generation(run, reason=operation.reason),
            "snapshot": lambda: self._snapshot(operation.reason),
            "abort": lambda: snapshots.abort(
                run, run.record.marking, gen=run.record.gen, reason=operation.reason
            ),
            "void": lambda: snapshots.quarantine(run),
            "move": lambda: moving.step(run),
            "close": lambda: ending.close(run),
            "register": lambda: ending.register(run),
            "publish": lambda: publishing.begin(run),
            "announce": lambda: publishing.announce(run),
            "end": lambda: self._end(),
            "suspend": lambda: suspending.suspend(run),
            "record": lambda: ending.record(run),
            "clean": lambda: run.context.cluster.forget(run.job_id),
            "purge": lambda: self._purge(),
        }
        await procedures[operation.name]()

    async def _snapshot(self, label: str) -> None:
        run = self.run
        suspensions, is_cancelled = run.job.intent.suspensions, False
        try:
            await snapshots.cut_snapshot(run, label=label)
        except asyncio.CancelledError:
            is_cancelled = True
            raise
        finally:
            if run.job.intent.stop:
                # Stopping does not wait for ever for a snapshot that cannot be had.
                run.update(stop_snapshot_tried=True)
            if label == "suspend" and not is_cancelled:
                run.update(suspension_saved=suspensions)
        if label == "drained" and run.record.phase != "closed":
            self._operation.retry_at = run.context.clock.now() + run.context.limits.final_retry_s

    async def _end(self) -> None:
        await ending.end(self.run)
        await self.run.flush()
        await self.run.telling.save()

    async def _purge(self) -> None:
        await ending.purge(self.run)
        self._gone = True

    def _pause(self, name: str) -> None:
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        base_s = 0.2 if name in ("open", "plan", "end", "suspend", "close", "move") else 1.0
        self._lane(name).retry_at = self.run.context.clock.now() + retry_delay_s(
            failures + 1, base_s=base_s, ceiling_s=10.0
        )

    def _tell_trouble(self, name: str, error: Exception) -> None:
        """A job that waits says for what; the next procedure that succeeds takes it back."""
        if self.run.status.ending is None and not self.run.status.has_ended:
            self.run.update(message=f"{name}: {error}{TRIED_AGAIN}")

    def _refused(self, name: str, error: MeshError) -> None:
        """The same request would be refused again: the job cannot go on, unless it has ended anyway."""
        run = self.run
        logger.error("job %s: %s is refused: %s", run.job_id, name, error)
        self._pause(name)
        self._tell_trouble(name, error)
        refusals = self._refusals[name] = self._refusals.get(name, 0) + 1
        fatal = name in ("open", "register", "close") and refusals >= (3 if name == "open" else 2)
        if fatal and run.status.ending is None and not run.status.has_ended:
            reason = {"open": "CannotOpenGeneration", "register": "ModelRefused"}.get(name, "CannotClose")
            run.update(ending=Ending(phase=Phase.FAILED, reason=reason, message=str(error)))
