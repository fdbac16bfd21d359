"""Jobs in a cluster that has no room, is away, or takes processes back, on virtual time."""

import asyncio

import pytest

from recmesh.runtime.errors import FailedPrecondition, MeshError, ResourceExhausted, Unavailable
from services.jobmaster.cluster import Owner
from services.jobmaster.domain.exits import Cause, Exit
from services.jobmaster.domain.job import ObjectRef
from tests.support.job_world import JobWorld, spec

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_a_process_that_finds_no_room_is_told_of_and_not_taken_for_silent(world: JobWorld) -> None:
    reason = "unschedulable: 0/3 nodes are available: 3 Insufficient cpu."
    world.cluster.held["ps-0-1"] = reason
    job_id = await world.submit(spec())
    await asyncio.sleep(3 * world.limits.start_grace_s)
    run = world.jobs.run_of(job_id)
    assert f"ps-0-1 does not run yet: {reason}" in run.status.notes
    assert run.status.failures == 0
    world.cluster.held.clear()
    await world.until_phase(job_id, "Succeeded")
    assert "ps-0-2" not in world.cluster.started


@pytest.mark.parametrize("outage", [Unavailable("the API server is away"), ResourceExhausted("exceeded quota: small")])
async def test_what_the_cluster_cannot_take_now_is_no_failure_of_the_job(world: JobWorld, outage: MeshError) -> None:
    world.cluster.outage = outage
    job_id = await world.submit(spec(backoff_limit=1))
    await asyncio.sleep(60.0)
    run = world.jobs.run_of(job_id)
    assert run.status.failures == 0
    assert any(outage.message in role.exit_reason for role in run.status.roles)
    world.cluster.outage = None
    await world.until_phase(job_id, "Succeeded")


async def test_what_no_cluster_would_ever_take_fails_the_job(world: JobWorld) -> None:
    world.cluster.outage = FailedPrecondition("spec.tolerations[0]: wrong")
    job_id = await world.submit(spec(backoff_limit=1))
    await world.until_phase(job_id, "Failed")


@pytest.mark.parametrize("cause", ["evicted", "preempted", "node lost", "deleted"])
async def test_processes_that_others_end_are_replaced_without_being_counted(world: JobWorld, cause: Cause) -> None:
    job_id = await world.submit(spec(backoff_limit=1))
    for name in ("worker-0-1", "worker-0-2", "worker-0-3"):
        await world.until(lambda name=name: name in world.cluster.started)    # type: ignore[misc]  # bound now
        world.cluster.kill(job_id, name, Exit(signal=15, cause=cause, reason=cause))
    await world.until_phase(job_id, "Succeeded")
    assert world.jobs.run_of(job_id).status.failures == 0


async def test_a_process_that_dies_again_and_again_is_told_of_with_the_time_of_its_next_start(world: JobWorld) -> None:
    job_id = await world.submit(spec(backoff_limit=10))
    for attempt in range(1, 5):
        await world.until(lambda name=f"worker-0-{attempt}": name in world.cluster.started)    # type: ignore[misc]  # bound now
        world.cluster.kill(job_id, f"worker-0-{attempt}", Exit(code=70, last_line="KeyError: 'item'"))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: any("worker 0 ended 4 times" in note for note in run.status.notes))
    told = [note for note in run.status.notes if note.startswith("worker 0 ended")]
    assert len(told) == 1 and told[0].endswith(" UTC, after 4 s") and "KeyError: 'item'" in told[0]
    await world.until_phase(job_id, "Succeeded")


async def test_of_the_end_that_ends_the_job_no_next_start_is_told(world: JobWorld) -> None:
    job_id = await world.submit(spec(backoff_limit=1))
    for name in ("worker-0-1", "worker-0-2"):
        await world.until(lambda name=name: name in world.cluster.started)    # type: ignore[misc]  # bound now
        world.cluster.kill(job_id, name, Exit(code=70, last_line="KeyError: 'item'"))
    await world.until_phase(job_id, "Failed")
    assert not [note for note in world.jobs.run_of(job_id).status.notes if "next start" in note]


async def test_processes_belong_to_the_object_of_their_job(world: JobWorld) -> None:
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    run = world.jobs.run_of(job_id)
    run.job = run.job.model_copy(update={"object": ObjectRef(namespace="shop", name="ctr", uid="u-1")})
    world.cluster.kill(job_id, "worker-0-1")
    await world.until(lambda: "worker-0-2" in world.cluster.started)
    assert world.cluster.processes_of[job_id]["worker-0-2"].order.owner == Owner("shop", "ctr", "u-1")
    await world.until_phase(job_id, "Succeeded")
