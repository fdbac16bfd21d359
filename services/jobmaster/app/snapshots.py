"""Snapshots (S1 to S4) and quarantine: structural operations on an open generation, one at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from recmesh.runtime.errors import DataLoss, MeshError, MeshFault, NotFound, Unavailable
from recmesh.runtime.gates import gate
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.run import Run
from services.jobmaster.app.timeline import conclude, decide
from services.jobmaster.domain import record as records
from services.jobmaster.domain import snapshot as snapshots
from services.jobmaster.domain.ledgers import Ledger, intersect, intersection, is_full, normal, size, trained
from services.jobmaster.domain.record import Member, RunRecord
from services.jobmaster.domain.snapshot import Cut

logger = get_logger(__name__)

AWAIT_S = 5.0
COMMIT_TRIES = 60


class Aborted(Exception):
    """The snapshot will not exist; the message says why."""


async def cut_snapshot(run: Run, *, label: str) -> None:
    """One snapshot from mark to commit. `Aborted` or a MeshError when there is none."""
    asked, samples = run.job.intent.checkpoint, run.status.samples
    if label == "finish":
        await run.change_record(lambda record: records.finishing(record, term=record.term))
    await run.no_move_pending()
    record = await run.change_record(lambda now: records.mark(now, term=now.term, gen=now.gen))
    number = record.marking
    gate("jobmaster.mark", f"snapshot {number}")
    try:
        await run.context.peers.checkpoints.begin(
            run.job_id, gen=record.gen, snapshot=number, ps=[member.ps for member in record.owning],
            label=label,
        )
        previous = await _last_manifest(run, record)
        base = snapshots.base_for(previous, gen=record.gen, full_every=run.spec.snapshot_full_every)
        cuts = await _mark(run, record, number, base=base)
        snapshots.check_partition(cuts)
        await _stored(run, number)
        manifest = _manifest(run, record, number, cuts, label, chain=snapshots.chain_on(previous, cuts))
        await run.context.store.save_manifest(run.job_id, number, manifest)
    except (MeshError, snapshots.NotAPartition, Aborted) as error:
        await abort(run, number, gen=record.gen, reason=str(error))
        raise
    except asyncio.CancelledError:
        # A rollback or the end of the job follows, and supersedes the mark; only ckptcache must hear of it.
        run.in_background(_abort_at_ckptcache(run, number, "superseded"))
        raise
    run.update(snapshot_samples=samples)
    await _commit(run, record, number, cuts, asked=asked)


async def _last_manifest(run: Run, record: RunRecord) -> Mapping[str, Any] | None:
    """Of the last committed snapshot; None when there is none that can be read, and the next one is whole."""
    if not record.last_committed:
        return None
    try:
        await run.context.peers.checkpoints.get(run.job_id, record.last_committed)
    except (DataLoss, NotFound) as error:
        logger.warning("job %s: the next snapshot is whole: %s", run.job_id, error.message)
        return None
    return await run.context.store.manifest(run.job_id, record.last_committed)


async def _mark(run: Run, record: RunRecord, number: int, *, base: int) -> list[Cut]:
    servers = run.context.peers.servers

    async def mark(member: Member) -> Cut:
        return await servers.mark(
            member.address, ps=member.ps, job_id=run.job_id, gen=record.gen, term=record.term, snapshot=number,
            base=base,
        )

    return list(await asyncio.gather(*map(mark, record.owning)))


async def _stored(run: Run, number: int) -> None:
    """S3: waits until ckptcache has verified every part on storage."""
    clock = run.context.clock
    deadline = clock.monotonic() + run.context.limits.snapshot_timeout_s
    while True:
        try:
            checkpoints = run.context.peers.checkpoints
            state, reason = await checkpoints.await_parts(run.job_id, number, wait_s=AWAIT_S)
        except MeshFault as fault:
            state, reason = "collecting", fault.message
            await clock.sleep(0.2)
        if state == "stored":
            return
        if state in ("failed", "unknown"):
            raise Aborted(reason or "ckptcache does not know of it any more")
        if clock.monotonic() > deadline:
            raise Aborted(f"not stored after {run.context.limits.snapshot_timeout_s:g} s: {reason}")


def _manifest(
    run: Run, record: RunRecord, number: int, cuts: list[Cut], label: str, *, chain: Sequence[Mapping[str, Any]]
) -> dict[str, object]:
    manifest = dict(
        snapshots.manifest(
            job_id=run.job_id, gen=record.gen, snapshot=number, map_version=record.map_version, cuts=cuts,
            voids=record.voids, partly_applied=record.partly_applied,
            log_last_sequence=run.status.log_last_sequence, total=run.status.total,
            created=run.context.clock.now(), label=label, chain=chain,
        )
    )
    parts = snapshots.part_uris(
        run.context.storage_uri, job_id=run.job_id, snapshot=number, ps=[cut.ps for cut in cuts], chain=chain
    )
    return manifest | {"parts": parts}


async def _commit(run: Run, record: RunRecord, number: int, cuts: list[Cut], *, asked: int) -> None:
    """S4, and what follows from it: retention, the queue's audit, the end."""
    done = snapshots.applied_by_all(cuts)
    full = not run.status.goes_on and is_full(done, total=run.status.total)
    gate("jobmaster.commit", f"snapshot {number}")
    after = await run.change_record(
        lambda now: records.commit(now, term=record.term, gen=record.gen, snapshot=number, full=full)
    )
    gate("jobmaster.committed", f"snapshot {number}")
    size_bytes = sum(cut.size_bytes for cut in cuts)
    run.update(
        snapshot_at=run.context.clock.now(), checkpoint_served=asked,
        snapshot_bytes=max(run.status.snapshot_bytes, size_bytes),
    )
    run.telling.snapshot_committed(
        snapshot=number, gen=record.gen, samples=trained(done, voids=after.voids), size_bytes=size_bytes
    )
    logger.info(
        "job %s: snapshot %d of generation %d is committed with %d of %d positions",
        run.job_id, number, record.gen, size(done), run.status.total,
    )
    await tell_ckptcache(run, number)
    let_go = after.committed[:-run.spec.snapshots_kept]
    if let_go:
        await run.context.store.delete_manifest(run.job_id, let_go[-1])
    if after.phase != "closed":
        await audit_queue(run)
        run.in_background(commit_offsets(run, after.committed[-run.spec.snapshots_kept :][0]))


async def audit_queue(run: Run) -> None:
    """Whatever no ledger has and nobody holds is queued again.

    With the ledgers as they are now, not as they were at the mark: what was trained since then is no orphan.
    """
    record = run.record
    try:
        done, _ = await live_ledger(run)
        orphans, missing = await run.context.peers.shards.reconcile(run.job_id, gen=record.gen, done=done)
    except MeshError as error:
        logger.warning("job %s: its queue is not audited: %s", run.job_id, error.message)
        return
    run.queue = None
    if orphans:
        logger.warning("job %s: %d of %d missing are queued again", run.job_id, orphans, missing)


async def commit_offsets(run: Run, snapshot: int) -> None:
    """What this snapshot has, the oldest to which a rollback may still go back, is told to the job's topics (PROTOCOL,
    section 5). What fails is told with the next one."""
    if run.spec.data is None or not run.spec.data.has_topics:
        return
    try:
        document = await run.context.store.manifest(run.job_id, snapshot)
        if document is None:
            return
        done = snapshots.ledger_of(document)
        await run.context.peers.shards.commit_offsets(run.job_id, gen=run.record.gen, done=done)
    except MeshError as error:
        logger.warning("job %s: offsets of its topics are not committed: %s", run.job_id, error.message)


async def tell_ckptcache(run: Run, number: int) -> None:
    """The snapshot is committed: ckptcache writes that down, and deletes what retention lets go."""
    document = await run.context.store.manifest(run.job_id, number)
    if document is None:
        return

    async def commit() -> None:
        await run.context.peers.checkpoints.commit(
            run.job_id, gen=int(document["gen"]), snapshot=number, manifest_json=snapshots.text(document),
            keep=run.spec.snapshots_kept,
        )

    await persistently(run, commit, what=f"commit of snapshot {number}")


async def tell_again(run: Run, number: int) -> None:
    """ckptcache may not have heard of the last commit: whoever was to tell it may have been cancelled."""
    try:
        await tell_ckptcache(run, number)
    except MeshError as error:
        logger.info("job %s: commit of snapshot %d: %s", run.job_id, number, error.message)


async def persistently(run: Run, call: Callable[[], Awaitable[None]], *, what: str) -> None:
    """Repeats the call while the service is away; other errors, and a minute of absence, are the caller's."""
    delay_s = 0.1
    for attempt in range(COMMIT_TRIES):
        try:
            return await call()
        except MeshFault as fault:
            if attempt == COMMIT_TRIES - 1:
                raise
            logger.warning("job %s: %s waits: %s", run.job_id, what, fault.message)
            await run.context.clock.sleep(delay_s)
            delay_s = min(2 * delay_s, 2.0)


async def abort(run: Run, number: int, *, gen: int, reason: str) -> None:
    """The snapshot will never be committed: everybody forgets it, the record first."""
    logger.warning("job %s: snapshot %d is aborted: %s", run.job_id, number, reason)
    try:
        await run.change_record(lambda now: records.abort_mark(now, term=now.term, snapshot=number))
    except records.Refused:
        return  # a rollback has superseded it
    servers, record = run.context.peers.servers, run.record

    async def forget(member: Member) -> None:
        try:
            await servers.abort_mark(
                member.address, job_id=run.job_id, gen=gen, term=record.term, snapshot=number
            )
        except MeshError as error:
            logger.warning("job %s: PS %d still marks %d: %s", run.job_id, member.ps, number, error.message)

    await asyncio.gather(*map(forget, record.owning), _abort_at_ckptcache(run, number, reason))


async def _abort_at_ckptcache(run: Run, number: int, reason: str) -> None:
    try:
        await run.context.peers.checkpoints.abort(run.job_id, number, reason=reason)
    except MeshError as error:
        logger.info("job %s: ckptcache has not aborted %d: %s", run.job_id, number, error.message)


async def quarantine(run: Run) -> None:
    """Void: the batches enter every ledger that lacks them, and are never trained."""
    if not run.record.pending.startswith("void:"):
        batches = run.quarantine
        if not batches:
            return
        await run.no_move_pending()
        record = await run.change_record(
            lambda now: records.void(now, term=now.term, gen=now.gen, batches=batches)
        )
    record = run.record
    servers = run.context.peers.servers

    async def void(member: Member) -> Ledger:
        return await servers.void(
            member.address, job_id=run.job_id, gen=record.gen, term=record.term, batches=record.pending_voids
        )

    answers = await asyncio.gather(*map(void, record.owning))
    partly = dict.fromkeys(interval for answer in answers for interval in answer)
    await run.change_record(
        lambda now: records.voided(now, term=record.term, gen=record.gen, partly_applied=tuple(partly))
    )
    tell_set_aside(run)


def tell_set_aside(run: Run) -> None:
    """Of each batch in the void set that nobody has heard of; a rollback, too, may have put it there."""
    voids = run.record.voids
    news = [item for item in run.status.deadly if item.batch in voids and not item.told]
    if not news:
        return
    for item in news:
        line, lo, hi = item.batch
        run.note(f"positions [{lo}, {hi}) were set aside: {item.deaths} workers died in them")
        number = decide(
            run, matter="quarantine", seen=f"{item.deaths} workers died in line {line} [{lo}, {hi})",
            decision="the batch is set aside: no worker gets it again",
        )
        conclude(run, number, done="every parameter server has it in its ledger")
        partly = intersect(normal([item.batch]), normal(run.record.partly_applied))
        run.telling.batch_quarantined(item.batch, deaths=item.deaths, partly_applied=bool(partly))
        logger.warning("job %s: line %d [%d, %d) is set aside", run.job_id, line, lo, hi)
    # Those deaths are explained, and counted by the limit of quarantines: they are no reason to give the job up.
    run.update(
        quarantined=len(voids), failures=max(0, run.status.failures - sum(item.deaths for item in news)),
        deadly=tuple(item.model_copy(update={"told": item.told or item in news}) for item in run.status.deadly),
    )
    for role in run.status.roles:
        if role.role == "worker" and role.streak:
            run.put_role(role.model_copy(update={"streak": 0}))


async def live_ledger(run: Run) -> tuple[Ledger, int]:
    """(positions applied by all servers now, newest lease epoch that any has seen).

    Of one version of the map: slots that are between two servers are in nobody's answer.
    """
    servers = run.context.peers.servers
    while True:
        record = await run.no_move_pending()
        if not record.members:
            raise Unavailable("no generation is open")
        answers = await asyncio.gather(
            *(servers.ledgers(member.address, job_id=run.job_id, gen=record.gen) for member in record.owning)
        )
        if run.record.map_version == record.map_version and not run.record.moving:
            return intersection([ledger for ledger, _ in answers]), max(epoch for _, epoch in answers)
