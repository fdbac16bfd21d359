"""brain as a process, over a real nats-server."""

import asyncio
import contextlib
import time
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
        for at, (job_id, workers) in enumerate([("a", 10), ("b", 12), ("c", 16)], start=int(time.time()) - 60):
            await stub.RecordJob(ended(job_id, workers, at=at))
    brain.kill()
    brain.start()
    async with connected(brain) as stub:
        plan = await stub.Plan(pb.PlanRequest(job=meta("next"), limits=limits))
        assert plan.source == "similar"
        assert {role.role: role.replicas for role in plan.roles} == {"ps": 2, "worker": 14}
        assert [each.job_id for each in plan.similar] == ["c", "b", "a"]
        promised = sum(role.replicas * role.cpu for role in plan.roles)      # and not running yet
        small = await stub.Plan(pb.PlanRequest(job=meta("small"), limits=limits, free_cpu=promised + 3))
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


def sized(workers: int) -> list[pb.RolePlan]:
    return [
        pb.RolePlan(role="ps", replicas=1, cpu=1, memory_bytes=GIB),
        pb.RolePlan(role="worker", replicas=workers, cpu=1, memory_bytes=GIB),
    ]


async def measured(stub: Stub, job_id: str, workers: int, *, at: float) -> float:
    rate = 1e5 * workers / (1.0 + 0.05 * workers)
    for back in (2.0, 1.0, 0.0):
        await stub.Observe(pb.Profile(
            job_id=job_id, at=at - back, workers=workers, ps=1, batch_size=4096, samples_per_s=rate, compute_s=0.5,
            worker_cpu_limit=1, ps_cpu_limit=1, hardware="cpu", is_steady=True,
        ))  # fmt: skip
    return rate


async def test_its_page_shows_fit_front_and_changes_of_a_job_also_after_a_restart(brain: ServiceProcess) -> None:
    limits = [pb.RoleLimits(role="ps", pinned=1, cpu=1), pb.RoleLimits(role="worker", min=1, max=16, cpu=1)]
    began = time.time() - 3600.0
    async with connected(brain) as stub:
        first = await stub.Plan(pb.PlanRequest(job=meta("grows"), limits=limits))
        for step, workers in enumerate((1, 2, 3)):
            await measured(stub, "grows", workers, at=began + 60.0 * step)
        rate = await measured(stub, "grows", 4, at=began + 180.0)
        decided = await stub.Decide(pb.DecideRequest(
            job=meta("grows"), limits=limits, now=sized(4), samples_per_s=rate, remaining=10**10,
            free_cpu=64, free_memory_bytes=64 * GIB,
        ))  # fmt: skip
        assert decided.change, decided
        await stub.Conclude(pb.ChangeOutcome(
            plan_id=decided.plan_id, job_id="grows", verdict="taken back", why="slower than before", before=sized(4),
            after=decided.roles, rate_before=rate, rate_expected=decided.samples_per_s, rate_after=1e5, overhead_s=2,
        ))  # fmt: skip
        await stub.Decide(pb.DecideRequest(
            job=meta("other"), limits=limits, now=sized(1), samples_per_s=1.0, remaining=1,
        ))  # fmt: skip
    brain.kill()
    brain.start()
    async with connected(brain) as stub:
        explained = await stub.Explain(pb.ExplainRequest(job_id="grows"))
        assert (explained.first.plan_id, explained.plan.plan_id) == (first.plan_id, decided.plan_id)
        (decision,) = explained.decisions
        assert decision == explained.look and decision.plan_id == decided.plan_id
        assert sum(candidate.is_chosen for candidate in decision.front) == 1
        assert [point.workers for point in decision.fit.points] == [1, 2, 3, 4] and decision.fit.form
    async with httpx.AsyncClient(base_url=brain.address("ops")) as http:
        newest = (await http.get("/")).text
        assert "other · Fit" in newest and "grows · Fit" not in newest, "it shows what was looked at last"
        assert "slower than before" in newest and 'href="/?job=grows"' in newest and decided.reason in newest
        chosen = (await http.get("/", params={"job": "grows"})).text
        assert "grows · Fit" in chosen and "cannot be read" not in chosen
        assert chosen.count('class="plot"') == 3 and 'class="diagonal"' in chosen
        assert chosen.count('class="ring"') == 1 and chosen.count('class="moment warn"') == 1
        assert "grows · " in await first_panels(http, "/events?job=grows")
        assert "knows nothing of job" in (await http.get("/", params={"job": "<ghost>"})).text


async def first_panels(http: httpx.AsyncClient, path: str) -> str:
    async with http.stream("GET", path) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: ") and '"html"' in line:
                return line
    raise AssertionError("the stream ended without panels")
