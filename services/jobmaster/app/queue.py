"""shardsvc's queue as the runner follows it: progress, releases of dead workers, a queue that was lost."""

from dataclasses import replace

from recmesh.runtime.errors import CallerError, MeshError, MeshFault, NotFound, ResourceExhausted
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.generation import open_queue
from services.jobmaster.app.run import Run
from services.jobmaster.app.snapshots import live_ledger
from services.jobmaster.domain.ledgers import normal, size
from services.jobmaster.peers import QueueProgress

logger = get_logger(__name__)

POLL_S = 0.5
RATE_WINDOW_S = 3.0
TOPICS_S = 180.0
"""What was told of topics is taken for so long after it was told last; then it is not known."""


class QueueWatch:
    """Progress of one job's queue, asked for twice a second."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._base: tuple[float, int] | None = None
        self._topics: QueueProgress | None = None
        """Newest that told of topics, ..."""
        self._topics_at = 0.0
        """... and when."""

    async def watch(self) -> None:
        """Runs until it is cancelled; while shardsvc is away nothing is known, and nothing is lost."""
        run, delay_s = self._run, POLL_S
        while True:
            await run.context.clock.sleep(delay_s)
            if run.record.phase not in ("open", "finishing"):
                self._base = None
                self._note_work(None)
                continue
            try:
                await self.look()
                delay_s = POLL_S
            except MeshError as error:
                run.queue = None
                self._note_work(None)
                delay_s = min(2 * delay_s, 4.0)
                logger.warning("job %s: shardsvc does not tell its progress: %s", run.job_id, error.message)
            except Exception:
                run.queue = None
                self._note_work(None)
                delay_s = min(2 * delay_s, 4.0)
                logger.exception("job %s: the look at the queue failed", run.job_id)

    async def look(self) -> None:
        """One look. A queue that is lost, or of another generation, is derived again from the ledgers."""
        run = self._run
        gen = run.record.gen
        try:
            progress = await run.context.peers.shards.progress(run.job_id)
        except NotFound:
            progress = None
        if gen != run.record.gen or run.record.phase not in ("open", "finishing"):
            return
        if progress is None or progress.gen < gen:
            await self._derive(gen)
            return
        progress = self._with_topics(progress)
        before, run.queue = run.queue, progress
        self._note_work(progress)
        # To shardsvc a batch that was set aside is done with, once a worker has passed it over.
        done = min(progress.done, progress.total - size(normal(run.record.voids)))
        run.update(
            samples=done, total=progress.total or run.status.total, goes_on=progress.more,
            waits_for=progress.waits_for, event_time=progress.event_time, partitions=progress.partitions,
            lag_messages=progress.lag_messages, lag_s=progress.lag_s,
            requeues=max(progress.requeues, run.status.requeues),
        )
        self._rate(done)
        if progress.drained and not (before and before.drained):
            run.wake()

    def _with_topics(self, progress: QueueProgress) -> QueueProgress:
        """A shardsvc that has just begun knows no topic before its first look: no lag would be taken for none.
        One that never looks again tells nothing: an old lag would be taken for today's."""
        known, now = self._topics, self._run.context.clock.now()
        if progress.partitions:
            self._topics, self._topics_at = progress, now
            return progress
        if known is None or now - self._topics_at > TOPICS_S:
            self._topics = None
            return progress
        return replace(
            progress, partitions=known.partitions, lag_messages=known.lag_messages, lag_s=known.lag_s,
            arrived=known.arrived, series=known.series,
        )

    async def _derive(self, gen: int) -> None:
        run = self._run
        done, epoch = await live_ledger(run)
        opened = await open_queue(run, gen=gen, done=done, epoch_floor=epoch)
        run.note("shardsvc had lost the queue; it was derived again from the ledgers")
        logger.warning("job %s: the queue was lost; %d positions are queued again", run.job_id, opened.to_do)

    def _note_work(self, progress: QueueProgress | None) -> None:
        run, now = self._run, self._run.context.clock.now()
        queued = progress is not None and progress.queued > 0
        work = progress is not None and progress.queued + progress.leased > 0
        run.queued_since = (run.queued_since or now) if queued else None
        run.work_since = (run.work_since or now) if work else None

    def _rate(self, done: int) -> None:
        run, now = self._run, self._run.context.clock.now()
        if self._base is None or done < self._base[1]:
            self._base = now, done
            return
        at, base = self._base
        if now - at >= RATE_WINDOW_S:
            run.update(samples_per_s=(done - base) / (now - at))
            self._base = now, done


async def release_worker(run: Run, *, index: int, incarnation: str, crashed: bool, blame: bool) -> None:
    """Tells shardsvc that a worker is gone; repeated while it is away, until the generation ends.

    With `blame` nobody knows in which batch it died, and shardsvc's guess counts: the first after what was reported.
    """
    worker, gen, delay_s = f"{index}-{incarnation[:8]}", run.record.gen, 0.1
    while run.record.gen == gen and run.record.phase in ("open", "finishing"):
        if run.quarantine:
            # Not before the deadly batch is set aside: another worker would take it at once, and die too.
            await run.context.clock.sleep(0.05)
            continue
        try:
            released = await run.context.peers.shards.release_worker(
                run.job_id, gen=gen, worker=worker, crashed=crashed
            )
        except (MeshFault, ResourceExhausted) as error:
            logger.warning("job %s: release of worker %s waits: %s", run.job_id, worker, error.message)
            await run.context.clock.sleep(delay_s)
            delay_s = min(2 * delay_s, 5.0)
            continue
        except CallerError as error:
            logger.warning("job %s: leases of worker %s are not released: %s", run.job_id, worker, error)
            return
        logger.info("job %s: %d positions of %s are queued again", run.job_id, released.requeued, worker)
        if blame and released.suspects:
            run.status = run.status.with_death(released.suspects[0], deaths=released.deaths)
        run.wake()
        return
