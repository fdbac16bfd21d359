"""Servers and channels over real sockets, asyncio and threads, with the project's own stubs."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import REGISTRY

from recmesh.pb import ckptcache_pb2, ckptcache_pb2_grpc, jobmaster_pb2, jobmaster_pb2_grpc
from recmesh.runtime.errors import (
    BY_GRPC_CODE,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    MeshError,
    NotFound,
    Unauthenticated,
    Unavailable,
    Violation,
)
from recmesh.runtime.lifecycle import PortTaken
from recmesh.runtime.rpc import Lane, RpcServer, Tls, channel, deadline, remaining_s, sync_channel, sync_server
from recmesh.runtime.telemetry import span, trace_ids
from tests.support.certificates import certificates
from tests.support.servers import free_port
from tests.support.tracing import tracing

pytestmark = pytest.mark.integration
__all__ = ["tracing"]

JOBS = "recmesh.jobmaster.v1.Jobs"
SECRET = "the password is hunter2"


class Jobs(jobmaster_pb2_grpc.JobsServicer):
    """Answers, or raises what the job's id says."""

    def __init__(self) -> None:
        self.calls = 0
        self.peer: Any = None

    async def Get(self, request: Any, context: Any) -> Any:
        self.calls += 1
        if request.job_id in BY_GRPC_CODE:
            raise BY_GRPC_CODE[request.job_id](
                "because", reason="WHY", violations=[Violation("a.b", "is wrong")], metadata={"k": "v"}
            )
        if request.job_id == "bug":
            raise ValueError(SECRET)
        if request.job_id == "slow":
            await asyncio.Event().wait()
        if request.job_id == "onward" and self.peer is not None:
            return await self.peer.Get(jobmaster_pb2.JobRequest(job_id="left"), timeout=60)
        left = remaining_s()
        return jobmaster_pb2.Job(job_id=request.job_id, created=left or 0.0, name=trace_ids()[0])


class Snapshots(ckptcache_pb2_grpc.CheckpointsServicer):
    """Streams both ways."""

    async def FetchPart(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield ckptcache_pb2.PartChunk(data=b"1")
        if request.part_uri == "fails":
            raise NotFound("no such part", reason="NO_PART", violations=[Violation("part_uri", "is gone")])
        if request.part_uri == "bug":
            raise ValueError(SECRET)
        yield ckptcache_pb2.PartChunk(data=b"2")

    async def StreamPart(self, request_iterator: Any, context: Any) -> Any:
        async for chunk in request_iterator:
            if chunk.data == b"bad":
                raise InvalidArgument("a chunk is damaged", reason="BAD_CHUNK")
        return ckptcache_pb2.StorePartReply()


class SyncSnapshots(ckptcache_pb2_grpc.CheckpointsServicer):
    """The same for threads."""

    def FetchPart(self, request: Any, context: Any) -> Iterator[Any]:
        yield ckptcache_pb2.PartChunk(data=b"1")
        if request.part_uri == "fails":
            raise NotFound("no such part", reason="NO_PART", violations=[Violation("part_uri", "is gone")])
        yield ckptcache_pb2.PartChunk(data=b"2")

    def StreamPart(self, request_iterator: Any, context: Any) -> Any:
        for chunk in request_iterator:
            if chunk.data == b"bad":
                raise InvalidArgument("a chunk is damaged", reason="BAD_CHUNK")
        return ckptcache_pb2.StorePartReply()


class SyncJobs(jobmaster_pb2_grpc.JobsServicer):
    """The same for threads."""

    def Get(self, request: Any, context: Any) -> Any:
        if request.job_id in BY_GRPC_CODE:
            raise BY_GRPC_CODE[request.job_id](
                "because", reason="WHY", violations=[Violation("a.b", "is wrong")], metadata={"k": "v"}
            )
        if request.job_id == "bug":
            raise ValueError(SECRET)
        return jobmaster_pb2.Job(job_id=request.job_id, created=remaining_s() or 0.0)


def make(kind: Any) -> Any:
    """An instance of a servicer that leaves methods out, which the generated types forbid."""
    return kind()


@contextlib.asynccontextmanager
async def served(jobs: Jobs | None = None, **options: Any) -> AsyncIterator[RpcServer]:
    servicer = jobs or make(Jobs)
    server = RpcServer(
        "tests", options.pop("address", "127.0.0.1:0"),
        [
            lambda made: jobmaster_pb2_grpc.add_JobsServicer_to_server(servicer, made),
            lambda made: ckptcache_pb2_grpc.add_CheckpointsServicer_to_server(make(Snapshots), made),
        ],
        service_names=[JOBS], grace_s=0.2, **options,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.contextmanager
def sync_served(**options: Any) -> Iterator[str]:
    server = sync_server(
        "tests", "127.0.0.1:0",
        [
            lambda made: jobmaster_pb2_grpc.add_JobsServicer_to_server(make(SyncJobs), made),
            lambda made: ckptcache_pb2_grpc.add_CheckpointsServicer_to_server(make(SyncSnapshots), made),
        ], **options,
    )
    try:
        yield server.address
    finally:
        server.stop(0.2)


def job(job_id: str) -> jobmaster_pb2.JobRequest:
    return jobmaster_pb2.JobRequest(job_id=job_id)


@pytest.mark.asyncio
@pytest.mark.parametrize("code", sorted(BY_GRPC_CODE))
async def test_every_error_class_arrives_as_itself_with_its_details(code: str) -> None:
    async with served() as server, channel(server.address) as mesh:
        with pytest.raises(MeshError) as caught:
            await jobmaster_pb2_grpc.JobsStub(mesh).Get(job(code), timeout=20)
    error = caught.value
    assert type(error) is BY_GRPC_CODE[code]
    assert (error.message, error.reason, error.metadata) == ("because", "WHY", {"k": "v"})
    assert error.violations == (Violation("a.b", "is wrong"),)


@pytest.mark.parametrize("code", sorted(BY_GRPC_CODE))
def test_every_error_class_arrives_as_itself_from_and_in_threads(code: str) -> None:
    with sync_served() as address, sync_channel(address) as mesh:
        with pytest.raises(MeshError) as caught:
            jobmaster_pb2_grpc.JobsStub(mesh).Get(job(code), timeout=20)
    assert type(caught.value) is BY_GRPC_CODE[code]
    assert caught.value.violations == (Violation("a.b", "is wrong"),)


@pytest.mark.asyncio
async def test_a_bug_tells_the_caller_an_id_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as server, channel(server.address) as mesh:
        with pytest.raises(Internal) as caught:
            await jobmaster_pb2_grpc.JobsStub(mesh).Get(job("bug"))
    assert "hunter2" not in str(caught.value)
    error_id = caught.value.metadata["error_id"]
    logged = [item for item in caplog.records if getattr(item, "error_id", "") == error_id]
    assert len(logged) == 1 and logged[0].exc_info is not None


def test_a_bug_in_a_thread_tells_an_id_too(caplog: pytest.LogCaptureFixture) -> None:
    with sync_served() as address, sync_channel(address) as mesh:
        with pytest.raises(Internal) as caught:
            jobmaster_pb2_grpc.JobsStub(mesh).Get(job("bug"))
    assert "hunter2" not in str(caught.value) and caught.value.metadata["error_id"] in caught.value.message


@pytest.mark.asyncio
async def test_an_error_in_the_midst_of_a_stream_comes_after_what_was_sent() -> None:
    async with served() as server, channel(server.address) as mesh:
        stub = ckptcache_pb2_grpc.CheckpointsStub(mesh)
        got = []
        with pytest.raises(NotFound) as caught:
            async for chunk in stub.FetchPart(ckptcache_pb2.FetchPartRequest(part_uri="fails")):
                got.append(chunk.data)
        assert got == [b"1"]
        assert caught.value.violations == (Violation("part_uri", "is gone"),)
        with pytest.raises(Internal, match="internal error in"):
            async for _ in stub.FetchPart(ckptcache_pb2.FetchPartRequest(part_uri="bug")):
                pass
        chunks = [ckptcache_pb2.PartChunk(data=data) for data in (b"good", b"bad")]
        with pytest.raises(InvalidArgument, match="damaged"):
            await stub.StreamPart(iter(chunks))


def test_streams_of_threads_carry_errors_too() -> None:
    with sync_served() as address, sync_channel(address) as mesh:
        stub = ckptcache_pb2_grpc.CheckpointsStub(mesh)
        got = []
        with pytest.raises(NotFound) as caught:
            for chunk in stub.FetchPart(ckptcache_pb2.FetchPartRequest(part_uri="fails")):
                got.append(chunk.data)
        assert got == [b"1"] and caught.value.reason == "NO_PART" and caught.value.from_server
        with pytest.raises(InvalidArgument, match="damaged"):
            stub.StreamPart(iter([ckptcache_pb2.PartChunk(data=b"bad")]))


@pytest.mark.asyncio
async def test_a_large_list_of_violations_still_arrives_as_invalid_argument() -> None:
    class Strict(Jobs):
        async def Get(self, request: Any, context: Any) -> Any:
            raise InvalidArgument("bad", violations=[Violation(f"field{n}", "x" * 200) for n in range(5000)])

    async with served(make(Strict)) as server, channel(server.address) as mesh:
        with pytest.raises(InvalidArgument) as caught:
            await jobmaster_pb2_grpc.JobsStub(mesh).Get(job("x"))
    assert len(caught.value.violations) > 100
    assert caught.value.message == "bad"        # the others are not told twice


@pytest.mark.asyncio
async def test_other_clients_read_in_the_text_what_is_wrong() -> None:
    class Strict(Jobs):
        async def Get(self, request: Any, context: Any) -> Any:
            many = int(request.job_id)
            raise InvalidArgument("bad", violations=[Violation(f"field{n}", "is wrong") for n in range(many)])

    async with served(make(Strict)) as server, grpc.aio.insecure_channel(server.address) as link:
        texts = []
        for many in ("0", "2", "100"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await jobmaster_pb2_grpc.JobsStub(link).Get(job(many), timeout=20)
            texts.append(caught.value.details() or "")
    assert texts[:2] == ["bad", "bad: field0: is wrong; field1: is wrong"]
    assert texts[2].startswith(texts[1]) and texts[2].endswith("…") and len(texts[2]) <= 510


def counted(code: str) -> float:
    labels = {"method": "/recmesh.jobmaster.v1.Jobs/Get", "code": code}
    return REGISTRY.get_sample_value("recmesh_rpc_server_seconds_count", labels) or 0.0


@pytest.mark.asyncio
async def test_a_call_is_counted_under_the_code_that_was_answered() -> None:
    class Own(Jobs):
        async def Get(self, request: Any, context: Any) -> Any:
            if request.job_id == "own":
                await context.abort(grpc.StatusCode.OUT_OF_RANGE, "too far")
            return await super().Get(request, context)

    asked = {"INVALID_ARGUMENT": "INVALID_ARGUMENT", "own": "OUT_OF_RANGE", "bug": "INTERNAL", "fine": "OK"}
    before = {code: counted(code) for code in asked.values()}
    async with served(make(Own)) as server, channel(server.address) as mesh:
        for job_id in asked:
            with contextlib.suppress(MeshError):
                await jobmaster_pb2_grpc.JobsStub(mesh).Get(job(job_id), timeout=20)
    assert {code: counted(code) - before[code] for code in asked.values()} == dict.fromkeys(asked.values(), 1.0)


def test_a_call_in_threads_is_counted_under_the_code_that_was_answered() -> None:
    before = counted("NOT_FOUND"), counted("INTERNAL")
    with sync_served() as address, sync_channel(address) as mesh, pytest.raises(NotFound):
        jobmaster_pb2_grpc.JobsStub(mesh).Get(job("NOT_FOUND"), timeout=20)
    assert (counted("NOT_FOUND"), counted("INTERNAL")) == (before[0] + 1, before[1])


@pytest.mark.asyncio
async def test_a_method_that_is_not_served_says_so() -> None:
    async with served() as server, channel(server.address) as mesh:
        with pytest.raises(Internal) as caught:
            await jobmaster_pb2_grpc.JobsStub(mesh).Stop(jobmaster_pb2.StopRequest())
    assert caught.value.reason == "UNIMPLEMENTED"


@pytest.mark.asyncio
async def test_what_is_left_of_the_inbound_call_bounds_the_outbound_one() -> None:
    inner, outer = make(Jobs), make(Jobs)
    async with served(inner) as back, served(outer) as front, channel(back.address) as between:
        outer.peer = jobmaster_pb2_grpc.JobsStub(between)
        async with channel(front.address) as mesh:
            answer = await jobmaster_pb2_grpc.JobsStub(mesh).Get(job("onward"), timeout=20)
    # gRPC rounds a timeout up on the wire, by up to one per cent at each hop; without the bound it would be near 60.
    assert answer.job_id == "left" and 0 < answer.created < 25


@pytest.mark.asyncio
async def test_no_call_begins_when_no_time_is_left() -> None:
    jobs = make(Jobs)
    async with served(jobs) as server, channel(server.address) as mesh:
        with deadline(0.0), pytest.raises(DeadlineExceeded, match="no time is left"):
            await jobmaster_pb2_grpc.JobsStub(mesh).Get(job("x"), timeout=5)
    assert jobs.calls == 0


@pytest.mark.asyncio
async def test_a_call_without_a_deadline_gets_one() -> None:
    async with served() as server, channel(server.address) as mesh:
        answer = await jobmaster_pb2_grpc.JobsStub(mesh).Get(job("x"))
    assert 0 < answer.created < 11          # gRPC rounds up on the wire, by up to one per cent


@pytest.mark.asyncio
async def test_a_slow_server_is_told_apart_from_one_that_is_not_there() -> None:
    async with served() as server, channel(server.address, who="jobmaster") as mesh:
        with pytest.raises(DeadlineExceeded, match=r"jobmaster at [0-9.:]+ did not answer in time"):
            await jobmaster_pb2_grpc.JobsStub(mesh).Get(job("slow"), timeout=0.3)
    async with channel(f"127.0.0.1:{free_port()}", who="jobmaster") as nobody:
        with pytest.raises(Unavailable, match=r"jobmaster at [0-9.:]+ cannot be reached") as away:
            await jobmaster_pb2_grpc.JobsStub(nobody).Get(job("x"), timeout=0.3)
        assert not away.value.from_server


def test_threads_tell_an_absent_server_from_a_slow_one_too() -> None:
    with sync_channel(f"127.0.0.1:{free_port()}") as nobody:
        with pytest.raises(Unavailable, match="cannot be reached"):
            jobmaster_pb2_grpc.JobsStub(nobody).Get(job("x"), timeout=0.3)


@pytest.mark.asyncio
async def test_calls_wait_for_a_server_that_restarts_at_the_same_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    async with channel(address) as mesh:
        stub = jobmaster_pb2_grpc.JobsStub(mesh)
        async with served(address=address):
            await stub.Get(job("first"), timeout=20)
        waiting = asyncio.ensure_future(stub.Get(job("second"), timeout=20))
        await asyncio.sleep(0)
        async with served(address=address):
            assert (await waiting).job_id == "second"


@pytest.mark.asyncio
async def test_the_token_is_asked_of_every_call_but_probes() -> None:
    async with served(token="right") as server:
        server.set_ready(True)
        async with channel(server.address, token="right") as mesh:
            assert (await jobmaster_pb2_grpc.JobsStub(mesh).Get(job("x"))).job_id == "x"
        for wrong in (None, "wrong"):
            async with channel(server.address, token=wrong) as mesh:
                with pytest.raises(Unauthenticated):
                    await jobmaster_pb2_grpc.JobsStub(mesh).Get(job("x"))
                reply = await health_pb2_grpc.HealthStub(mesh).Check(health_pb2.HealthCheckRequest())
                assert reply.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.asyncio
async def test_health_follows_readiness() -> None:
    async with served() as server, channel(server.address) as mesh:
        stub = health_pb2_grpc.HealthStub(mesh)
        asked = health_pb2.HealthCheckRequest(service=JOBS)
        assert (await stub.Check(asked)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        server.set_ready(True)
        await asyncio.sleep(0)
        assert (await stub.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.asyncio
async def test_reflection_lists_the_services() -> None:
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with served() as server, channel(server.address) as mesh:
        stub = reflection_pb2_grpc.ServerReflectionStub(mesh)
        asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
        names: list[str] = []
        async for reply in stub.ServerReflectionInfo(iter(asked)):
            names = [item.name for item in reply.list_services_response.service]
            break
    assert JOBS in names


@pytest.mark.asyncio
@pytest.mark.usefixtures("tracing")
async def test_one_trace_goes_through_a_call() -> None:
    async with served() as server, channel(server.address) as mesh:
        with span("outside"):
            mine = trace_ids()[0]
            assert (await jobmaster_pb2_grpc.JobsStub(mesh).Get(job("x"))).name == mine


@pytest.mark.asyncio
async def test_a_taken_port_is_named() -> None:
    async with served() as server:
        with pytest.raises(PortTaken, match=server.address):
            async with served(address=server.address):
                pass


@pytest.mark.asyncio
async def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="is not host:port"):
        async with served(address="localhost"):
            pass


def test_several_calls_in_flight_from_one_thread() -> None:
    with sync_served() as address, sync_channel(address) as mesh:
        stub: Any = jobmaster_pb2_grpc.JobsStub(mesh)
        pending = [stub.Get.future(job(str(index)), timeout=20) for index in range(20)]
        assert [item.result().job_id for item in pending] == [str(index) for index in range(20)]
        with pytest.raises(NotFound):
            stub.Get.future(job("NOT_FOUND"), timeout=20).result()


@pytest.mark.asyncio
async def test_mutual_tls_lets_only_certified_clients_in(tmp_path: Path) -> None:
    mine = certificates(tmp_path)
    async with served(tls=mine) as server:
        async with channel(server.address, tls=mine) as mesh:
            assert (await jobmaster_pb2_grpc.JobsStub(mesh).Get(job("x"), timeout=20)).job_id == "x"
        async with channel(server.address, tls=Tls(ca=mine.ca, server_name="localhost")) as mesh:
            with pytest.raises(Unavailable):
                await jobmaster_pb2_grpc.JobsStub(mesh).Get(job("x"), timeout=1)


def test_a_certificate_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"tls_ca: cannot read .*gone\.pem"):
        channel("127.0.0.1:1", tls=Tls(ca=tmp_path / "gone.pem"))


def test_a_trainers_process_needs_no_service_packages() -> None:
    code = (
        "import sys\n"
        "for name in ('grpc_reflection', 'nats', 'fastapi', 'starlette', 'uvicorn', 'jinja2', 'uvloop'):\n"
        "    sys.modules[name] = None\n"
        "from recmesh.runtime.rpc import sync_server, sync_channel\n"
        "sync_server('x', '127.0.0.1:0', []).stop(0)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_methods_of_a_lane_never_wait_for_the_threads_of_others() -> None:
    busy, released = threading.Event(), threading.Event()

    class Slow(jobmaster_pb2_grpc.JobsServicer):
        def Get(self, request: Any, context: Any) -> Any:
            busy.set()
            released.wait(10.0)
            return jobmaster_pb2.Job(job_id=request.job_id)

        def Stop(self, request: Any, context: Any) -> Any:
            return jobmaster_pb2.Job(job_id=threading.current_thread().name)

    def register(server: Any) -> None:
        servicer = Slow()  # type: ignore[abstract]  # the other methods are not called
        jobmaster_pb2_grpc.add_JobsServicer_to_server(servicer, server)

    server = sync_server("jobs", "127.0.0.1:0", [register], max_workers=1, lanes=[Lane("order", 1, {"Stop"})])
    try:
        with sync_channel(server.address) as line:
            stub = jobmaster_pb2_grpc.JobsStub(line)
            waiting = [stub.Get.future(jobmaster_pb2.JobRequest(job_id=str(n)), timeout=20.0) for n in range(3)]
            assert busy.wait(10.0)
            answer = stub.Stop(jobmaster_pb2.StopRequest(job_id="x"), timeout=10.0)
            assert answer.job_id.startswith("jobs-order") and not any(call.done() for call in waiting)
            released.set()
            assert [call.result(10.0).job_id for call in waiting] == ["0", "1", "2"]
    finally:
        released.set()
        server.stop(1.0)
