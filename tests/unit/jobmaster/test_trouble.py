"""Jobs whose surroundings fail or refuse, against a world of fakes, on virtual time."""

from dataclasses import replace
from typing import Any

import pytest

from recmesh.runtime.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
    Violation,
)
from recmesh.runtime.events import Event, catalog
from services.jobmaster.app.queue import TOPICS_S
from services.jobmaster.config import JobmasterSettings
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.vitals import Beat
from services.jobmaster.events import Commands
from tests.support.job_world import JobWorld, spec

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_a_worker_that_dies_while_the_disk_is_full_is_replaced_once_there_is_room(world: JobWorld) -> None:
    world.shards.total = 3000
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    world.keys.full = True
    world.cluster.kill(job_id, "worker-0-1")
    await world.clock.sleep(15.0)
    world.keys.full = False
    await world.until_phase(job_id, "Succeeded")
    assert world.jobs.run_of(job_id).status.samples == 3000
    assert any(crashed for _, crashed in world.shards.released)


async def test_leases_of_a_dead_worker_are_released_once_the_queue_can_store_again(world: JobWorld) -> None:
    world.shards.total = 3000
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    world.shards.full = True
    world.cluster.kill(job_id, "worker-0-1")
    await world.clock.sleep(3.0)
    assert not world.shards.released
    world.shards.full = False
    await world.until(lambda: any(crashed for _, crashed in world.shards.released))


@pytest.mark.parametrize("part", ["shards", "checkpoints", "brain", "models", "keys"])
async def test_a_service_may_be_away_for_a_while_and_the_job_goes_on(world: JobWorld, part: str) -> None:
    world.shards.total = 1500
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    getattr(world, part).away = True
    await world.clock.sleep(15.0)
    assert world.phase(job_id) != "Failed"
    getattr(world, part).away = False
    await world.until_phase(job_id, "Succeeded")
    assert world.jobs.run_of(job_id).status.samples == 1500


async def test_without_brain_the_small_default_is_used_and_said_so(world: JobWorld) -> None:
    world.brain.away = True
    job_id = await world.submit(spec(roles={}))
    await world.until_phase(job_id, "Succeeded")
    run = world.jobs.run_of(job_id)
    assert sorted(set(world.cluster.started)) == ["finisher-0-1", "ps-0-1", "worker-0-1"]
    assert any("small default" in note for note in run.status.notes)


async def test_a_lost_queue_is_derived_again_from_the_ledgers(world: JobWorld) -> None:
    world.shards.total = 3000
    job_id = await world.submit(spec(checkpoint={"every_s": 1000.0}))
    await world.until(lambda: world.phase(job_id) == "Running")
    await world.clock.sleep(2.0)
    world.shards.runs.clear()
    await world.until(lambda: job_id in world.shards.runs)
    assert world.shards.runs[job_id].epoch_floor == 7
    assert world.shards.runs[job_id].done
    await world.until_phase(job_id, "Succeeded")
    assert world.jobs.run_of(job_id).status.samples == 3000


async def test_lag_stays_as_it_was_told_until_a_shardsvc_that_has_just_begun_has_looked(world: JobWorld) -> None:
    world.shards.total, world.shards.arrivals_per_s, world.shards.lag_messages = 20_000, 10.0, 40
    job_id = await world.submit(spec())
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.lag_messages == 40)
    world.shards.has_just_begun = True
    samples = run.status.samples
    await world.until(lambda: run.status.samples > samples + 500)
    assert (run.status.partitions, run.status.lag_messages, run.status.lag_s) == (1, 40, 40.0)
    assert run.queue is not None and run.queue.series == ("topic/clicks",)
    world.shards.has_just_begun, world.shards.lag_messages = False, 7
    await world.until(lambda: run.status.lag_messages == 7)


@pytest.mark.long
async def test_lag_of_which_shardsvc_tells_nothing_for_minutes_is_not_known_any_more(world: JobWorld) -> None:
    world.shards.total, world.shards.arrivals_per_s, world.shards.lag_messages = 1_000_000, 10.0, 40
    job_id = await world.submit(spec(checkpoint={"every_s": 1000.0}))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.lag_messages == 40)
    world.shards.has_just_begun = True
    await world.clock.sleep(TOPICS_S / 2)
    assert (run.status.partitions, run.status.lag_messages) == (1, 40)
    await world.clock.sleep(TOPICS_S / 2 + 5.0)
    assert (run.status.partitions, run.status.lag_messages, run.status.lag_s) == (0, 0, 0.0)
    assert run.queue is not None and run.queue.partitions == 0
    world.shards.has_just_begun, world.shards.lag_messages = False, 7
    await world.until(lambda: (run.status.partitions, run.status.lag_messages) == (1, 7))


async def test_a_snapshot_that_cannot_be_stored_is_aborted_and_its_number_lost(world: JobWorld) -> None:
    world.checkpoints.failing = {1}
    job_id = await world.submit(spec(checkpoint={"every_s": 0.5}))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.message.startswith("snapshot: "))
    assert run.status.message.endswith("; it is tried again")
    await world.until(lambda: not run.status.message)
    await world.until_phase(job_id, "Succeeded")
    assert world.servers.aborted_marks == [1, 1]
    assert (job_id, 1) not in world.checkpoints.committed


async def test_a_checkpoint_on_demand_answers_with_its_number(world: JobWorld) -> None:
    world.shards.total = 20000
    job_id = await world.submit(spec(checkpoint={"every_s": 1000.0}))
    await world.until(lambda: world.phase(job_id) == "Running")
    number = await world.jobs.checkpoint(job_id)
    assert (job_id, number) in world.checkpoints.committed


async def test_a_job_can_start_from_another_jobs_snapshot_with_a_fresh_ledger(world: JobWorld) -> None:
    first = await world.submit(spec())
    await world.until_phase(first, "Succeeded")
    second = await world.submit(spec(name="again", init_from={"job": first}))
    await world.until_phase(second, "Succeeded")
    orders = [order for order in world.servers.orders if order.job_id == second]
    source = world.jobs.run_of(first).record.last_committed
    assert {order.snapshot for order in orders} == {source}
    assert all(order.fresh_ledger and order.parts for order in orders)
    assert world.jobs.run_of(second).status.samples == world.shards.total


async def test_a_refused_job_creates_nothing_and_names_every_wrong_field(world: JobWorld) -> None:
    world.shards.refusals = [Violation("data.features.user", "there is no column user")]
    bad = spec(model={"zoo": "torch_dcn_v2", "params": {"embedding_dim": -1}})
    with pytest.raises(InvalidArgument) as refused:
        await world.submit(bad)
    paths = [item.path for item in refused.value.violations]
    assert paths == ["model.params.embedding_dim", "data.features.user"]
    assert world.keys.data == {}
    assert world.cluster.started == []


async def test_what_the_cluster_cannot_give_and_a_deadline_that_is_over_are_refused(world: JobWorld) -> None:
    world.cluster.refused = [Violation("roles.worker.gpu", "there is none")]
    with pytest.raises(InvalidArgument) as refused:
        await world.submit(spec(deadline=world.clock.now() - 1.0))
    assert [item.path for item in refused.value.violations] == ["roles.worker.gpu", "deadline"]
    world.cluster.refused = []
    assert await world.submit(spec(deadline=world.clock.now() + 60.0)) == "ads"


async def test_a_missing_file_is_a_wrong_field_like_any_other(world: JobWorld) -> None:
    world.shards.refusal = NotFound
    world.shards.refusals = [Violation("data.source.files", "there is no file /nowhere.parquet")]
    with pytest.raises(InvalidArgument) as refused:
        await world.submit(spec())
    assert [item.path for item in refused.value.violations] == ["data.source.files"]
    assert world.keys.data == {}


@pytest.mark.parametrize(("staleness", "worker", "is_noted"), [
    (5, {"replicas": 3}, True), (6, {"replicas": 3}, False),
    (3, {"min": 2, "max": 4}, True), (4, {"min": 2, "max": 4}, False),
])
async def test_a_bound_on_staleness_that_workers_cannot_keep_is_noted(
    world: JobWorld, staleness: int, worker: dict[str, int], is_noted: bool
) -> None:
    job_id = await world.submit(spec(training={"staleness": staleness, "in_flight": 2}, roles={"worker": worker}))
    notes = [note for note in world.jobs.run_of(job_id).status.notes if "training.staleness" in note]
    assert bool(notes) == is_noted, notes


async def test_a_dry_run_creates_nothing(world: JobWorld) -> None:
    assert await world.submit(spec(), dry_run=True) == "ads"
    assert world.keys.data == {}


async def test_the_same_request_makes_one_job_and_the_same_name_makes_two(world: JobWorld) -> None:
    first = await world.submit(spec(), request_id="r1")
    again = await world.submit(spec(), request_id="r1")
    other = await world.submit(spec(), request_id="r2")
    assert first == again == "ads"
    assert other != first
    assert other.startswith("ads-")


async def test_heartbeats_of_a_process_that_is_not_wanted_are_told_to_exit() -> None:
    world = JobWorld(limits=Limits(heartbeat_s=1.0))
    await world.jobs.lead()
    try:
        world.shards.total = 20000
        job_id = await world.submit(spec())
        await world.until(lambda: world.phase(job_id) == "Running")
        stranger = Beat(at=0.0, incarnation="stranger")
        assert world.roles.heartbeat(job_id, role="worker", index=0, beat=stranger).directive == "exit"
        assert world.roles.heartbeat("gone", role="worker", index=0, beat=stranger).directive == "exit"
        with pytest.raises(FailedPrecondition):
            await world.roles.register(job_id, role="ps", index=0, incarnation="stranger", address="x:1")
    finally:
        await world.close()


async def test_while_a_job_is_read_again_its_processes_are_not_sent_away(world: JobWorld) -> None:
    world.shards.total = 20000
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    started = list(world.cluster.started)
    former = world.jobs.run_of(job_id)
    await world.keys.put(f"status.{job_id}", world.keys.data[f"status.{job_id}"].value)
    await world.until(lambda: job_id not in world.jobs.runners)
    with pytest.raises(Unavailable):
        world.jobs.run_of(job_id)
    world.keys.away = True
    await world.clock.sleep(5.0)
    world.keys.away = False
    await world.until(lambda: job_id in world.jobs.runners)
    assert world.jobs.run_of(job_id) is not former
    await world.clock.sleep(5.0)
    assert world.cluster.started == started
    assert world.phase(job_id) == "Running"


async def test_a_job_that_cannot_be_read_is_shown_as_failed_and_holds_up_no_other() -> None:
    world = JobWorld()
    await world.jobs.lead()
    try:
        first = await world.submit(spec(name="first"))
        await world.until_phase(first, "Succeeded")
        await world.jobs.follow()
        key = f"job.{first}"
        await world.keys.put(key, world.keys.data[key].value.replace(b"torch_dcn_v2", b"of another version"))
        await world.restart_jobmaster()
        second = await world.submit(spec(name="second"))
        await world.until_phase(second, "Succeeded")
        runs, _ = world.jobs.page(labels={}, limit=0, page_token="")
        assert {run.job_id: run.status.reason for run in runs} == {first: "Unreadable", second: "Completed"}
        with pytest.raises(Unavailable):
            world.roles.heartbeat(first, role="ps", index=0, beat=Beat(at=0.0, incarnation="x"))
        await world.jobs.delete(first)
        with pytest.raises(NotFound):
            world.jobs.run_of(first)
        assert f"job.{first}" not in world.keys.data
    finally:
        await world.close()


async def test_what_cannot_be_stored_of_a_job_that_is_let_go_is_not_tried_for_ever(world: JobWorld) -> None:
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    run = world.jobs.run_of(job_id)
    world.keys.away = True
    run.note("not stored yet")
    await world.jobs.follow()
    assert run.is_dirty and not run._kept
    world.keys.away = False


async def test_a_model_whose_number_is_no_more_above_all_others_gets_the_next_one(world: JobWorld) -> None:
    world.models.refusal = FailedPrecondition("version 2 is there", reason="VERSION_NOT_INCREASING")
    job_id = await world.submit(spec())
    await world.until_phase(job_id, "Succeeded")
    assert [model.version for model in world.models.registered] == [""]


async def test_a_quota_that_is_used_up_fails_no_trained_job(world: JobWorld) -> None:
    job_id = await world.submit(spec())
    refusals = 0
    register = world.models.register

    async def refuse(*args: Any, **options: Any) -> Any:
        nonlocal refusals
        refusals += 1
        if refusals <= 4:
            raise ResourceExhausted("too many models are loading")
        return await register(*args, **options)

    world.models.register = refuse  # type: ignore[method-assign]
    await world.until_phase(job_id, "Succeeded")
    assert refusals == 5


async def test_a_rollback_says_what_it_lost(world: JobWorld) -> None:
    world.shards.total = 4000
    job_id = await world.submit(spec(checkpoint={"every_s": 1000.0}))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.samples > 100)
    before = run.status.samples
    world.cluster.kill(job_id, "ps-0-1")
    await world.until(lambda: bool(world.told("job.rolled_back")))
    assert world.told("job.rolled_back")[0].lost_samples >= before


async def test_a_snapshot_that_is_ahead_of_the_task_log_gives_way_to_the_one_before_it(
    world: JobWorld,
) -> None:
    world.shards.total = 4000
    job_id = await world.submit(spec())
    run = world.jobs.run_of(job_id)
    await world.until(lambda: len(run.record.committed) >= 2)
    before, newest = run.record.committed[-2:]
    world.shards.log_end = 1
    world.cluster.kill(job_id, "ps-0-1")
    await world.until(lambda: run.record.gen >= 3 and run.record.phase == "open")
    assert run.record.base_snapshot == before
    assert newest not in run.record.committed


async def test_a_damaged_snapshot_of_another_job_fails_the_job_that_starts_from_it(world: JobWorld) -> None:
    first = await world.submit(spec())
    await world.until_phase(first, "Succeeded")
    world.servers.damaged.add(world.jobs.run_of(first).record.last_committed)
    second = await world.submit(spec(name="again", init_from={"job": first}))
    await world.until_phase(second, "Failed")
    status = world.jobs.run_of(second).status
    assert status.reason == "CannotOpenGeneration"
    assert "is damaged" in status.message


async def test_a_restore_that_takes_longer_than_a_call_is_asked_for_again(world: JobWorld) -> None:
    world.servers.slow_restores = 5
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    assert world.jobs.run_of(job_id).record.gen == 1


async def test_ckptcache_hears_again_of_the_last_commit_when_a_generation_opens(world: JobWorld) -> None:
    world.shards.total = 4000
    job_id = await world.submit(spec(checkpoint={"every_s": 3.0}))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.record.last_committed > 0)
    number = run.record.last_committed
    await world.until(lambda: (job_id, number) in world.checkpoints.committed)
    del world.checkpoints.committed[job_id, number]
    world.cluster.kill(job_id, "ps-0-1")
    await world.until(lambda: (job_id, number) in world.checkpoints.committed)


async def test_an_event_that_the_bus_refuses_holds_up_no_other(world: JobWorld) -> None:
    publish = world.publish

    async def refuse(event: Event[Any]) -> None:
        if event.type.name == "job.scaled" or event.type.name == "job.role_started":
            raise InvalidArgument("too large")
        await publish(event)

    world.publish = refuse  # type: ignore[method-assign]
    job_id = await world.submit(spec())
    await world.until_phase(job_id, "Succeeded")
    await world.until(lambda: "Succeeded" in [data.to_phase for data in world.told("job.transitioned")])
    assert not world.told("job.role_started")


async def test_a_request_is_answered_again_also_when_no_more_jobs_may_live(world: JobWorld) -> None:
    world.shards.total = 20000
    world.jobs.context = replace(world.jobs.context, max_live_jobs=1)
    first = await world.submit(spec(), request_id="r1")
    with pytest.raises(ResourceExhausted):
        await world.submit(spec(name="other"), request_id="r2")
    assert await world.submit(spec(), request_id="r1") == first
    with pytest.raises(AlreadyExists) as refused:
        await world.submit(spec(name="other"), request_id="r1")
    assert refused.value.reason == "REQUEST_REUSED"


async def test_a_submission_by_event_waits_while_too_many_jobs_live(world: JobWorld) -> None:
    world.jobs.context = replace(world.jobs.context, max_live_jobs=0)
    command = Event(catalog.JOB_SUBMIT, "ads", catalog.JobSubmit(spec=spec()))
    with pytest.raises(ResourceExhausted):
        await Commands(world.jobs, publish=world.publish).submit(command)


async def test_a_stop_by_event_waits_while_the_disk_is_full(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise ResourceExhausted("the disk is full", reason="DISK_FULL")

    monkeypatch.setattr(world.jobs, "stop", full)
    with pytest.raises(ResourceExhausted):
        await Commands(world.jobs, publish=world.publish).stop(Event(catalog.JOB_STOP, "ads", catalog.JobStop()))
    assert not [event for event in world.events if event.type is catalog.JOB_REFUSED]


async def test_a_refused_submission_by_event_is_answered_with_its_wrong_fields(world: JobWorld) -> None:
    wanted = spec() | {"surprise": 1}
    asked = catalog.JobSubmit(spec=wanted, request_id="r9", submitter="me")
    command = Event(catalog.JOB_SUBMIT, "ads", asked, source="/me")
    for _ in range(2):   # the second one is a redelivery
        with pytest.raises(InvalidArgument):
            await Commands(world.jobs, publish=world.publish).submit(command)
    answers = [event for event in world.events if event.type is catalog.JOB_REFUSED]
    answer = answers[0].data
    assert len({event.id for event in answers}) == 1 and answers[0].entity_id == "ads"
    assert (answer.refused_id, answer.refused_source, answer.request_id) == (command.id, "/me", "r9")
    assert "surprise" in [item.path for item in answer.violations]
    assert not world.jobs.runners


async def test_a_worker_that_lives_and_trains_nothing_is_replaced(world: JobWorld) -> None:
    world.jobs.context = replace(world.jobs.context, limits=Limits(stall_s=20.0))
    world.shards.total = 20000
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    world.cluster.processes_of[job_id]["worker-1-1"].stuck = True
    await world.until(lambda: "worker-1-2" in world.cluster.started)
    assert world.jobs.run_of(job_id).status.failures == 1
    assert "trained nothing for" in world.told("job.role_exited")[0].reason
    [decided] = world.told("job.decided")
    assert (decided.matter, decided.place) == ("stall", "worker 1") and "trained nothing for" in decided.seen
    await world.until(lambda: any(told.effect for told in world.told("job.effect_observed")))
    line = world.jobs.run_of(job_id).status.timeline[0]
    assert line.done == "worker-1-2 was started" and "samples/s" in line.effect
    assert "worker-0-2" not in world.cluster.started


@pytest.mark.parametrize(
    ("field", "value"),
    [("deaths_to_quarantine", 5), ("memory_reserve", 0.25), ("memory_cooldown_s", 7.0), ("effect_s", 9.0)],
)
async def test_a_threshold_of_trouble_may_be_set(field: str, value: float) -> None:
    settings = JobmasterSettings.from_env({f"RECMESH_{field.upper()}": str(value)}, "RECMESH_")
    assert getattr(settings.limits, field) == value


async def test_a_job_beyond_its_owner_s_quota_waits_and_says_so(world: JobWorld) -> None:
    world.brain.fault = ResourceExhausted("2 cores are left in the quota of owner 'ads'", reason="OVER_QUOTA")
    job_id = await world.submit(spec())
    await world.clock.sleep(60.0)
    run = world.jobs.run_of(job_id)
    assert world.phase(job_id) == "Pending" and not world.cluster.processes_of.get(job_id)
    assert run.status.message == "plan: 2 cores are left in the quota of owner 'ads'; it is tried again"
    world.brain.fault = None
    await world.until(lambda: world.phase(job_id) == "Succeeded")
    assert run.status.message == ""


async def test_a_brain_whose_disk_is_full_keeps_no_job_from_starting(world: JobWorld) -> None:
    world.brain.fault = ResourceExhausted("no space is left", reason="STORAGE_FULL")
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Succeeded")


async def test_what_a_deleted_job_held_is_told_to_be_free(world: JobWorld) -> None:
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    await world.jobs.delete(job_id)
    await world.until(lambda: bool(world.brain.ends))
    assert (world.brain.ends[0].facts.job_id, world.brain.ends[0].reason) == (job_id, "Deleted")
