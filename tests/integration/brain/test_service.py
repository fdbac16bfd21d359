"""brain as a process, over a real nats-server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TypeAlias

import httpx
import pytest

from recmesh.pb import brain_pb2 as pb
from recmesh.pb import brain_pb2_grpc as pb_grpc
from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import InvalidArgument, NotFound
from recmesh.runtime.events import catalog
from recmesh.runtime.rpc import channel
from tests.support.servers import NatsServer, nats
from tests.support.service_process import ServiceProcess, service

__all__ = ["nats"]
pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
GIB = 1 << 30
Stub: TypeAlias = "pb_grpc.BrainAsyncStub"  # it exists for the type checker only


@pytest.fixture
def brain(nats: NatsServer, tmp_path: Path) -> Iterator[ServiceProcess]:
    with service("brain", tmp_path / "brain", env={"RECMESH_NATS_URL": nats.url}) as process:
        yield process


@contextlib.asynccontextmanager
async def connected(process: ServiceProcess) -> AsyncIterator[Stub]:
    async with channel(process.address()) as link:
        yield pb_grpc.BrainStub(link)


def meta(job_id: str) -> pb.JobMeta:
    return pb.JobMeta(
        job_id=job_id, owner="ads", model="dcn_v2", framework="torch", tables=26, dim=16, batch_size=4096,
        data_rows=10**6, epochs=1,
    )  # fmt: skip


def ended(job_id: str, workers: int, *, at: float) -> pb.JobHistory:
    plan = [
        pb.RolePlan(role="ps", replicas=2, cpu=1, memory_bytes=GIB),
        pb.RolePlan(role="worker", replicas=workers, cpu=1, memory_bytes=GIB),
    ]
    return pb.JobHistory(job=meta(job_id), outcome="Succeeded", ended=at, final_plan=plan, samples_per_s=1e5)


async def test_a_first_job_gets_defaults_and_a_later_one_what_similar_jobs_ended_with(
    nats: NatsServer, brain: ServiceProcess
) -> None:
    limits = [pb.RoleLimits(role="ps", min=1, max=8), pb.RoleLimits(role="worker", min=1, max=64)]
    async with connected(brain) as stub:
        first = await stub.Plan(pb.PlanRequest(job=meta("first"), limits=limits))
        assert first.source == "default"
        assert {role.role: role.replicas for role in first.roles} == {"ps": 1, "worker": 2}
        for at, (job_id, workers) in enumerate([("a", 10), ("b", 12), ("c", 16)], start=1):
            await stub.RecordJob(ended(job_id, workers, at=at))
    brain.kill()
    brain.start()
    async with connected(brain) as stub:
        plan = await stub.Plan(pb.PlanRequest(job=meta("next"), limits=limits))
        assert plan.source == "similar"
        assert {role.role: role.replicas for role in plan.roles} == {"ps": 2, "worker": 14}
        assert [each.job_id for each in plan.similar] == ["c", "b", "a"]
        small = await stub.Plan(pb.PlanRequest(job=meta("small"), limits=limits, free_cpu=3))
        assert {role.role: role.replicas for role in small.roles} == {"ps": 2, "worker": 1}
        explained = await stub.Explain(pb.ExplainRequest(job_id="next"))
        assert explained.plan.plan_id == plan.plan_id
        assert [job.job.job_id for job in (await stub.History(pb.HistoryRequest(limit=2))).jobs] == ["c", "b"]
    bus = Bus(nats.url, "test")
    await bus.start()
    try:
        told = bus.events(catalog.PLAN_PROPOSED.subject, to_end=False)
        events = [(await asyncio.wait_for(anext(told), 30))[1] for _ in range(3)]
        assert {event.entity_id for event in events} == {"first", "next", "small"}
        await told.aclose()
    finally:
        await bus.stop()


async def test_profiles_are_kept_and_shown(brain: ServiceProcess) -> None:
    async with connected(brain) as stub:
        for at in (1.0, 2.0, 2.0):
            await stub.Observe(pb.Profile(job_id="j", at=at, workers=2, ps=1, samples_per_s=1e4, compute_s=0.5))
        explained = await stub.Explain(pb.ExplainRequest(job_id="j"))
        assert [profile.at for profile in explained.profiles] == [1.0, 2.0]
        assert "most goes to compute" in explained.text
        with pytest.raises(NotFound):
            await stub.Explain(pb.ExplainRequest(job_id="ghost"))


async def test_every_wrong_field_is_named(brain: ServiceProcess) -> None:
    limits = [pb.RoleLimits(role="worker", min=4, max=2), pb.RoleLimits(role="worker", max=1)]
    async with connected(brain) as stub:
        with pytest.raises(InvalidArgument) as caught:
            await stub.Plan(pb.PlanRequest(limits=limits))
        paths = [violation.path for violation in caught.value.violations]
        assert paths == ["job.job_id", "limits[0].min", "limits[1].role"]
        with pytest.raises(InvalidArgument, match="samples_per_s"):
            await stub.Observe(pb.Profile(job_id="j", at=1, samples_per_s=float("nan")))


async def test_its_page_shows_plans_and_it_ends_cleanly(brain: ServiceProcess) -> None:
    async with connected(brain) as stub:
        await stub.Plan(pb.PlanRequest(job=meta("shown-on-the-page")))
        await stub.RecordJob(ended("past-job", 3, at=5))
    async with httpx.AsyncClient(base_url=brain.address("ops")) as http:
        page = await http.get("/")
        assert page.status_code == 200
        assert "shown-on-the-page" in page.text and "past-job" in page.text
        assert (await http.get("/readyz")).status_code == 200
        metrics = (await http.get("/metrics")).text
        assert 'recmesh_brain_plans_total{source="default"} 1.0' in metrics
    assert await asyncio.to_thread(brain.stop) == 0


async def test_a_database_that_cannot_be_is_one_clear_error(nats: NatsServer, tmp_path: Path) -> None:
    env = {"RECMESH_NATS_URL": nats.url, "RECMESH_DATABASE_URL": "mysql://me:secret@host/db"}
    process = ServiceProcess("brain", tmp_path, env=env)
    with pytest.raises(RuntimeError, match="ended with 78"):
        process.start()
    log = process.log_path.read_text()
    assert "RECMESH_DATABASE_URL" in log and "secret" not in log
