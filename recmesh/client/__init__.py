"""Client of a mesh, over gateway's REST API.

    with Client.find() as mesh:                   # the mesh of this folder, or $RECMESH_URL
        job = mesh.submit(load_job("job.yaml"))
        for event in mesh.follow(job.job_id): ...

Every failure is a `MeshError`: what gateway refused keeps its class, reason and violations; a mesh that
cannot be reached is `Unavailable`. Calls that are safe to repeat are retried within their deadline.
"""

from recmesh.client.jobfile import load_job
from recmesh.client.rest import Client
from recmesh.client.views import Checkpoint, Event, Job, JobPage, Model, Progress, Role, RoleLog, StepTimes

__all__ = [
    "Checkpoint", "Client", "Event", "Job", "JobPage", "Model", "Progress", "Role", "RoleLog", "StepTimes",
    "load_job",
]  # fmt: skip
