"""From the closing snapshot to success, and how a job ends otherwise."""

from collections.abc import Mapping
from typing import Any

from recmesh.runtime.errors import AlreadyExists, FailedPrecondition, MeshError
from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.run import Run
from services.jobmaster.app.snapshots import commit_offsets, tell_again, tell_ckptcache
from services.jobmaster.domain import record as records
from services.jobmaster.domain import snapshot as snapshots
from services.jobmaster.domain.closing import needs_finisher
from services.jobmaster.domain.facts import facts_of
from services.jobmaster.domain.job import Closing
from services.jobmaster.domain.ledgers import is_full, trained
from services.jobmaster.domain.phase import Phase
from services.jobmaster.peers import ModelVersion
from services.jobmaster.peers.planning import JobEnd

logger = get_logger(__name__)


async def close(run: Run) -> None:
    """The closing snapshot is committed: what the finisher will need is written down.

    A jobmaster may have died between the record's change and its telling ckptcache, which is told again here.
    """
    number = run.record.last_committed
    await tell_ckptcache(run, number)
    document = await run.context.store.manifest(run.job_id, number)
    done = snapshots.ledger_of(document or {})
    samples = trained(done, voids=run.record.voids)
    name, version, uri = "", "", ""
    export = run.spec.export
    if export is not None:
        name = export.name_for(run.spec.name)
        version = str(await run.context.store.next_version(name, above=await highest_version(run, name)))
        uri = f"{run.context.storage_uri.rstrip('/')}/models/{name}/{version}"
    await _close_queue(run, forget=False)
    seconds = run.status.snapshot_at - run.status.trained_since
    run.update(
        samples=samples, samples_per_s=samples / seconds if seconds > 0 else 0.0,
        closing=Closing(
            snapshot=number, samples=samples, early=run.status.goes_on or not is_full(done, total=run.status.total),
            model_name=name, version=version, export_uri=uri,
        ),
    )


async def highest_version(run: Run, name: str) -> int:
    """The highest numbered version that the gateway has; 0 when it cannot be asked: the store counts too."""
    try:
        versions = await run.context.peers.models.versions(name)
    except MeshError as error:
        logger.warning("job %s: the gateway does not list versions: %s", run.job_id, error.message)
        return 0
    return max((int(item.version) for item in versions if item.version.isdecimal()), default=0)


async def entered(
    run: Run, model: ModelVersion, *, framework: str, metrics: Mapping[str, float], request_id: str, load: bool,
    serving: Mapping[str, Any],
) -> ModelVersion:  # fmt: skip
    """The model as it stands in the registry now, perhaps under another number; repeatable by `request_id`."""

    async def ask(version: ModelVersion, request: str) -> ModelVersion:
        return await run.context.peers.models.register(
            version, framework=framework, metrics=metrics, request_id=request, load=load, serving=serving
        )

    try:
        return await ask(model, request_id)
    except (AlreadyExists, FailedPrecondition) as error:
        if isinstance(error, FailedPrecondition) and error.reason != "VERSION_NOT_INCREASING":
            raise
        # Somebody has registered this number by hand, or another job a higher one meanwhile: the next
        # one; the files stay where they are.
        free = ModelVersion(model.name, "", model.uri, model.job_id, model.snapshot)
        return await ask(free, f"{request_id}/renumbered")


async def register(run: Run) -> None:
    """The model enters the registry. Raises a MeshFault while the gateway is away: it is tried again."""
    closing = run.status.closing
    if closing is None:
        raise RuntimeError("there is no closing snapshot")
    export = run.spec.export
    if export is not None and run.status.model_uri and needs_finisher(run.spec):
        model = ModelVersion(
            closing.model_name, closing.version, run.status.model_uri, run.job_id, closing.snapshot
        )
        registered = await entered(
            run, model, framework=closing.framework, metrics=dict(run.status.metrics),
            request_id=f"{run.job_id}/{closing.snapshot}", load=export.serve, serving=export.serving,
        )  # fmt: skip
        run.update(model_version=registered.version, model_uri=registered.uri or run.status.model_uri)
    run.update(closing=closing.model_copy(update={"reported": True, "registered": True}))


async def end(run: Run) -> None:
    """All processes are gone: the record is closed, and the job has ended."""
    ending = run.status.ending
    if ending is None:
        raise RuntimeError("nobody said how the job ends")
    if run.record.phase != "closed":
        await run.change_record(lambda record: records.closed(record, term=record.term))
    if run.record.last_committed and run.status.closing is None:
        run.in_background(tell_again(run, run.record.last_committed))
    await _close_queue(run, forget=False)
    for member in run.record.members:
        run.context.peers.servers.forget(member.address)
    run.update(ended=run.context.clock.now())
    run.move(ending.phase, reason=ending.reason, message=ending.message)


async def record(run: Run) -> None:
    """The job's history goes to brain; tried again while brain is away."""
    status = run.status
    if status.plan:
        seconds, trial = max(1e-9, status.ended - status.started), status.trial
        # Jobs like it begin with its last plan: with one that was proved.
        tried = trial.before if trial is not None and not trial.taken_back else {}
        await run.context.peers.brain.record_job(
            JobEnd(
                facts=facts_of(run.spec, run.job), outcome=status.phase, reason=status.reason,
                started=status.started, ended=status.ended, plan={**status.plan, **tried},
                samples_per_s=status.samples_per_s or status.samples / seconds, samples=status.samples,
                metrics=status.metrics,
            )
        )
    run.update(recorded=True)


async def purge(run: Run) -> None:
    """Nothing of the job remains, except its model and its history. Each step may be repeated."""
    if not run.status.recorded:         # it is deleted: what it held is free
        try:
            await record(run)
        except MeshError as error:
            logger.info("job %s: brain is not told of its end: %s", run.job_id, error.message)
    if run.status.phase is not Phase.PENDING:
        await run.context.peers.checkpoints.delete(run.job_id)
        await run.context.peers.shards.close_run(run.job_id, forget=True)
    await run.context.cluster.forget(run.job_id)
    await run.telling.drain(timeout_s=2.0)
    await run.context.store.delete(run.job_id)


async def _close_queue(run: Run, *, forget: bool) -> None:
    if not run.record.gen and run.queue_opening is None:
        return
    if not forget and run.record.last_committed:            # no rollback is to come: whoever follows goes on from there
        await commit_offsets(run, run.record.last_committed)
    try:
        await run.context.peers.shards.close_run(run.job_id, forget=forget)
    except MeshError as error:
        # A queue that stays open costs memory, and nobody leases from it.
        logger.warning("job %s: its queue is not closed: %s", run.job_id, error.message)
