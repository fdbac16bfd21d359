"""Jobs that are suspended and resumed, on virtual time: at every moment, with exact counts, whoever dies meanwhile."""

import asyncio
from typing import Any

import pytest

from recmesh.runtime.errors import FailedPrecondition, ResourceExhausted
from recmesh.runtime.events import Event, catalog
from services.jobmaster.domain import record as records
from services.jobmaster.domain.ledgers import is_full
from services.jobmaster.domain.record import Member, Refused, RunRecord
from services.jobmaster.domain.snapshot import ledger_of
from services.jobmaster.events import Commands
from tests.support.job_world import JobWorld, spec

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def suspended(world: JobWorld, job_id: str) -> None:
    """Suspends it, and looks that nothing of it runs."""
    await world.jobs.suspend(job_id, reason="room for a launch")
    await world.until_phase(job_id, "Suspended")
    assert world.cluster.alive(job_id) == []


async def ends_exactly(world: JobWorld, job_id: str) -> None:
    await world.until_phase(job_id, "Succeeded")
    run = world.jobs.run_of(job_id)
    assert run.status.samples == run.status.total == world.shards.total
    document = await run.context.store.manifest(job_id, run.record.last_committed)
    assert document is not None and is_full(ledger_of(document), total=world.shards.total)


async def test_a_job_saves_what_it_has_goes_and_goes_on_from_there(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec(checkpoint={"every_s": 3600}))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.samples > 100)
    await suspended(world, job_id)
    saved, snapshot = run.status.samples, run.record.last_committed
    assert saved > 100 and snapshot > 0 and run.status.message == "room for a launch"
    started = len(world.cluster.started)
    await asyncio.sleep(3600)
    assert len(world.cluster.started) == started and world.phase(job_id) == "Suspended"
    await world.jobs.resume(job_id)
    await world.until(lambda: run.record.phase == "open")
    assert {order.snapshot for order in world.servers.orders if order.gen == run.record.gen} == {snapshot}
    await ends_exactly(world, job_id)
    assert run.status.rollbacks == run.status.failures == 0
    phases = [data.to_phase for data in world.told("job.transitioned")]
    assert phases == ["Starting", "Running", "Suspended", "Pending", "Starting", "Running", "Succeeded"]
    assert all(data.expected for data in world.told("job.role_exited"))
    (end,) = world.brain.ends
    assert end.samples_per_s > 50, "the hour aside was no time of training"


@pytest.mark.parametrize("moment", ["Pending", "Starting", "Running", "Scaling", "Recovering"])
async def test_whenever_it_is_suspended_it_ends_with_every_sample_once(world: JobWorld, moment: str) -> None:
    world.shards.total = 2000
    world.brain.fault = ResourceExhausted("no room", reason="OVER_QUOTA") if moment == "Pending" else None
    job_id = await world.submit(spec())
    if moment in ("Scaling", "Recovering"):
        await world.until(lambda: world.jobs.run_of(job_id).record.last_committed > 0)
    if moment == "Scaling":
        await world.jobs.scale(job_id, role="ps", replicas=3, clear=False)
    if moment == "Recovering":
        world.cluster.kill(job_id, "ps-1-1")
    await world.until(lambda: world.phase(job_id) == moment)
    await suspended(world, job_id)
    world.brain.fault = None
    await world.jobs.resume(job_id)
    await ends_exactly(world, job_id)


async def test_a_job_that_is_submitted_suspended_starts_nothing_until_it_is_resumed(world: JobWorld) -> None:
    job_id = await world.submit(spec(suspend=True))
    await world.until_phase(job_id, "Suspended")
    assert world.cluster.started == [] and world.jobs.run_of(job_id).record.gen == 0
    await world.jobs.resume(job_id)
    await ends_exactly(world, job_id)


async def test_another_number_of_servers_is_there_when_it_goes_on(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec())
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.samples > 100)
    await suspended(world, job_id)
    await world.jobs.scale(job_id, role="ps", replicas=1, clear=False)
    await world.jobs.resume(job_id)
    await world.until(lambda: run.record.phase == "open")
    assert [member.ps for member in run.record.members] == [0] and set(run.record.owner_of.tolist()) == {0}
    await ends_exactly(world, job_id)


async def test_a_wish_is_taken_back_before_it_is_done(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec())
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.samples > 100)
    for _ in range(3):
        await world.jobs.suspend(job_id, reason="")
        await world.until(lambda: any(role.stage != "running" for role in run.status.roles))
        await world.jobs.resume(job_id)
        await asyncio.sleep(3)
    await ends_exactly(world, job_id)


async def test_jobmasters_that_die_on_the_way_change_nothing(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec())
    await world.until(lambda: world.jobs.run_of(job_id).status.samples > 100)
    await world.jobs.suspend(job_id, reason="")
    for _ in range(40):
        if world.phase(job_id) == "Suspended":
            break
        await world.restart_jobmaster()
        await asyncio.sleep(0.35)
    await world.until_phase(job_id, "Suspended")
    assert world.cluster.alive(job_id) == []
    await world.restart_jobmaster()
    await asyncio.sleep(60)
    assert world.cluster.alive(job_id) == [] and world.phase(job_id) == "Suspended"
    await world.jobs.resume(job_id)
    await world.restart_jobmaster()
    await ends_exactly(world, job_id)


async def test_without_a_snapshot_it_goes_all_the_same_and_trains_the_rest_again(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec(checkpoint={"every_s": 3600}))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.samples > 100)
    world.checkpoints.away = True
    await suspended(world, job_id)
    assert run.status.samples == 0 and any("trained again" in note for note in run.status.notes)
    world.checkpoints.away = False
    await world.jobs.resume(job_id)
    await ends_exactly(world, job_id)


async def test_time_aside_is_not_counted_and_what_ends_a_job_still_ends_it(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec(active_deadline_s=100))
    await world.until(lambda: world.jobs.run_of(job_id).status.samples > 100)
    await suspended(world, job_id)
    await asyncio.sleep(500)
    assert world.phase(job_id) == "Suspended"
    await world.jobs.resume(job_id)
    await world.until_phase(job_id, "Running")
    await suspended(world, job_id)
    await world.jobs.stop(job_id, reason="", finish=False)
    await world.until_phase(job_id, "Stopped")
    for wish in (world.jobs.suspend(job_id, reason=""), world.jobs.resume(job_id)):
        with pytest.raises(FailedPrecondition, match="trains no more"):
            await wish


async def test_a_suspended_job_is_deleted_without_a_trace(world: JobWorld) -> None:
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    await suspended(world, job_id)
    await world.jobs.delete(job_id)
    assert not world.jobs.runners and await world.jobs.context.store.job_ids() == []


async def test_events_suspend_and_resume(world: JobWorld) -> None:
    world.shards.total = 2000
    commands = Commands(world.jobs, publish=world.publish)
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    await commands.pause(Event(catalog.JOB_SUSPEND, job_id, catalog.JobSuspend(reason="by event")))
    await world.until_phase(job_id, "Suspended")
    assert world.jobs.run_of(job_id).status.message == "by event"
    await commands.pause(Event(catalog.JOB_RESUME, job_id, catalog.JobResume()))
    await ends_exactly(world, job_id)


async def test_a_parked_record_is_a_rollback_without_members() -> None:
    members = [Member(ps=i, address=f"a{i}", incarnation=f"i{i}") for i in range(2)]
    record = records.next_generation(RunRecord(job_id="ads", term=1), term=1, members=members)
    record = records.opened(record, term=1, gen=1)
    record = records.commit(records.mark(record, term=1, gen=1), term=1, gen=1, snapshot=1, full=False)
    parked = records.parked(records.mark(record, term=1, gen=1), term=1)
    changed: dict[str, Any] = {"gen": 2, "phase": "restoring", "base_snapshot": 1, "members": (), "pending": "rollback"}
    assert {name: getattr(parked, name) for name in changed} == changed
    assert parked.owners == record.owners and parked.map_version > record.map_version
    assert records.parked(parked, term=1) == parked
    again = records.next_generation(parked, term=1, members=members)
    assert again.gen == 3 and again.owners == record.owners
    with pytest.raises(Refused, match="term"):
        records.parked(parked, term=0)
    with pytest.raises(Refused, match="closed"):
        records.parked(records.closed(record, term=1), term=1)


async def test_brain_hears_of_it_and_of_nothing_later_than_that_it_goes_on(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec())
    await world.until(lambda: world.jobs.run_of(job_id).status.samples > 100)
    world.brain.away = True
    await suspended(world, job_id)
    await asyncio.sleep(60)
    assert world.brain.lives == [f"plan {job_id}"]
    await world.restart_jobmaster()
    world.brain.away = False
    await world.until(lambda: world.brain.lives[1:] == [f"suspend {job_id}"])
    await asyncio.sleep(60)
    assert world.brain.lives[2:] == [], "it was told once"
    await world.jobs.resume(job_id)
    await ends_exactly(world, job_id)
    assert world.brain.lives[2:] == [f"plan {job_id}"]


async def test_a_job_that_waits_for_room_waits_no_more_while_it_is_suspended(world: JobWorld) -> None:
    world.brain.fault = ResourceExhausted("no room", reason="OVER_QUOTA")
    job_id = await world.submit(spec())
    await asyncio.sleep(30)
    await suspended(world, job_id)
    await world.until(lambda: world.brain.lives == [f"suspend {job_id}"])
    asked = len(world.brain.bounds)
    world.brain.bounds, world.brain.fault = [], None
    await asyncio.sleep(60)
    assert asked and world.brain.bounds == [], "it asks for no plan"
    await world.jobs.resume(job_id)
    await ends_exactly(world, job_id)


async def test_while_a_snapshot_is_being_stored_it_waits_for_it_and_loses_nothing(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec(checkpoint={"every_s": 3600}))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.samples > 100)
    world.checkpoints.hold = asyncio.Event()
    await run.wish(lambda intent: intent.model_copy(update={"checkpoint": intent.checkpoint + 1}))
    await world.until(lambda: bool(world.checkpoints.begun))
    await world.jobs.suspend(job_id, reason="")
    await asyncio.sleep(10)
    assert world.phase(job_id) != "Suspended" and world.cluster.alive(job_id), "it is still being stored"
    world.checkpoints.hold.set()
    world.checkpoints.hold = None
    await world.until_phase(job_id, "Suspended")
    saved = run.status.samples
    assert saved > 100 and not any("trained again" in note for note in run.status.notes)
    await world.jobs.resume(job_id)
    await ends_exactly(world, job_id)


async def test_a_job_whose_closing_snapshot_is_committed_ends_and_is_not_suspended(world: JobWorld) -> None:
    job_id = await world.submit(spec(export={}))
    run = world.jobs.run_of(job_id)
    world.models.away = True
    await world.until(lambda: run.status.closing is not None)
    with pytest.raises(FailedPrecondition, match="trains no more"):
        await world.jobs.suspend(job_id, reason="")
    await run.wish(lambda intent: intent.model_copy(update={"suspend": True, "suspensions": 1}))   # it came just before
    await asyncio.sleep(30)
    assert world.phase(job_id) not in ("Suspended", "Succeeded")
    world.models.away = False
    await ends_exactly(world, job_id)
    assert "Suspended" not in [data.to_phase for data in world.told("job.transitioned")]
