"""Parameter servers come, go and are replaced while a job trains; every server is a fake that keeps the real rules."""

from typing import Any

import pytest

from services.jobmaster.domain.placement import counts_of
from tests.support.job_world import JobWorld, spec

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def training(world: JobWorld, *, ps: int = 1, **changes: Any) -> str:
    """A job that trains on so many parameter servers."""
    world.shards.total = 100_000
    roles = {"ps": {"replicas": ps}, "worker": {"replicas": 2}}
    job_id = await world.submit(spec(roles=roles, checkpoint={"every_s": 1000.0}) | changes)
    await world.until(lambda: world.phase(job_id) == "Running")
    return job_id


async def scaled(world: JobWorld, job_id: str, count: int) -> None:
    await world.jobs.scale(job_id, role="ps", replicas=count, clear=False)
    await until_settled(world, job_id, count)


async def until_settled(world: JobWorld, job_id: str, count: int) -> None:
    def is_settled() -> bool:
        run = world.jobs.run_of(job_id)
        return (
            run.status.phase == "Running" and len(run.record.members) == len(run.record.owning) == count
            and len(world.cluster.alive(job_id, "ps")) == count and not run.record.move
            and run.status.settled_ps == tuple(member.ps for member in run.record.members)
        )

    await world.until(is_settled)


def slots_per_server(world: JobWorld, job_id: str) -> list[int]:
    return sorted(counts_of(world.jobs.run_of(job_id).record.owner_of).values())


async def finished(world: JobWorld, job_id: str) -> None:
    """The job ends with every sample in one snapshot, and no slot was ever wrong."""
    run = world.jobs.run_of(job_id)
    world.servers.check_truth(run.record)
    world.shards.to_do[job_id] = world.shards.to_do[job_id][:200]
    world.shards.total = 1 + max(
        world.shards.to_do[job_id] + [p for chunk in world.shards.leased[job_id].values() for p in chunk]
    )
    await world.until_phase(job_id, "Succeeded")
    assert world.jobs.run_of(job_id).status.samples == world.shards.total


async def test_parameter_servers_come_and_go_while_training_goes_on(world: JobWorld) -> None:
    job_id = await training(world)
    for count, slots in ((2, [2048, 2048]), (3, [1365, 1365, 1366]), (1, [4096])):
        await scaled(world, job_id, count)
        assert slots_per_server(world, job_id) == slots
        world.servers.check_truth(world.jobs.run_of(job_id).record)
    run = world.jobs.run_of(job_id)
    assert run.record.gen == 1 and run.status.rollbacks == run.status.failures == 0
    moved = [(data.source, data.target, data.slots) for data in world.told("job.slots_moved")]
    assert moved == [(0, 1, 2048), (0, 2, 682), (1, 2, 683), (1, 0, 1365), (2, 0, 1365)]
    scalings = [(data.from_replicas, data.to_replicas) for data in world.told("job.scaled")]
    assert scalings == [(1, 2), (2, 3), (3, 1)]
    assert all(data.expected for data in world.told("job.role_exited"))
    assert all(data.pause_ms < 50 for data in world.told("job.slots_moved"))
    await finished(world, job_id)


async def test_a_server_whose_machine_goes_away_is_replaced_without_a_rollback(world: JobWorld) -> None:
    job_id = await training(world, ps=2)
    world.draining.add("ps-0-1")
    await world.until(lambda: "ps-0-1" not in world.cluster.alive(job_id, "ps"))
    await until_settled(world, job_id, 2)
    run = world.jobs.run_of(job_id)
    assert [member.ps for member in run.record.members] == [1, 2]
    assert run.status.rollbacks == 0
    assert [data.slots for data in world.told("job.slots_moved")] == [2048]
    assert ("ps 0", "its machine asks it to go") in [(d.about, d.seen) for d in world.told("job.decided")]
    await finished(world, job_id)
