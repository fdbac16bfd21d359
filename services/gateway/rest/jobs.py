"""`/v1/jobs`: training jobs, by jobmaster."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, MeshError, PermissionDenied, Violation
from recmesh.runtime.telemetry import get_logger
from recmesh.serving.settings import PredictionLog
from recmesh.spec.namespaces import NAMESPACE_END
from recmesh.spec.quantity import CPU, Memory
from services.gateway.app.ports import Document, JobEvents
from services.gateway.domain.callers import ADMIN, JOBS, Caller
from services.gateway.peers.jobs import JobsPeer
from services.gateway.rest import openapi
from services.gateway.rest.bodies import as_json, read_document, read_model
from services.gateway.rest.calls import caller_of

logger = get_logger(__name__)

EXAMPLE: Document = {
    "name": "flights",
    "model": {"zoo": "torch_dcn_v2", "params": {"embedding_dim": 8}},
    "dataset": "flights",
    "roles": {"ps": {"replicas": 2}, "worker": {"replicas": 2}},
    "training": {"batch_size": 512, "epochs": 2},
}

OVER = frozenset({"Succeeded", "Failed", "Stopped"})
"""Phases of a job that has ended."""

JobId = Annotated[str, Path(description="The job's id", examples=["flights-7f3a"], max_length=128)]


class StopBody(BaseModel):
    """How to end a job."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(default="", max_length=500, examples=["superseded"])
    """Kept with the job."""
    finish: bool = False
    """Succeed at the next snapshot, with what is trained so far, instead of stopping."""


class SuspendBody(BaseModel):
    """Why a job is set aside."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(default="", max_length=500, examples=["room for a launch"])
    """Kept with the job."""


class ScaleBody(BaseModel):
    """How many processes of a role."""

    model_config = ConfigDict(extra="forbid")

    role: str = Field(examples=["worker"])
    replicas: int | None = Field(default=None, ge=0, examples=[3])
    """Pins the count; null lets brain choose again."""


class ResizeBody(BaseModel):
    """How large each process of a role is; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")

    role: str = Field(examples=["ps"])
    cpu: CPU | None = Field(default=None, examples=[2])
    """Cores."""
    memory: Memory | None = Field(default=None, examples=["4Gi"])
    """Bytes, or a quantity."""


def router(jobs: JobsPeer, events: JobEvents, *, closing: asyncio.Event) -> APIRouter:
    """The routes."""
    async def of_caller(request: Request) -> None:
        """A job that is named must be one that the caller reaches."""
        await check_job(request, jobs)

    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"], dependencies=[Depends(of_caller)])

    @routes.post(
        "", status_code=201, operation_id="submitJob", summary="Submit a training job",
        responses=openapi.problems(400, 409, 415),
        openapi_extra=openapi.documents(EXAMPLE, about="A TrainingJob, as for `recmesh submit`."),
    )  # fmt: skip
    async def submit(
        request: Request,
        response: Response,
        dry_run: Annotated[bool, Query(description="Check only; nothing is created")] = False,
        idempotency_key: Annotated[
            str, Header(description="Sent again after a lost answer, it gives the same job", max_length=128)
        ] = "",
    ) -> Document:
        """Checks the job and starts it. Every wrong field is named; then nothing is created."""
        spec = in_namespace(await read_document(request), caller_of(request))
        check_export(spec, caller_of(request))
        job = await jobs.submit(
            as_json(spec), request_id=idempotency_key, submitter="rest", dry_run=dry_run
        )
        if dry_run:
            response.status_code = 200
        else:
            response.headers["Location"] = f"/v1/jobs/{job['job_id']}"
        return job

    @routes.get("", operation_id="listJobs", summary="List jobs", responses=openapi.problems(400))
    async def list_jobs(
        request: Request,
        owner: Annotated[str, Query(description="Only this owner's")] = "",
        namespace: Annotated[str, Query(description="Only of this namespace")] = "",
        phase: Annotated[str, Query(description="Only in this phase", examples=["Running"])] = "",
        label: Annotated[list[str] | None, Query(description="Only with this label: `key=value`")] = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        page_token: Annotated[str, Query(description="`next_page_token` of the page before")] = "",
    ) -> Document:
        """Newest first, page by page."""
        return await jobs.list(
            owner=owner, phase=phase, limit=limit, page_token=page_token, labels=_labels(label or []),
            namespace=chosen(namespace, caller_of(request)),
        )

    @routes.get("/{job_id}", operation_id="getJob", summary="One job", responses=openapi.problems(404))
    async def get(job_id: JobId) -> Document:
        """Phase, progress, roles, metrics, specification."""
        return await jobs.get(job_id)

    @routes.delete(
        "/{job_id}", status_code=204, operation_id="deleteJob", summary="Delete a job",
        responses=openapi.problems(404, 409),
    )  # fmt: skip
    async def delete(
        job_id: JobId,
        force: Annotated[bool, Query(description="Stop it first, if it has not ended")] = False,
    ) -> None:
        """Deletes its record and checkpoints; a model that it made stays. A job that has not ended is refused."""
        if not force and (phase := (await jobs.get(job_id))["phase"]) not in OVER:
            raise FailedPrecondition(
                f"job {job_id} is {phase}; stop it first, or delete it with force=true", reason="JOB_LIVE"
            )
        await jobs.delete(job_id)

    @routes.post(
        "/{job_id}:stop", operation_id="stopJob", summary="Stop a job", responses=openapi.problems(404, 409),
        openapi_extra=openapi.body(StopBody, required=False),
    )  # fmt: skip
    async def stop(job_id: JobId, request: Request) -> Document:
        """Ends its processes after a last snapshot."""
        given = await read_model(request, StopBody)
        return await jobs.stop(job_id, reason=given.reason, finish=given.finish)

    @routes.post(
        "/{job_id}:suspend", operation_id="suspendJob", summary="Set a job aside",
        responses=openapi.problems(404, 409), openapi_extra=openapi.body(SuspendBody, required=False),
    )  # fmt: skip
    async def suspend(job_id: JobId, request: Request) -> Document:
        """It saves a snapshot, its processes go, and it waits in phase `Suspended`."""
        given = await read_model(request, SuspendBody)
        return await jobs.suspend(job_id, reason=given.reason)

    @routes.post(
        "/{job_id}:resume", operation_id="resumeJob", summary="Go on with a suspended job",
        responses=openapi.problems(404, 409),
    )  # fmt: skip
    async def resume(job_id: JobId) -> Document:
        """From the snapshot that it saved."""
        return await jobs.resume(job_id)

    @routes.post(
        "/{job_id}:scale", operation_id="scaleJob", summary="Add or remove processes of a role",
        responses=openapi.problems(400, 404, 409), openapi_extra=openapi.body(ScaleBody),
    )  # fmt: skip
    async def scale(job_id: JobId, request: Request) -> Document:
        """Training goes on meanwhile."""
        given = await read_model(request, ScaleBody)
        return await jobs.scale(job_id, role=given.role, replicas=given.replicas)

    @routes.post(
        "/{job_id}:resize", operation_id="resizeJob", summary="Give the processes of a role another size",
        responses=openapi.problems(400, 404, 409), openapi_extra=openapi.body(ResizeBody),
    )  # fmt: skip
    async def resize(job_id: JobId, request: Request) -> Document:
        """While training goes on: in place where the controller can do that, else process by process."""
        given = await read_model(request, ResizeBody)
        return await jobs.resize(job_id, role=given.role, cpu=given.cpu, memory_bytes=given.memory)

    @routes.post(
        "/{job_id}:checkpoint", operation_id="checkpointJob", summary="Cut a snapshot now",
        responses=openapi.problems(404, 409, 504),
    )  # fmt: skip
    async def checkpoint(job_id: JobId) -> Document:
        """Answers when it is committed."""
        return await jobs.checkpoint(job_id)

    @routes.get(
        "/{job_id}/checkpoints", operation_id="listCheckpoints", summary="A job's snapshots",
        responses=openapi.problems(404),
    )  # fmt: skip
    async def checkpoints(
        job_id: JobId,
        verify: Annotated[bool, Query(description="Read and hash every committed one first")] = False,
        snapshot: Annotated[int, Query(ge=0, description="With `verify`: only this one is read; 0: all")] = 0,
    ) -> Document:
        """With state, size and place; a damaged one names the file."""
        return await jobs.checkpoints(job_id, verify=verify, snapshot=snapshot)

    @routes.get(
        "/{job_id}/logs", operation_id="jobLogs", summary="The last lines of a job's processes",
        responses=openapi.problems(404),
    )  # fmt: skip
    async def logs(
        job_id: JobId,
        role: Annotated[str, Query(description="Only this role's", examples=["worker"])] = "",
        index: Annotated[int | None, Query(ge=0, description="Only this process of the role")] = None,
        tail: Annotated[int, Query(ge=1, le=10_000, description="Lines of each process")] = 100,
    ) -> Document:
        """What they wrote to stdout and stderr."""
        return await jobs.logs(job_id, role=role, index=index, tail=tail)

    @routes.get(
        "/{job_id}/events", operation_id="jobEvents", summary="What happened to a job",
        responses={**openapi.problems(404), 200: _EVENTS_RESPONSE}, response_model=None,
    )  # fmt: skip
    async def job_events(
        job_id: JobId,
        request: Request,
        after: Annotated[int, Query(ge=0, description="Only events with a higher sequence")] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
        last_event_id: Annotated[str, Header(description="Sent by an EventSource that connects again")] = "",
    ) -> Document | Response:
        """A list; with `Accept: text/event-stream` a live stream, from the start or after `Last-Event-ID`."""
        await jobs.get(job_id)
        if last_event_id:
            after = _sequence(last_event_id)
        if "text/event-stream" not in request.headers.get("accept", ""):
            return {"events": await events.history(job_id, after=after, limit=limit)}
        stream = _stream(events.live(job_id, after=after), closing)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    return routes


_EVENTS_RESPONSE: dict[str, Any] = {
    "description": "Events, oldest first; as a stream, the SSE id is the sequence.",
    "content": {"application/json": {}, "text/event-stream": {"schema": {"type": "string"}}},
}


async def _stream(
    live: AsyncGenerator[Document | None, None], closing: asyncio.Event
) -> AsyncIterator[bytes]:
    """Server-sent events; ends when the gateway stops or the bus fails: the reader connects again elsewhere."""
    closed = asyncio.ensure_future(closing.wait())
    coming: asyncio.Future[Document | None] | None = None
    try:
        yield b"retry: 2000\n\n"
        while not closed.done():
            coming = asyncio.ensure_future(anext(live, ENDED))
            await asyncio.wait({coming, closed}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                return
            event = coming.result()
            if event is ENDED:
                return
            yield _sse(event)
    except MeshError as error:
        logger.warning("a reader of events is sent away: %s", error.message)
    finally:
        closed.cancel()
        # Not awaited here: a reader that has gone cancels this over and over.
        leaving = asyncio.ensure_future(_leave(live, coming))
        _leaving.add(leaving)
        leaving.add_done_callback(_leaving.discard)


async def _leave(live: AsyncGenerator[Document | None, None], coming: asyncio.Future[Any] | None) -> None:
    """Closes what was read from; a generator that is at work cannot be closed before it is interrupted."""
    if coming is not None and not coming.done():
        coming.cancel()
        await asyncio.wait({coming})
    await live.aclose()


_leaving: set[asyncio.Future[None]] = set()
"""Kept from the garbage collector."""

ENDED: Document = {}
"""What `anext` answers when there is no more."""


def _sse(event: Document | None) -> bytes:
    if event is None:
        return b": alive\n\n"
    data = orjson.dumps(event).decode()
    return f"id: {event['sequence']}\nevent: {event['type']}\ndata: {data}\n\n".encode()


def _sequence(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise InvalidArgument(
            "the header Last-Event-ID is no id of this stream", reason="INVALID_REQUEST",
            violations=[Violation("header.last-event-id", "is not a whole number")],
        )  # fmt: skip
    return int(text)


def in_namespace(spec: Any, caller: Caller) -> Any:
    """The job in the caller's namespace, where its key has namespaces; PermissionDenied in another one.

    What is no job is left to jobmaster.
    """
    if not isinstance(spec, dict) or not caller.namespaces or ADMIN in caller.scopes:
        return spec
    return spec | {"namespace": chosen(str(spec.get("namespace") or ""), caller)}


def chosen(namespace: str, caller: Caller) -> str:
    """The namespace that is meant; PermissionDenied when the caller has namespaces, and that is none of them."""
    if not caller.namespaces or ADMIN in caller.scopes:
        return namespace
    if not namespace and len(caller.namespaces) == 1:
        return caller.namespaces[0]
    if namespace not in caller.namespaces:
        known = ", ".join(caller.namespaces)
        meant = f"not in {namespace!r}" if namespace else "and must say which (namespace)"
        raise PermissionDenied(f"{caller.name} may have jobs in {known}, {meant}", reason="WRONG_NAMESPACE")
    return namespace


async def check_job(request: Request, jobs: JobsPeer) -> None:
    """PermissionDenied when the job that the path names is in no namespace of the caller's, who has some."""
    caller, job_id = caller_of(request), request.path_params.get("job_id")
    if job_id is None or not caller.namespaces or ADMIN in caller.scopes:
        return
    if (await jobs.get(job_id)).get("namespace", "") not in caller.namespaces:
        known = ", ".join(caller.namespaces)
        raise PermissionDenied(f"{caller.name} may use jobs in {known} alone", reason="WRONG_NAMESPACE")


def check_export(spec: Any, caller: Caller) -> None:
    """PermissionDenied when the job's model, or the log of its predictions, would be another's.

    What is no job is left to jobmaster, which names each wrong field.
    """
    export = spec.get("export", {}) if isinstance(spec, dict) else None
    if not isinstance(export, dict):
        return
    name, namespace = export.get("model_name") or spec.get("name"), export.get("namespace")
    caller.check(JOBS, f"{namespace}{NAMESPACE_END}{name}" if namespace else str(name))
    serving = export.get("serving")
    log = serving.get("log") if isinstance(serving, dict) else None
    if isinstance(log, dict):
        caller.check_topic(str(log.get("topic", PredictionLog().topic)))


def _labels(items: list[str]) -> dict[str, str]:
    wrong = [Violation("query.label", f"{item!r} is not key=value") for item in items if "=" not in item]
    if wrong:
        raise InvalidArgument("a label filter is key=value", reason="INVALID_REQUEST", violations=wrong)
    return dict(item.split("=", 1) for item in items)
