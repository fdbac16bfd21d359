"""jobmaster and ckptcache: jobs and their checkpoints."""

import contextlib
from collections.abc import Mapping
from typing import Any

import orjson

from recmesh.pb import ckptcache_pb2, ckptcache_pb2_grpc, jobmaster_pb2, jobmaster_pb2_grpc
from recmesh.runtime.errors import DataLoss, NotFound
from services.gateway.peers.documents import document
from services.gateway.peers.mesh import Mesh

SUBMIT_S = 60.0
"""A first submit indexes the dataset's headers and asks brain."""
CHECKPOINT_S = 120.0
"""Until all parts are on storage."""
DELETE_S = 60.0
"""Until its processes have ended and its checkpoints are gone."""
VERIFY_S = 600.0
"""Every byte of one snapshot is read, and of what it builds on."""
QUICK_S = 10.0
PAGE = 500
ENDED = ("Succeeded", "Failed", "Stopped")

Document = dict[str, Any]


class JobsPeer:
    """Jobs, by jobmaster."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    @property
    def _jobs(self) -> "jobmaster_pb2_grpc.JobsAsyncStub":
        return jobmaster_pb2_grpc.JobsStub(self._mesh.channel("jobmaster"))

    async def submit(self, spec_json: str, *, request_id: str, submitter: str, dry_run: bool) -> Document:
        """Check a job, and unless it is a dry run, create it."""
        request = jobmaster_pb2.SubmitRequest(
            spec_json=spec_json, request_id=request_id, submitter=submitter, dry_run=dry_run
        )
        return document(await self._jobs.Submit(request, timeout=SUBMIT_S))

    async def get(self, job_id: str) -> Document:
        """One job."""
        return document(await self._jobs.Get(jobmaster_pb2.JobRequest(job_id=job_id), timeout=QUICK_S))

    async def using(self, dataset: str) -> list[str]:
        """Ids of jobs that have not ended and train on the named dataset."""
        found, page_token = [], ""
        while True:
            request = jobmaster_pb2.ListRequest(limit=PAGE, page_token=page_token)
            page = await self._jobs.List(request, timeout=QUICK_S)
            for job in page.jobs:
                data = orjson.loads(job.spec_json).get("data") or {} if job.phase not in ENDED else {}
                if data.get("name") == dataset:
                    found.append(job.job_id)
            page_token = page.next_page_token
            if not page_token:
                return found

    async def list(
        self, *, owner: str, phase: str, limit: int, page_token: str, labels: Mapping[str, str], namespace: str = ""
    ) -> Document:
        """Jobs, newest first."""
        request = jobmaster_pb2.ListRequest(
            owner=owner, phase=phase, limit=limit, page_token=page_token, labels=dict(labels), namespace=namespace
        )
        return document(await self._jobs.List(request, timeout=QUICK_S))

    async def stop(self, job_id: str, *, reason: str, finish: bool) -> Document:
        """End a job."""
        request = jobmaster_pb2.StopRequest(job_id=job_id, reason=reason, finish=finish)
        return document(await self._jobs.Stop(request, timeout=QUICK_S))

    async def suspend(self, job_id: str, *, reason: str) -> Document:
        """Set a job aside."""
        request = jobmaster_pb2.SuspendRequest(job_id=job_id, reason=reason)
        return document(await self._jobs.Suspend(request, timeout=QUICK_S))

    async def resume(self, job_id: str) -> Document:
        """Go on with a job that was suspended."""
        return document(await self._jobs.Resume(jobmaster_pb2.JobRequest(job_id=job_id), timeout=QUICK_S))

    async def scale(self, job_id: str, *, role: str, replicas: int | None) -> Document:
        """Pin a role's count; None clears the pin."""
        request = jobmaster_pb2.ScaleRequest(
            job_id=job_id, role=role, replicas=replicas or 0, clear=replicas is None
        )
        return document(await self._jobs.Scale(request, timeout=QUICK_S))

    async def resize(self, job_id: str, *, role: str, cpu: float | None, memory_bytes: int | None) -> Document:
        """Another size of a role's processes; None leaves cores or memory as they are."""
        request = jobmaster_pb2.ResizeRequest(
            job_id=job_id, role=role, cpu=cpu or 0.0, memory_bytes=memory_bytes or 0
        )
        return document(await self._jobs.Resize(request, timeout=QUICK_S))

    async def checkpoint(self, job_id: str) -> Document:
        """Cut a snapshot now."""
        request = jobmaster_pb2.JobRequest(job_id=job_id)
        return document(await self._jobs.Checkpoint(request, timeout=CHECKPOINT_S))

    async def delete(self, job_id: str) -> None:
        """Delete a job; jobmaster stops it first if it has not ended."""
        await self._jobs.Delete(jobmaster_pb2.JobRequest(job_id=job_id), timeout=DELETE_S)

    async def logs(self, job_id: str, *, role: str, index: int | None, tail: int) -> Document:
        """The last lines of a job's processes."""
        request = jobmaster_pb2.LogsRequest(
            job_id=job_id, role=role, index=-1 if index is None else index, tail=tail
        )
        return document(await self._jobs.Logs(request, timeout=QUICK_S))

    async def checkpoints(self, job_id: str, *, verify: bool = False, snapshot: int = 0) -> Document:
        """A job's snapshots; with `verify` every committed one, or that one, is read and hashed first, one after the
        other."""
        stub = ckptcache_pb2_grpc.CheckpointsStub(self._mesh.channel("ckptcache"))
        listed = await stub.List(ckptcache_pb2.ListRequest(job_id=job_id), timeout=QUICK_S)
        if not verify:
            return document(listed)
        for each in listed.snapshots:
            if each.state == "committed" and snapshot in (0, each.snapshot):
                request = ckptcache_pb2.GetRequest(job_id=job_id, snapshot=each.snapshot, verify=True)
                with contextlib.suppress(DataLoss, NotFound):      # the state tells it; retention lets snapshots go
                    await stub.Get(request, timeout=VERIFY_S)
        return document(await stub.List(ckptcache_pb2.ListRequest(job_id=job_id), timeout=QUICK_S))
