"""The gRPC face of one jobmaster of several: as that of `servicers`, by whichever of them a call comes in."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.pb import jobmaster_pb2_grpc as grpc_pb
from recmesh.pb.jobmaster_pb2_grpc import JobsStub, RunsStub
from services.jobmaster.app.jobs import NotHeld
from services.jobmaster.rpc.front import Front, is_passed_on, name_of, repeatable
from services.jobmaster.rpc.servicers import JobsServicer, RunsServicer

Request = TypeVar("Request", bound=Any)
Reply = TypeVar("Reply")


class RoutedJobs(grpc_pb.JobsServicer):
    """What users (through gateway, or by events) ask. `context` None: the call comes from this process."""

    def __init__(self, front: Front, here: JobsServicer) -> None:
        self._front, self._here = front, here

    async def _by_job(
        self, method: str, answer: Callable[[Request, Any], Awaitable[Reply]], request: Request, context: Any, *,
        done: Reply | None = None,
    ) -> Reply:
        return await self._front.answer(
            JobsStub, method, request, request.job_id, lambda: answer(request, context), context, done=done
        )

    async def Submit(self, request: pb.SubmitRequest, context: Any) -> pb.Job:
        """By who holds jobs of this name; a request that has made a job before is answered by who holds that."""
        name, request = name_of(request.spec_json), repeatable(request)
        try:
            return await self._front.answer(
                JobsStub, "Submit", request, name, lambda: self._here.Submit(request, context), context
            )
        except NotHeld as error:
            if error.job_id == name or is_passed_on(context):
                raise
            return await self.Get(pb.JobRequest(job_id=error.job_id), context)

    async def Get(self, request: pb.JobRequest, context: Any) -> pb.Job:
        """One job."""
        return await self._by_job("Get", self._here.Get, request, context)

    async def List(self, request: pb.ListRequest, context: Any) -> pb.ListReply:
        """Jobs of all jobmasters, the newest first."""
        return await self._front.list(request, lambda: self._here.page(request), context)

    async def Stop(self, request: pb.StopRequest, context: Any) -> pb.Job:
        """Stop, or finish early."""
        return await self._by_job("Stop", self._here.Stop, request, context)

    async def Scale(self, request: pb.ScaleRequest, context: Any) -> pb.Job:
        """Pin or free a role's count."""
        return await self._by_job("Scale", self._here.Scale, request, context)

    async def Resize(self, request: pb.ResizeRequest, context: Any) -> pb.Job:
        """Another size of a role's processes."""
        return await self._by_job("Resize", self._here.Resize, request, context)

    async def Suspend(self, request: pb.SuspendRequest, context: Any) -> pb.Job:
        """Set it aside."""
        return await self._by_job("Suspend", self._here.Suspend, request, context)

    async def Resume(self, request: pb.JobRequest, context: Any) -> pb.Job:
        """Go on with it."""
        return await self._by_job("Resume", self._here.Resume, request, context)

    async def Checkpoint(self, request: pb.JobRequest, context: Any) -> pb.CheckpointReply:
        """A snapshot now."""
        return await self._by_job("Checkpoint", self._here.Checkpoint, request, context)

    async def Delete(self, request: pb.JobRequest, context: Any) -> pb.DeleteReply:
        """Remove the job."""
        return await self._by_job("Delete", self._here.Delete, request, context, done=pb.DeleteReply())

    async def Logs(self, request: pb.LogsRequest, context: Any) -> pb.LogsReply:
        """The last lines of its processes."""
        return await self._by_job("Logs", self._here.Logs, request, context)

    async def Events(self, request: pb.EventsRequest, context: Any) -> pb.EventsReply:
        """What happened to it."""
        return await self._by_job("Events", self._here.Events, request, context)


class RoutedRuns(grpc_pb.RunsServicer):
    """What a job's own processes say and ask."""

    def __init__(self, front: Front, here: RunsServicer) -> None:
        self._front, self._here = front, here

    async def _by_job(
        self, method: str, answer: Callable[[Request, Any], Awaitable[Reply]], request: Request, context: Any
    ) -> Reply:
        return await self._front.answer(
            RunsStub, method, request, request.job_id, lambda: answer(request, context), context
        )

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Assignment:
        """A process says who it is."""
        return await self._by_job("Register", self._here.Register, request, context)

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatReply:
        """A process lives."""
        return await self._by_job("Heartbeat", self._here.Heartbeat, request, context)

    async def Record(self, request: pb.RecordRequest, context: Any) -> pb.RunRecord:
        """The run record, now or when it is newer."""
        return await self._by_job("Record", self._here.Record, request, context)

    async def Report(self, request: pb.ReportRequest, context: Any) -> pb.ReportReply:
        """What was measured or written."""
        return await self._by_job("Report", self._here.Report, request, context)


class Desk:
    """For commands of the bus: the use cases that they name, by whoever runs the job."""

    def __init__(self, jobs: RoutedJobs) -> None:
        self._jobs = jobs

    async def submit(self, spec_json: str, *, request_id: str, submitter: str, dry_run: bool) -> pb.Job:
        """See Jobs."""
        request = pb.SubmitRequest(
            spec_json=spec_json, request_id=request_id, submitter=submitter, dry_run=dry_run
        )
        return await self._jobs.Submit(request, None)

    async def stop(self, job_id: str, *, reason: str, finish: bool) -> pb.Job:
        """See Jobs."""
        return await self._jobs.Stop(pb.StopRequest(job_id=job_id, reason=reason, finish=finish), None)

    async def suspend(self, job_id: str, *, reason: str) -> pb.Job:
        """See Jobs."""
        return await self._jobs.Suspend(pb.SuspendRequest(job_id=job_id, reason=reason), None)

    async def resume(self, job_id: str) -> pb.Job:
        """See Jobs."""
        return await self._jobs.Resume(pb.JobRequest(job_id=job_id), None)
