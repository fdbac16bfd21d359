"""A job is set aside, and taken up again."""

from recmesh.runtime.errors import MeshError
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.run import Run
from services.jobmaster.domain import record as records
from services.jobmaster.domain import snapshot as snapshots
from services.jobmaster.domain.ledgers import trained
from services.jobmaster.domain.phase import Phase

logger = get_logger(__name__)

FIRST_AGAIN_S, LAST_AGAIN_S = 1.0, 30.0


async def suspend(run: Run) -> None:
    """All processes are gone. The record says that nobody has the state; the queue is closed, and derived again from
    the snapshot when the job goes on. Each step may be repeated."""
    if run.queue_opening is not None:
        opening, run.queue_opening = run.queue_opening, None
        opening.cancel()
    members = run.record.members
    if run.status.phase is not Phase.PENDING:
        await run.change_record(lambda record: records.parked(record, term=record.term))
        try:
            await run.context.peers.shards.close_run(run.job_id, forget=False)
        except MeshError as error:
            logger.warning("job %s: its queue is not closed: %s", run.job_id, error.message)     # it costs memory
    for member in members:
        run.context.peers.servers.forget(member.address)
    saved = await _saved(run)
    if saved < run.status.samples:
        run.note(
            f"it was suspended with {saved:,} of {run.status.samples:,} samples in a snapshot; "
            "the rest is trained again"
        )
    run.queue = None
    run.update(
        samples=saved, samples_per_s=0.0, waits_for="", lag_messages=0, lag_s=0.0,
        suspended_at=run.context.clock.now(),
    )
    run.move(Phase.SUSPENDED, reason="Suspended", message=run.job.intent.reason)
    run.in_background(release(run))


async def release(run: Run) -> None:
    """brain hears that the job holds nothing, so that others may have its share of a quota; until it has heard it, or
    the job goes on. Told again by each jobmaster that begins to hold the job."""
    again_s = FIRST_AGAIN_S
    while True:
        async with run.life:
            if run.status.phase is not Phase.SUSPENDED:
                return
            try:
                await run.context.peers.brain.suspend(run.job_id)
                return
            except MeshError as error:
                logger.info("job %s: brain does not hear that it is suspended: %s", run.job_id, error.message)
        await run.context.clock.sleep(again_s)
        again_s = min(2 * again_s, LAST_AGAIN_S)


async def _saved(run: Run) -> int:
    """Samples in the snapshot from which the job goes on."""
    number = run.record.last_committed
    document = await run.context.store.manifest(run.job_id, number) if number else None
    return trained(snapshots.ledger_of(document), voids=run.record.voids) if document else 0


def resume(run: Run) -> None:
    """The time that it lay aside is no time of training; in memory."""
    status = run.status
    pause_s = max(0.0, run.context.clock.now() - status.suspended_at)
    run.update(started=0.0, trained_since=status.trained_since + pause_s if status.trained_since else 0.0)
