"""Slow workers of one job: heard, judged by `domain.straggler`, answered at shardsvc and by a backup worker."""

from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.looking import look_every
from services.jobmaster.app.run import Run
from services.jobmaster.app.timeline import conclude, decide
from services.jobmaster.domain import plan as plans
from services.jobmaster.domain.job import SlowWorker
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.straggler import (
    BACKUP_LEVEL,
    Found,
    Pace,
    Recovered,
    backups,
    judged,
    shard_batches,
)

logger = get_logger(__name__)

TELL_AGAIN_S = 10.0
"""shardsvc may have lost what it was told; telling it again changes nothing otherwise."""


class StragglerWatch:
    """Looks at the workers of one job with every heartbeat interval."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._paces: dict[int, Pace] = {}
        self._gen = 0
        self._told: dict[str, tuple[int, int, float]] = {}
        """By shardsvc's name of a worker: generation, batches and time of the last telling."""

    async def watch(self) -> None:
        """Runs until it is cancelled. A window of 0 leaves stragglers alone."""
        limits = self._run.context.limits
        if limits.straggler_window_s > 0:
            await look_every(self._run, limits.heartbeat_s, self.look, at="slow workers")

    async def look(self) -> None:
        """Hear, judge, answer."""
        run = self._run
        if run.status.has_ended or run.status.ending is not None:
            run.update(slow=())
            return
        paces = self._hear()
        if run.record.phase == "open" and run.status.phase in (Phase.RUNNING, Phase.SCALING):
            now, held = run.context.clock.now(), [worker for worker in run.status.slow if worker.level]
            for verdict in judged(
                paces, held, batch_size=run.spec.training.batch_size, is_busy=self._is_busy(now),
                may_back_up=self._why_no_backup(), limits=run.context.limits, now=now,
                work_s={index: pace.work_s() for index, pace in self._paces.items()},
            ):
                if isinstance(verdict, Found):
                    await self._answer(verdict)
                else:
                    self._let_go(verdict)
            await self._size()

    def _hear(self) -> dict[int, tuple[str, float | None]]:
        """Paces of the workers that run, by index."""
        run, window_s = self._run, self._run.context.limits.straggler_window_s
        if run.record.gen != self._gen or run.record.phase == "restoring":
            self._gen, self._paces = run.record.gen, {}     # during a rollback nobody trains
        running = {role.index: role for role in run.status.live("worker") if role.stage == "running"}
        for index in set(self._paces) - set(running):
            del self._paces[index]
        found: dict[int, tuple[str, float | None]] = {}
        for index, role in running.items():
            pace = self._paces.get(index)
            if pace is None or pace.incarnation != role.incarnation:
                pace = self._paces[index] = Pace(role.incarnation)
            beat = run.vitals.beats.get(role.key)
            if beat is not None and beat.incarnation == role.incarnation:
                pace.hear(beat.at, beat.samples, window_s=window_s, worked_s=beat.worked_s)
            found[index] = role.incarnation, pace.per_s(run.context.clock.now(), window_s=window_s)
        return found

    def _is_busy(self, now: float) -> bool:
        since = self._run.queued_since
        return since is not None and now - since >= self._run.context.limits.straggler_window_s

    def _why_no_backup(self) -> str:
        run, limits = self._run, self._run.context.limits
        status, here = run.status, backups(run.status.slow)
        wanted = plans.wanted(run.spec, run.job.intent, status.plan, "worker")
        if here >= limits.backup_workers:
            return f"{here} backup workers are there; {limits.backup_workers} are allowed"
        if wanted + here >= run.spec.roles.worker.max:
            return f"roles.worker.max is {run.spec.roles.worker.max}"
        left_s = status.remaining / status.samples_per_s if status.samples_per_s > 0 else 0.0
        if left_s < limits.backup_worth_s:
            return f"the job ends in {left_s:.0f} s"
        return ""

    async def _answer(self, found: Found) -> None:
        """shardsvc first: what it was not told is decided again at the next look."""
        run, worker = self._run, found.worker
        size = shard_batches(worker.level, most=run.spec.training.shard_batches)
        requeued = await self._tell(worker, size)
        helped = worker.level >= BACKUP_LEVEL
        batches = f"{size} {'batch' if size == 1 else 'batches'}"
        decision = (
            f"a backup worker is started; shards stay at {batches}" if helped
            else f"its shards get {batches}, and what it holds beyond is queued again"
        )
        number = decide(
            run, matter="straggler", place=f"worker {worker.index}", seen=found.seen, decision=decision
        )
        run.telling.straggler_detected(
            worker, answer=found.answer, shard_batches=size,
            window_s=run.context.limits.straggler_window_s, reason=f"{found.seen}: {decision}",
        )
        done = "one worker more is wanted" if helped else f"{requeued:,} positions were queued again"
        conclude(run, number, done=done)
        self._replace(worker)
        await run.flush()
        run.wake()

    def _let_go(self, recovered: Recovered) -> None:
        run, worker = self._run, recovered.worker
        helped = worker.level >= BACKUP_LEVEL
        decide(
            run, matter="straggler", place=f"worker {worker.index}", seen=recovered.seen,
            decision="it gets shards like everybody" + ("; its backup worker drains" if helped else ""),
        )
        run.telling.straggler_recovered(worker, reason=recovered.seen)
        self._replace(worker.model_copy(update={"level": 0}))
        run.wake()

    def _replace(self, worker: SlowWorker) -> None:
        others = tuple(
            one for one in self._run.status.slow
            if one.incarnation != worker.incarnation and (one.index != worker.index or not one.level)
        )
        self._run.update(slow=(*others, worker))

    async def _size(self) -> None:
        """shardsvc knows the size of every slow worker's shards, in this generation, and of none that recovered."""
        run, now = self._run, self._run.context.clock.now()
        slow = {_name(worker): worker for worker in run.status.slow}
        most = run.spec.training.shard_batches
        for name in set(self._told) - set(slow):
            del self._told[name]
        for name, worker in slow.items():
            gen, size, at = self._told.get(name, (0, 0, 0.0))
            wanted = shard_batches(worker.level, most=most)
            if not worker.level:
                await self._tell(worker, wanted)
                run.update(slow=tuple(one for one in run.status.slow if one != worker))
            elif (gen, size) != (run.record.gen, wanted) or now - at >= TELL_AGAIN_S:
                await self._tell(worker, wanted)

    async def _tell(self, worker: SlowWorker, size: int) -> int:
        run, gen, name = self._run, self._run.record.gen, _name(worker)
        requeued = await run.context.peers.shards.size_shards(
            run.job_id, gen=gen, worker=name, shard_batches=size
        )
        self._told[name] = gen, size, run.context.clock.now()
        return requeued


def _name(worker: SlowWorker) -> str:
    """As shardsvc knows it."""
    return f"{worker.index}-{worker.incarnation[:8]}"
