"""Generations: the start of a job, and a rollback after a parameter server was lost. Steps R1 to R5.

A generation is opened on the parameter servers that are registered. When one of them dies on the way, the
runner cancels this, replaces it, and begins again with R1.
"""

import asyncio

from recmesh.runtime.errors import DataLoss, DeadlineExceeded, MeshError, NotFound, Unavailable
from recmesh.runtime.gates import gate
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app import moving
from services.jobmaster.app.run import Run
from services.jobmaster.app.snapshots import tell_again
from services.jobmaster.domain import fleet
from services.jobmaster.domain import record as records
from services.jobmaster.domain import snapshot as snapshots
from services.jobmaster.domain.ledgers import Ledger, trained
from services.jobmaster.domain.record import Member, RunRecord
from services.jobmaster.peers import OpenedRun, RestoreOrder, RunOrder

logger = get_logger(__name__)

RESTORE_TIMEOUT_S = 600.0
RESTORE_BOUND_S = 6 * 3600.0
"""A large snapshot takes longer than one call may; the same order is repeated, and answered when it is done."""


async def open_generation(run: Run, *, reason: str) -> None:
    """R1 to R3; when it returns, leases may start."""
    if run.record.gen and run.record.last_committed:
        run.in_background(tell_again(run, run.record.last_committed))
    resumes = run.record.gen > 0 and not run.record.members
    while True:
        former = run.record.gen
        record, restored = await _r1_record(run), False
        gate("jobmaster.rollback", f"generation {record.gen}")
        try:
            parts, done = await _source(run, record)
            await _r2_restore(run, record, parts)
            restored = True
            opened = await _r3_queue(run, record, done)
        except (DataLoss, NotFound) as error:
            # Of the queue's refusals only this one is the snapshot's: it holds more than the task log tells.
            is_snapshots = not restored or error.reason == "LOG_SHORT"
            if not is_snapshots or not await _r5_fall_back(run, record, error):
                raise
            continue
        break
    gate("jobmaster.opened", f"generation {record.gen}")
    await run.change_record(lambda now: records.opened(now, term=record.term, gen=record.gen))
    run.queue = None
    samples = trained(done, voids=run.record.voids)
    lost = max(0, run.status.samples - samples)
    run.update(
        samples=samples, total=opened.total, goes_on=opened.more, log_last_sequence=opened.log_last_sequence
    )
    if former and (run.passed_over or not resumes):
        run.update(rollbacks=run.status.rollbacks + 1)
        run.telling.rolled_back(
            gen=record.gen, snapshot=record.base_snapshot, reason="; ".join([reason, *run.passed_over]),
            lost_samples=lost,
        )
    run.passed_over.clear()
    now = run.context.clock.now()
    # The first policy snapshot is due one interval after this, not at once.
    run.update(snapshot_at=now, trained_since=run.status.trained_since or now)
    logger.info(
        "job %s: generation %d is open from snapshot %d (%s); %d of %d positions to do",
        run.job_id, record.gen, record.base_snapshot, reason, opened.to_do, opened.total,
    )


async def _r1_record(run: Run) -> RunRecord:
    there = fleet.present(run.status)
    count = fleet.wanted(run.spec, run.job.intent, run.status, run.record)
    members = [
        Member(ps=ps, address=there[ps].address, incarnation=there[ps].incarnation)
        for ps in fleet.places(run.record, run.status, count=count) if ps in there
    ]
    before, anew = run.record.owners, bool(run.status.rebalance) and run.record.gen > 0
    if anew:
        # A relief that was under way was of processes as they were; all read a snapshot now, whatever they own.
        for role in run.status.live("ps"):
            run.put_role(role.model_copy(update={"weight": 1.0}))
    after = await run.change_record(
        lambda record: records.next_generation(
            record, term=record.term, members=members, weights=fleet.weights(run.status), anew=anew
        )
    )
    if anew or after.owners != before:
        moving.slots_placed(run, tuple(member.ps for member in members))
    return after


async def _source(run: Run, record: RunRecord) -> tuple[tuple[str, ...], Ledger]:
    """Where the base snapshot's parts are, and which positions it holds."""
    if not record.base_snapshot:
        return record.init_parts, ()
    document = await run.context.store.manifest(run.job_id, record.base_snapshot)
    if document is None:
        stored = await run.context.peers.checkpoints.get(run.job_id, record.base_snapshot)
        document = snapshots.parse(stored.manifest_json)
        return stored.parts, snapshots.ledger_of(document)
    return tuple(document["parts"]), snapshots.ledger_of(document)


async def _r2_restore(run: Run, record: RunRecord, parts: tuple[str, ...]) -> None:
    from_another_job = not record.base_snapshot and bool(record.init_parts)

    async def restore(member: Member) -> int:
        order = RestoreOrder(
            job_id=run.job_id, gen=record.gen, term=record.term, incarnation=member.incarnation, ps=member.ps,
            map_version=record.map_version, owners=record.owners_bytes,
            snapshot=record.init_snapshot if from_another_job else record.base_snapshot,
            parts=parts, voids=record.voids, fresh_ledger=from_another_job,
        )
        return await _restored(run, member, order)

    # All answers are awaited, so that no restore of this generation is under way when the next one begins.
    answers = await asyncio.gather(*map(restore, record.members), return_exceptions=True)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    for error in sorted(errors, key=lambda error: not isinstance(error, DataLoss | NotFound)):
        raise error


async def _restored(run: Run, member: Member, order: RestoreOrder) -> int:
    clock = run.context.clock
    deadline = clock.monotonic() + RESTORE_BOUND_S
    while True:
        try:
            return await run.context.peers.servers.restore(member.address, order, timeout_s=RESTORE_TIMEOUT_S)
        except (DeadlineExceeded, Unavailable) as error:
            is_at_it = isinstance(error, DeadlineExceeded) or error.reason == "BUSY"
            if not is_at_it or clock.monotonic() > deadline:
                raise
            logger.info("job %s: PS %d still restores: %s", run.job_id, member.ps, error.message)
            await clock.sleep(0.5)


async def _r3_queue(run: Run, record: RunRecord, done: Ledger) -> OpenedRun:
    opening, run.queue_opening = run.queue_opening, None
    if opening is not None:
        if record.gen == 1 and not done:
            answer = await opening
            if isinstance(answer, OpenedRun):
                return answer
        opening.cancel()
    return await open_queue(run, gen=record.gen, done=done, epoch_floor=0)


async def open_queue(run: Run, *, gen: int, done: Ledger, epoch_floor: int) -> OpenedRun:
    """shardsvc's queue for the generation: everything that is not done."""
    spec = run.spec
    if spec.data is None:
        raise RuntimeError("an accepted job has its data inline")
    training = spec.training
    order = RunOrder(
        job_id=run.job_id, gen=gen, dataset_json=spec.data.model_dump_json(), epochs=training.epochs,
        seed=training.seed, shuffle=spec.data.shuffle, batch_size=training.batch_size,
        shard_batches=training.lease_batches, lease_ttl_s=run.context.lease_ttl_s, done=done,
        epoch_floor=epoch_floor,
    )
    return await run.context.peers.shards.open_run(order)


async def _r5_fall_back(run: Run, record: RunRecord, error: MeshError) -> bool:
    """The base snapshot cannot be read: the one before it is the last committed one now. False: no base."""
    base = record.base_snapshot
    if not base:
        return False
    logger.error("job %s: snapshot %d cannot be restored: %s", run.job_id, base, error)
    run.note(f"snapshot {base} cannot be restored ({error.message}); falling back to the one before it")
    await run.change_record(lambda now: records.damaged(now, term=record.term, snapshot=base))
    run.passed_over.append(f"snapshot {base} cannot be read: {error.message}")
    return True


async def take_over(run: Run) -> None:
    """A new term: parameter servers refuse orders of jobmasters before this one.

    Those that cannot be reached are dealt with when their process or heartbeat tells.
    """
    record = await run.change_record(records.takeover)

    async def tell(member: Member) -> None:
        try:
            answer = await run.context.peers.servers.takeover(
                member.address, job_id=run.job_id, gen=record.gen, term=record.term
            )
            logger.info("job %s: PS %d is in generation %d", run.job_id, member.ps, answer.gen)
            if answer.gen == record.gen:
                await moving.clear(run, member, answer)
        except MeshError as error:
            logger.warning("job %s: PS %d has not the new term: %s", run.job_id, member.ps, error.message)

    if record.phase != "closed":
        await asyncio.gather(*map(tell, record.members))
