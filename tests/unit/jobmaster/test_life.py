"""Whole lives of jobs against a world of fakes, on virtual time."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

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
from recmesh.runtime.telemetry import span, trace_ids
from services.jobmaster.domain.exits import Exit
from services.jobmaster.domain.ledgers import is_full
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.snapshot import ledger_of
from services.jobmaster.domain.vitals import Beat
from services.jobmaster.events import SubmitCommands
from tests.support.job_world import JobWorld, spec
from tests.support.tracing import tracing

__all__ = ["tracing"]

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


@pytest_asyncio.fixture
async def world() -> AsyncIterator[JobWorld]:
    made = JobWorld()
    await made.jobs.lead()
    yield made
    await made.close()


async def test_a_job_succeeds_with_exactly_its_samples_in_one_committed_snapshot(world: JobWorld) -> None:
    job_id = await world.submit(spec())
    await world.until_phase(job_id, "Succeeded")
    run = world.jobs.run_of(job_id)
    assert run.status.samples == world.shards.total
    document = await run.context.store.manifest(job_id, run.record.last_committed)
    assert document is not None
    assert is_full(ledger_of(document), total=world.shards.total)
    assert (job_id, run.record.last_committed) in world.checkpoints.committed
    assert [model.name for model in world.models.registered] == ["ads"]
    assert run.status.metrics["eval_auc"] == 0.75
    assert world.cluster.alive(job_id) == []
    await world.until(lambda: len(world.brain.ends) == 1)
    phases = [data.to_phase for data in world.told("job.transitioned")]
    assert phases == ["Starting", "Running", "Succeeded"]
    assert all(data.expected for data in world.told("job.role_exited"))
    assert [data.exit_code for data in world.told("job.role_exited") if data.role == "finisher"] == [0]


@pytest.mark.usefixtures("tracing")
async def test_the_event_of_a_submission_carries_the_trace_of_its_call(world: JobWorld) -> None:
    with span("the call"):
        mine = trace_ids()[0]
        job_id = await world.submit(spec())
    await world.until_phase(job_id, "Succeeded")
    sent = next(event for event in world.events if event.type is catalog.JOB_SUBMITTED)
    assert sent.traceparent.split("-")[1] == mine


async def test_a_killed_worker_is_replaced_and_its_leases_are_released_at_once(world: JobWorld) -> None:
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    world.cluster.kill(job_id, "worker-0-1")
    await world.until_phase(job_id, "Succeeded")
    assert "worker-0-2" in world.cluster.started
    assert any(crashed for _, crashed in world.shards.released)
    assert world.jobs.run_of(job_id).status.samples == world.shards.total
    assert world.jobs.run_of(job_id).status.rollbacks == 0


async def test_a_lost_parameter_server_is_a_rollback_to_the_last_committed_snapshot(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec())
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.record.last_committed > 0)
    version, incarnations = run.record.map_version, {m.incarnation for m in run.record.members}
    world.cluster.kill(job_id, "ps-1-1")
    await world.until(lambda: run.record.gen == 2 and run.record.phase == "open")
    assert run.record.map_version > version
    assert len({m.incarnation for m in run.record.members} & incarnations) == 1
    assert {order.snapshot for order in world.servers.orders if order.gen == 2} == {run.record.base_snapshot}
    assert run.record.base_snapshot > 0
    await world.until_phase(job_id, "Succeeded")
    assert run.status.samples == 2000
    assert "Recovering" in [data.to_phase for data in world.told("job.transitioned")]


async def test_a_damaged_snapshot_falls_back_to_the_one_before_it(world: JobWorld) -> None:
    world.shards.total = 4000
    job_id = await world.submit(spec())
    run = world.jobs.run_of(job_id)
    await world.until(lambda: len(run.record.committed) >= 2)
    before, newest = run.record.committed[-2:]
    world.servers.damaged.add(newest)
    world.cluster.kill(job_id, "ps-0-1")
    await world.until(lambda: run.record.gen >= 3 and run.record.phase == "open")
    assert run.record.base_snapshot == before
    assert newest not in run.record.committed
    await world.until_phase(job_id, "Succeeded")
    assert run.status.samples == 4000


async def test_a_parameter_server_that_dies_during_the_rollback_is_another_rollback(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec())
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.record.last_committed > 0)
    world.cluster.kill(job_id, "ps-1-1")
    await world.until(lambda: run.record.gen == 2 and run.record.phase == "restoring")
    world.cluster.kill(job_id, "ps-0-1")
    await world.until_phase(job_id, "Succeeded")
    assert run.record.gen >= 3
    assert run.status.samples == 2000


async def test_a_killed_jobmaster_finds_its_jobs_again_and_training_goes_on(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    started, gen = list(world.cluster.started), world.jobs.run_of(job_id).record.gen
    await world.restart_jobmaster()
    await world.until(lambda: world.jobs.run_of(job_id).record.term == 1)
    assert world.cluster.started == started
    assert world.jobs.run_of(job_id).record.gen == gen
    await world.until_phase(job_id, "Succeeded")
    assert world.jobs.run_of(job_id).status.samples == 2000
    assert world.jobs.run_of(job_id).status.rollbacks == 0


@pytest.mark.parametrize("moment", range(0, 40, 3))
async def test_a_jobmaster_may_be_killed_at_any_moment(world: JobWorld, moment: int) -> None:
    world.shards.total = 600
    job_id = await world.submit(spec(checkpoint={"every_s": 0.5}))
    for _ in range(moment):
        await world.clock.sleep(0.05)
    await world.restart_jobmaster()
    await world.until_phase(job_id, "Succeeded")
    assert world.jobs.run_of(job_id).status.samples == 600
    assert world.cluster.alive(job_id) == []


async def test_a_role_that_died_while_no_jobmaster_lived_is_judged_by_the_truth(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    world.jobs.led.clear()
    world.cluster.watch(lambda job_id: None)
    world.cluster.kill(job_id, "worker-1-1", Exit(oom=True, signal=9, reason="out of memory: limit 64 MiB"))
    await world.restart_jobmaster()
    await world.until(lambda: "worker-1-2" in world.cluster.started)
    notes = world.jobs.run_of(job_id).status.notes
    assert any("out of memory: limit 64 MiB" in note for note in notes)


async def test_scaling_adds_and_drains_workers_while_training_goes_on(world: JobWorld) -> None:
    world.shards.total = 20000
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    await world.jobs.scale(job_id, role="worker", replicas=3, clear=False)
    await world.until(lambda: world.phase(job_id) == "Scaling")
    await world.until(lambda: world.phase(job_id) == "Running")
    assert len(world.cluster.alive(job_id, "worker")) == 3
    await world.jobs.scale(job_id, role="worker", replicas=1, clear=False)
    await world.until(lambda: world.cluster.alive(job_id, "worker") == ["worker-0-1"])
    await world.until(lambda: world.phase(job_id) == "Running")
    run = world.jobs.run_of(job_id)
    assert run.status.failures == 0
    assert run.record.gen == 1
    assert [(data.from_replicas, data.to_replicas) for data in world.told("job.scaled")] == [(2, 3), (3, 1)]
    with pytest.raises(FailedPrecondition, match="cannot change while a job trains"):
        await world.jobs.scale(job_id, role="ps", replicas=1, clear=False)
    with pytest.raises(InvalidArgument) as refused:
        await world.jobs.scale(job_id, role="worker", replicas=99, clear=False)
    assert refused.value.violations[0].path == "replicas"


async def test_stop_drains_and_keeps_what_was_learned_in_a_last_snapshot(world: JobWorld) -> None:
    world.shards.total = 20000
    job_id = await world.submit(spec(checkpoint={"every_s": 1000.0}))
    await world.until(lambda: world.phase(job_id) == "Running")
    await world.clock.sleep(1.0)
    await world.jobs.stop(job_id, reason="enough", finish=False)
    await world.until_phase(job_id, "Stopped")
    run = world.jobs.run_of(job_id)
    assert run.record.last_committed > 0
    assert run.status.message == "enough"
    assert world.cluster.alive(job_id) == []
    with pytest.raises(FailedPrecondition):
        await world.jobs.stop(job_id, reason="again", finish=False)


async def test_finish_is_a_success_with_the_ledgers_as_they_are(world: JobWorld) -> None:
    world.shards.total = 20000
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    await world.clock.sleep(1.0)
    await world.jobs.stop(job_id, reason="good enough", finish=True)
    await world.until_phase(job_id, "Succeeded")
    run = world.jobs.run_of(job_id)
    assert 0 < run.status.samples < 20000
    assert run.status.reason == "Finished"
    assert world.models.registered


async def test_a_users_mistake_fails_the_job_with_its_own_message(world: JobWorld) -> None:
    world.mistake = True
    job_id = await world.submit(spec())
    await world.until_phase(job_id, "Failed")
    run = world.jobs.run_of(job_id)
    assert (run.status.reason, run.status.message) == ("UserError", "no such column: clicks")
    assert world.cluster.alive(job_id) == []


async def test_a_batch_that_kills_three_workers_is_set_aside_and_the_job_succeeds(world: JobWorld) -> None:
    world.poison = 55
    world.shards.suspects = ((0, 50, 60),)
    job_id = await world.submit(spec())
    await world.until_phase(job_id, "Succeeded")
    run = world.jobs.run_of(job_id)
    assert run.record.voids == ((0, 50, 60),)
    assert run.status.quarantined == 1
    assert [data.lo for data in world.told("job.batch_quarantined")] == [50]
    assert run.status.samples == world.shards.total - 10
    assert run.status.failures == 0  # the limit of quarantines counts these deaths


async def test_the_batch_in_a_dead_workers_hands_is_to_blame_and_not_the_one_that_shardsvc_suspects(
    world: JobWorld,
) -> None:
    world.poison, world.in_hand = 55, (0, 50, 60)
    world.shards.suspects = ((0, 40, 50),)
    job_id = await world.submit(spec())
    await world.until_phase(job_id, "Succeeded")
    run = world.jobs.run_of(job_id)
    assert run.record.voids == ((0, 50, 60),)
    exits = [data for data in world.told("job.role_exited") if data.role == "worker" and not data.expected]
    assert len(exits) == 3
    assert run.status.samples == world.shards.total - 10


async def test_deaths_are_remembered_by_the_next_jobmaster(world: JobWorld) -> None:
    world.poison, world.in_hand = 55, (0, 50, 60)
    job_id = await world.submit(spec())

    def deaths() -> int:
        return sum(item.deaths for item in world.jobs.run_of(job_id).status.deadly)

    await world.until(lambda: deaths() == 2)
    await world.restart_jobmaster()
    await world.until_phase(job_id, "Succeeded")
    assert world.jobs.run_of(job_id).record.voids == ((0, 50, 60),)
    exits = [data for data in world.told("job.role_exited") if data.role == "worker" and not data.expected]
    assert len(exits) == 3


async def test_a_quarantine_that_a_rollback_completes_is_told_as_any_other(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.poison, world.in_hand = 55, (0, 50, 60)
    job_id = await world.submit(spec())
    run = world.jobs.run_of(job_id)

    async def void(*_: Any, **__: Any) -> Any:
        world.cluster.kill(job_id, "ps-1-1")
        raise Unavailable("the server is gone")

    monkeypatch.setattr(world.servers, "void", void)
    await world.until_phase(job_id, "Succeeded")
    assert run.record.gen == 2 and run.record.voids == ((0, 50, 60),)
    assert run.status.quarantined == 1 and len(world.told("job.batch_quarantined")) == 1
    assert run.status.samples == world.shards.total - 10


async def test_more_quarantined_batches_than_allowed_fail_the_job(world: JobWorld) -> None:
    world.poison = 55
    world.shards.suspects = ((0, 50, 60),)
    job_id = await world.submit(spec(training={"quarantine_limit": 0}))
    await world.until_phase(job_id, "Failed")
    assert world.jobs.run_of(job_id).status.reason == "QuarantineLimitExceeded"


async def test_workers_that_keep_dying_fail_the_job_at_its_backoff_limit(world: JobWorld) -> None:
    world.poison = 5
    job_id = await world.submit(spec(backoff_limit=3))
    await world.until_phase(job_id, "Failed")
    run = world.jobs.run_of(job_id)
    assert run.status.reason == "BackoffLimitExceeded"
    assert run.status.failures == 4


async def test_a_silent_worker_is_killed_and_replaced(world: JobWorld) -> None:
    world.shards.total = 20000
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    world.cluster.processes_of[job_id]["worker-1-1"].silent = True
    await world.until(lambda: "worker-1-2" in world.cluster.started)
    exits = world.told("job.role_exited")
    assert [(data.role, data.expected) for data in exits] == [("worker", False)]


async def test_too_many_batches_without_finite_gradients_fail_the_job(world: JobWorld) -> None:
    world.skipped_nan = 9
    world.shards.total = 20000
    job_id = await world.submit(spec(training={"nan": {"limit": 10}}))
    await world.until_phase(job_id, "Failed")
    assert world.jobs.run_of(job_id).status.reason == "NotFinite"


async def test_a_job_past_its_active_deadline_fails(world: JobWorld) -> None:
    world.shards.total = 20000
    job_id = await world.submit(spec(active_deadline_s=5.0))
    await world.until_phase(job_id, "Failed")
    assert world.jobs.run_of(job_id).status.reason == "DeadlineExceeded"


async def test_an_ended_job_is_deleted_after_its_time_to_live(world: JobWorld) -> None:
    job_id = await world.submit(spec(ttl_after_end_s=30.0))
    await world.until_phase(job_id, "Succeeded")
    await world.until(lambda: job_id not in world.jobs.runners)
    assert world.checkpoints.deleted == [job_id]
    assert not [key for key in world.keys.data if job_id in key and not key.startswith("version.")]
    assert world.models.registered


async def test_a_live_job_can_be_deleted(world: JobWorld) -> None:
    world.shards.total = 20000
    job_id = await world.submit(spec())
    await world.until(lambda: world.phase(job_id) == "Running")
    await world.jobs.delete(job_id)
    with pytest.raises(NotFound):
        world.jobs.run_of(job_id)
    assert world.cluster.alive(job_id) == []


async def test_early_stopping_finishes_the_job_when_the_evaluation_stagnates(world: JobWorld) -> None:
    world.shards.total = 20000
    world.evaluations = [0.6, 0.7, 0.69, 0.68, 0.7]
    job_id = await world.submit(
        spec(
            evaluation={"rows": [0.8, 1.0], "every_s": 1.0},
            training={"early_stopping": {"metric": "auc", "patience": 3}},
        )
    )
    await world.until_phase(job_id, "Succeeded")
    run = world.jobs.run_of(job_id)
    assert run.status.reason == "Finished"
    assert run.status.message == "early stopping: auc has not improved in 3 evaluations"


async def test_an_evaluation_that_comes_after_the_wish_to_finish_does_not_change_its_reason(world: JobWorld) -> None:
    world.shards.total = 20000
    job_id = await world.submit(
        spec(
            evaluation={"rows": [0.8, 1.0], "every_s": 1.0},
            training={"early_stopping": {"metric": "auc", "patience": 1}},
        )
    )
    await world.until(lambda: world.phase(job_id) == "Running")
    evaluator = world.jobs.run_of(job_id).status.role(("evaluator", 0))
    assert evaluator is not None
    await world.jobs.stop(job_id, reason="seen enough", finish=True)
    for _ in range(2):
        await world.roles.report(
            job_id, role="evaluator", incarnation=evaluator.incarnation, snapshot=0, samples=0,
            metrics={"auc": 0.5}, model_uri="", framework="", error="", final=False,
        )
    await world.until_phase(job_id, "Succeeded")
    assert world.jobs.run_of(job_id).status.message == "seen enough"


async def test_an_evaluation_says_how_many_samples_had_been_trained(world: JobWorld) -> None:
    world.evaluations = [0.6]
    job_id = await world.submit(spec(evaluation={"rows": [0.8, 1.0], "every_s": 1.0}))
    await world.until_phase(job_id, "Succeeded")
    assert [event.samples for event in world.told("job.evaluated")][-1] == world.shards.total


async def test_an_unknown_phase_is_refused_with_those_that_there_are(world: JobWorld) -> None:
    await world.submit(spec())
    with pytest.raises(InvalidArgument, match="there is no phase Foo; there are Pending, Starting, Running"):
        world.jobs.page(phase="Foo", labels={}, limit=10, page_token="")
    assert world.jobs.page(phase="failed", labels={}, limit=10, page_token="")[0] == []


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
        await SubmitCommands(world.jobs, publish=world.publish).handle(command)


async def test_a_refused_submission_by_event_is_answered_with_its_wrong_fields(world: JobWorld) -> None:
    wanted = spec() | {"surprise": 1}
    asked = catalog.JobSubmit(spec=wanted, request_id="r9", submitter="me")
    command = Event(catalog.JOB_SUBMIT, "ads", asked, source="/me")
    for _ in range(2):   # the second one is a redelivery
        with pytest.raises(InvalidArgument):
            await SubmitCommands(world.jobs, publish=world.publish).handle(command)
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
    assert "worker-0-2" not in world.cluster.started
