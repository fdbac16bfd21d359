"""A job that lends workers to serving: it shrinks while it trains, and has them back."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from services.jobmaster.domain.job import RolePlan
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.placement import SLOTS
from services.jobmaster.peers.planning import Planned
from tests.support.job_world import JobWorld, spec

ELASTIC: dict[str, Any] = {
    "training": {"batch_size": 10}, "checkpoint": {"every_s": 1000.0},
    "roles": {"ps": {"min": 1, "max": 1}, "worker": {"min": 2, "max": 8, "cpu": 1.0}},
}


@pytest_asyncio.fixture
async def world() -> AsyncIterator[JobWorld]:
    made = JobWorld(limits=Limits(move_slots=SLOTS))
    made.shards.total = 400_000
    made.brain.planned = Planned({"worker": RolePlan(replicas=5, cpu=1.0)}, "default", "")
    await made.jobs.lead()
    yield made
    await made.close()


async def training(world: JobWorld, **changes: Any) -> str:
    job_id = await world.submit(spec(name="ads", **ELASTIC | changes))
    await world.until(lambda: world.phase(job_id) == "Running")
    return job_id


def alive(world: JobWorld, job_id: str) -> int:
    return len(world.cluster.alive(job_id, "worker"))


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_it_shrinks_tells_when_it_has_and_gets_its_workers_back(world: JobWorld) -> None:
    job_id = await training(world)
    await world.until(lambda: bool(world.brain.lends))
    first = world.brain.lends[0]
    assert (first.worker.replicas, first.least, first.lent) == (5, 2, 0)
    world.brain.owed = 2
    await world.until(lambda: alive(world, job_id) == 3)
    await world.until(lambda: world.brain.lends[-1].lent == 2 and world.brain.lends[-1].settled)
    status = world.jobs.run_of(job_id).status
    assert (status.plan["worker"].replicas, status.lent, status.rollbacks) == (3, 2, 0)
    line = next(item for item in status.timeline if item.matter == "loan")
    assert line.decided == "worker 5 → 3: it lends 2, 2 are lent now" and "3 workers are there" in line.done
    scaled = [(data.from_replicas, data.to_replicas, data.reason) for data in world.told("job.scaled")]
    assert scaled[-1] == (5, 3, "loan: serving needs room")
    world.brain.owed = 0
    await world.until(lambda: alive(world, job_id) == 5)
    assert world.jobs.run_of(job_id).status.lent == 0
    assert world.phase(job_id) in ("Running", "Scaling")


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_the_same_answer_after_a_restart_takes_nothing_more(world: JobWorld) -> None:
    job_id = await training(world)
    world.brain.owed = 2
    await world.until(lambda: alive(world, job_id) == 3)
    await world.restart_jobmaster()
    asked = len(world.brain.lends)
    await world.until(lambda: len(world.brain.lends) > asked + 3)
    assert world.brain.lends[-1].lent == 2
    assert alive(world, job_id) == 3


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_it_never_goes_below_its_least_and_says_what_it_gave(world: JobWorld) -> None:
    job_id = await training(world)
    world.brain.owed = 7
    await world.until(lambda: world.brain.lends[-1:] != [] and world.brain.lends[-1].lent == 3)
    assert world.jobs.run_of(job_id).status.plan["worker"].replicas == 2


@pytest.mark.asyncio
@pytest.mark.looptime
@pytest.mark.parametrize("worker", [{"min": 2, "max": 2}, {"min": 1, "max": 8, "replicas": 3}], ids=["fixed", "pinned"])
async def test_a_job_whose_count_is_its_users_is_not_asked(world: JobWorld, worker: dict[str, Any]) -> None:
    world.brain.owed = 1
    job_id = await training(world, roles={"ps": {"min": 1, "max": 1}, "worker": worker})
    before = alive(world, job_id)
    await asyncio.sleep(20)
    assert not world.brain.lends and alive(world, job_id) == before


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_without_brain_it_keeps_what_it_has(world: JobWorld) -> None:
    job_id = await training(world)
    world.brain.owed = 2
    await world.until(lambda: alive(world, job_id) == 3)
    world.brain.away = True
    await asyncio.sleep(20)
    assert alive(world, job_id) == 3
