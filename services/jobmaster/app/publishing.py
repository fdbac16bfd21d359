"""A model that is served while it trains enters the registry (domain.publishing says when)."""

from recmesh.runtime.telemetry import get_logger
from services.jobmaster.app.ending import entered, highest_version
from services.jobmaster.app.run import Run
from services.jobmaster.domain.job import Publication
from services.jobmaster.peers import ModelVersion

logger = get_logger(__name__)


async def begin(run: Run) -> None:
    """Its name, version and place are written down before anything is."""
    export = run.spec.export
    if export is None:
        raise RuntimeError("a job that exports nothing publishes nothing")
    name = export.name_for(run.spec.name)
    version = str(await run.context.store.next_version(name, above=await highest_version(run, name)))
    uri = f"{run.context.storage_uri.rstrip('/')}/models/{name}/{version}"
    run.update(publication=Publication(model_name=name, version=version, export_uri=uri))


async def announce(run: Run) -> None:
    """The gateway registers and loads it. Raises a MeshFault while the gateway is away: it is tried again."""
    made = run.status.publication
    if made is None:
        raise RuntimeError("nothing was published")
    model = ModelVersion(made.model_name, made.version, made.export_uri, run.job_id, made.snapshot)
    export = run.spec.export
    registered = await entered(
        run, model, framework=made.framework, metrics={}, request_id=f"{run.job_id}/fresh", load=True,
        serving={} if export is None else export.serving,
    )  # fmt: skip
    run.update(
        publication=made.model_copy(update={"registered": True, "version": registered.version}),
        model_version=registered.version, model_uri=registered.uri or made.export_uri,
    )
    logger.info("job %s: model %s/%s follows its snapshots", run.job_id, made.model_name, registered.version)
