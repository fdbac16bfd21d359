"""gRPC face of jobmaster: decode, call the use case, encode. The server's interceptor maps errors."""

from collections.abc import Callable
from typing import Any

import grpc

from recmesh.pb import jobmaster_pb2, jobmaster_pb2_grpc
from services.jobmaster import wire
from services.jobmaster.app.jobs import Jobs, pinned_of, wanted_of
from services.jobmaster.app.roles import Roles
from services.jobmaster.app.run import Run

SERVICE_NAMES = ("recmesh.jobmaster.v1.Jobs", "recmesh.jobmaster.v1.Runs")
DIRECTIVES = {
    "continue": jobmaster_pb2.HeartbeatReply.CONTINUE,
    "drain": jobmaster_pb2.HeartbeatReply.DRAIN,
    "exit": jobmaster_pb2.HeartbeatReply.EXIT,
}


def job_message(run: Run) -> jobmaster_pb2.Job:
    """The job with what its processes last said."""
    return wire.job(
        run.job, run.spec, run.status, run.record, beats=run.vitals.beats, wanted=wanted_of(run),
        pinned=pinned_of(run),
    )


class JobsServicer(jobmaster_pb2_grpc.JobsServicer):
    """What users (through gateway) ask."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    async def Submit(self, request: jobmaster_pb2.SubmitRequest, context: Any) -> jobmaster_pb2.Job:
        """A new job."""
        return job_message(
            await self._jobs.submit(
                request.spec_json, request_id=request.request_id, submitter=request.submitter,
                dry_run=request.dry_run,
            )
        )

    async def Get(self, request: jobmaster_pb2.JobRequest, context: Any) -> jobmaster_pb2.Job:
        """One job."""
        return job_message(self._jobs.run_of(request.job_id))

    async def List(self, request: jobmaster_pb2.ListRequest, context: Any) -> jobmaster_pb2.ListReply:
        """Jobs, the newest first."""
        return self.page(request)

    def page(self, request: jobmaster_pb2.ListRequest) -> jobmaster_pb2.ListReply:
        """Of the jobs of this jobmaster."""
        runs, token = self._jobs.page(
            owner=request.owner, phase=request.phase, labels=dict(request.labels), limit=request.limit,
            page_token=request.page_token, namespace=request.namespace,
        )
        return jobmaster_pb2.ListReply(
            jobs=[job_message(run) for run in runs], next_page_token=token, buckets=sorted(self._jobs.buckets)
        )

    async def Stop(self, request: jobmaster_pb2.StopRequest, context: Any) -> jobmaster_pb2.Job:
        """Stop, or finish early."""
        return job_message(
            await self._jobs.stop(request.job_id, reason=request.reason, finish=request.finish)
        )

    async def Scale(self, request: jobmaster_pb2.ScaleRequest, context: Any) -> jobmaster_pb2.Job:
        """Pin or free a role's count."""
        return job_message(
            await self._jobs.scale(
                request.job_id, role=request.role, replicas=request.replicas, clear=request.clear
            )
        )

    async def Resize(self, request: jobmaster_pb2.ResizeRequest, context: Any) -> jobmaster_pb2.Job:
        """Another size of a role's processes."""
        return job_message(
            await self._jobs.resize(
                request.job_id, role=request.role, cpu=request.cpu, memory_bytes=request.memory_bytes
            )
        )

    async def Suspend(self, request: jobmaster_pb2.SuspendRequest, context: Any) -> jobmaster_pb2.Job:
        """Set it aside."""
        return job_message(await self._jobs.suspend(request.job_id, reason=request.reason))

    async def Resume(self, request: jobmaster_pb2.JobRequest, context: Any) -> jobmaster_pb2.Job:
        """Go on with it."""
        return job_message(await self._jobs.resume(request.job_id))

    async def Checkpoint(
        self, request: jobmaster_pb2.JobRequest, context: Any
    ) -> jobmaster_pb2.CheckpointReply:
        """A snapshot now."""
        return jobmaster_pb2.CheckpointReply(snapshot=await self._jobs.checkpoint(request.job_id))

    async def Delete(self, request: jobmaster_pb2.JobRequest, context: Any) -> jobmaster_pb2.DeleteReply:
        """Remove the job."""
        await self._jobs.delete(request.job_id)
        return jobmaster_pb2.DeleteReply()

    async def Logs(self, request: jobmaster_pb2.LogsRequest, context: Any) -> jobmaster_pb2.LogsReply:
        """The last lines of its processes."""
        tails = await self._jobs.logs(
            request.job_id, role=request.role, index=request.index, tail=request.tail
        )
        return jobmaster_pb2.LogsReply(
            logs=[
                jobmaster_pb2.RoleLog(
                    role=tail.role, index=tail.index, incarnation=tail.incarnation, lines=tail.lines
                )
                for tail in tails
            ]
        )

    async def Events(self, request: jobmaster_pb2.EventsRequest, context: Any) -> jobmaster_pb2.EventsReply:
        """What happened to it."""
        return wire.events(self._jobs.events(request.job_id, limit=request.limit))


class RunsServicer(jobmaster_pb2_grpc.RunsServicer):
    """What a job's own processes say and ask."""

    def __init__(self, roles: Roles, *, now: Callable[[], float]) -> None:
        self._roles = roles
        self._now = now

    async def Register(
        self, request: jobmaster_pb2.RegisterRequest, context: Any
    ) -> jobmaster_pb2.Assignment:
        """A process says who it is."""
        given = await self._roles.register(
            request.job_id, role=request.role, index=request.index, incarnation=request.incarnation,
            address=request.address, host=request.host,
        )
        return jobmaster_pb2.Assignment(
            spec_json=given.spec_json, record=wire.run_record(given.record), heartbeat_s=given.heartbeat_s,
            shardsvc=given.shardsvc, ckptcache=given.ckptcache, storage_uri=given.storage_uri,
            task=given.task, snapshot=given.snapshot, parts=given.parts, export_uri=given.export_uri,
            executors=wire.executors(given.executors),
        )

    async def Heartbeat(
        self, request: jobmaster_pb2.HeartbeatRequest, context: Any
    ) -> jobmaster_pb2.HeartbeatReply:
        """A process lives."""
        answer = self._roles.heartbeat(
            request.job_id, role=request.role, index=request.index, beat=wire.beat(request, at=self._now())
        )
        return jobmaster_pb2.HeartbeatReply(
            directive=DIRECTIVES[answer.directive],
            gen=answer.gen, map_version=answer.map_version, phase=answer.phase,
            executors=wire.executors(answer.executors),
        )

    async def Record(self, request: jobmaster_pb2.RecordRequest, context: Any) -> jobmaster_pb2.RunRecord:
        """The run record, now or when it is newer."""
        record = await self._roles.record(
            request.job_id, newer_than_gen=request.newer_than_gen, wait_s=request.wait_s
        )
        return wire.run_record(record)

    async def Report(self, request: jobmaster_pb2.ReportRequest, context: Any) -> jobmaster_pb2.ReportReply:
        """What was measured or written."""
        await self._roles.report(
            request.job_id, role=request.role, incarnation=request.incarnation, snapshot=request.snapshot,
            samples=request.samples, metrics=dict(request.metrics), model_uri=request.model_uri,
            framework=request.framework, error=request.error, final=request.final,
        )
        return jobmaster_pb2.ReportReply()


def registrations(
    jobs: jobmaster_pb2_grpc.JobsServicer, runs: jobmaster_pb2_grpc.RunsServicer
) -> list[Callable[[grpc.aio.Server], None]]:
    """What the server serves."""
    return [
        lambda server: jobmaster_pb2_grpc.add_JobsServicer_to_server(jobs, server),
        lambda server: jobmaster_pb2_grpc.add_RunsServicer_to_server(runs, server),
    ]
