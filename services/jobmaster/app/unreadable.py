"""A job whose documents this version cannot read is shown as failed; nothing of it is changed or run.

A version that can read them takes it up again; until then a user may look at it or delete it.
"""

from recmesh.runtime.errors import NotFound
from recmesh.spec.job import TrainingJob
from services.jobmaster.app import ending
from services.jobmaster.app.context import Context
from services.jobmaster.app.run import Run
from services.jobmaster.domain.job import AcceptedJob, JobStatus
from services.jobmaster.domain.phase import Phase
from services.jobmaster.domain.record import RunRecord


def stand_in(context: Context, job_id: str, *, why: str) -> Run:
    """What users see of it. It is in memory only, and has no runner."""
    status = JobStatus(
        job_id=job_id, phase=Phase.FAILED, reason="Unreadable", recorded=True,
        message=f"its stored documents cannot be read: {why}",
    )
    spec = TrainingJob.parse({
        "name": job_id, "model": {"zoo": "torch_dcn_v2"}, "dataset": "unreadable",
    })
    job = AcceptedJob(job_id=job_id, spec_json=spec.model_dump_json(), created=0.0)
    return Run(context, job, status, RunRecord(job_id=job_id, phase="closed"))


async def remove(run: Run) -> None:
    """Ends its processes, and removes everything of it."""
    cluster = run.context.cluster
    for process in await cluster.processes(run.job_id):
        if process.exit is None:
            await cluster.stop(run.job_id, process.name, grace_s=0.0)
    await run.context.clock.sleep(1.0)
    try:
        await ending.purge(run)
    except NotFound:
        await run.context.store.delete(run.job_id)
