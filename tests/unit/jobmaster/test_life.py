"""Whole lives of jobs against a world of fakes, on virtual time."""

from typing import Any

import pytest

from recmesh.runtime.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from recmesh.runtime.events import catalog
from recmesh.runtime.telemetry import span, trace_ids
from services.jobmaster.domain.exits import Exit
from services.jobmaster.domain.ledgers import is_full
from services.jobmaster.domain.snapshot import ledger_of
from tests.support.job_world import JobWorld, spec
from tests.support.tracing import tracing

__all__ = ["tracing"]

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_a_model_is_registered_in_the_job_s_namespace_with_its_settings(world: JobWorld) -> None:
    serving = {"log": {"share": 0.5, "topic": "seen"}, "max_batch_size": 8}
    job_id = await world.submit(spec(export={"namespace": "shop", "model_name": "ctr", "serving": serving}))
    await world.until_phase(job_id, "Succeeded")
    (model,) = world.models.registered
    assert (model.name, world.models.serving) == ("shop--ctr", serving)
    assert "/models/shop--ctr/" in model.uri


@pytest.mark.parametrize(("export", "path"), [
    ({"serving": {"log": {"share": 2}}}, "export.serving.log.share"),
    ({"serving": {"embeddings": {"valkey": {"url": "redis://:secret@host"}}}},
     "export.serving.embeddings.valkey.url"),
    ({"namespace": "a" * 60}, "export.namespace"),
    ({"serving": {"split": "always"}}, "export.serving.split"),
])
async def test_an_export_that_the_gateway_would_refuse_is_refused_at_once(
    world: JobWorld, export: dict[str, Any], path: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await world.submit(spec(export=export))
    assert [item.path for item in refused.value.violations] == [path]


@pytest.mark.parametrize(("serving", "path"), [
    ({"split": "always"}, "export.serving.split"),
    ({"freshness": {"held": 7}}, "export.serving.freshness.held"),
    ({"embeddings": {"miss": {"usr": "mean"}}}, "export.serving.embeddings.miss.usr"),
    ({"embeddings": {"miss": {"user": {"kind": "default", "value": [0.5]}}}},
     "export.serving.embeddings.miss.user.value"),
    ({"embeddings": {"miss": {"*": {"kind": "default", "value": [0.5] * 9}}}},
     "export.serving.embeddings.miss.*.value"),
])
async def test_serving_that_a_model_that_follows_its_job_could_never_have_is_refused_at_once(
    world: JobWorld, serving: dict[str, Any], path: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await world.submit(spec(freshness={}, export={"serving": serving}))
    assert [item.path for item in refused.value.violations] == [path]


@pytest.mark.parametrize("changes", [
    {"export": {"serving": {"split": "always"}, "serve": False}},       # may be split before it is loaded
    {"export": {"serving": {"freshness": {"held": 7}, "embeddings": {"miss": {"usr": "mean"}}}}},   # it follows nothing
    {"freshness": {}, "export": {"serving": {"freshness": {"halves": True}, "embeddings": {"miss": {
        "user": {"kind": "default", "value": [0.5] * 8}, "*": "zero"}}}}},
    {"freshness": {}, "model": {"entrypoint": "a.b:main"},
     "export": {"serving": {"embeddings": {"miss": {"mine": {"kind": "default", "value": [0.5]}}}}}},
])
async def test_serving_that_can_be_had_is_taken(world: JobWorld, changes: dict[str, Any]) -> None:
    assert await world.submit(spec(**changes))


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
    [back] = world.told("job.rolled_back")
    assert (back.snapshot, back.gen) == (before, run.record.gen)
    assert back.reason.endswith(f"; snapshot {newest} cannot be read: snapshot {newest} is damaged")
    world.cluster.kill(job_id, "ps-1-1")
    await world.until(lambda: len(world.told("job.rolled_back")) == 2)
    assert "cannot be read" not in world.told("job.rolled_back")[1].reason, "it was told once"
    await world.until_phase(job_id, "Succeeded")
    assert run.status.samples == 4000


async def test_every_nth_snapshot_is_whole_and_a_restore_gets_the_whole_chain(world: JobWorld) -> None:
    world.shards.total = 8000
    job_id = await world.submit(spec(checkpoint={"every_s": 1.0, "full_every": 3, "keep": 9}))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: len(run.record.committed) >= 5)
    documents = [await run.context.store.manifest(job_id, number) for number in run.record.committed[:5]]
    bases = [[link["snapshot"] for link in document["chain"]] for document in documents if document]
    assert bases == [[], [1], [2, 1], [], [4]]
    world.cluster.kill(job_id, "ps-0-1")
    await world.until(lambda: run.record.gen == 2 and run.record.phase == "open")
    base = await run.context.store.manifest(job_id, run.record.base_snapshot)
    assert base is not None and base["chain"]
    numbers = [run.record.base_snapshot, *(link["snapshot"] for link in base["chain"])]
    (parts,) = {order.parts for order in world.servers.orders if order.gen == 2}
    assert [(int(uri.split("/")[-2]), uri.split("/")[-1]) for uri in parts] == [
        (number, f"ps-{ps:03d}") for number in numbers for ps in (0, 1)
    ]
    await world.until(lambda: run.record.last_committed > run.record.base_snapshot)
    after = await run.context.store.manifest(job_id, run.record.last_committed)
    assert after is not None and after["chain"] == []  # the first of a generation


async def test_nothing_builds_on_a_snapshot_that_ckptcache_cannot_read_any_more(world: JobWorld) -> None:
    world.shards.total = 8000
    job_id = await world.submit(spec(checkpoint={"every_s": 1.0, "full_every": 9, "keep": 9}))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: len(run.record.committed) == 2)
    await world.until(lambda: (job_id, run.record.last_committed) in world.checkpoints.committed)
    world.checkpoints.damaged.add(run.record.last_committed)
    await world.until(lambda: len(run.record.committed) == 4)
    documents = [await run.context.store.manifest(job_id, number) for number in run.record.committed]
    chains = [[link["snapshot"] for link in document["chain"]] for document in documents if document]
    assert chains == [[], [1], [], [3]]


async def test_offsets_of_topics_are_committed_by_the_oldest_snapshot_that_is_kept(world: JobWorld) -> None:
    world.shards.total = 8000
    topic = {"jetstream": "clicks-*", "start": "earliest", "types": {"item": "int", "label": "float"}}
    data = {"streams": [{"sources": [topic]}], "features": [{"name": "item"}]}
    job_id = await world.submit(spec(data=data, checkpoint={"every_s": 1.0, "keep": 2}))
    run, ledgers = world.jobs.run_of(job_id), {}
    for wanted in range(1, 5):
        await world.until(lambda wanted=wanted: len(world.shards.committed) >= wanted)  # type: ignore[misc]  # defaults bind the loop's values
        for number in run.record.committed:
            document = await run.context.store.manifest(job_id, number)
            if document is not None:
                ledgers[number] = tuple(tuple(interval) for interval in document["ledger"])
    told = [tuple(done) for _, done in world.shards.committed[:4]]
    assert told == [ledgers[number] for number in sorted(ledgers)[:1] + sorted(ledgers)[:3]]
    await world.until_phase(job_id, "Succeeded")
    assert tuple(world.shards.committed[-1][1]) == ((0, 0, 8000),), "whoever follows goes on behind all of it"


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
    world.jobs.buckets = frozenset()
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
    assert [(data.matter, data.seen) for data in world.told("job.decided")] == [
        ("quarantine", "3 workers died in line 0 [50, 60)"),
    ]


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
