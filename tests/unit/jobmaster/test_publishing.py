"""A model that is served while its job trains: exported once, registered, and followed by frequent snapshots."""

from typing import Any

import pytest

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument
from recmesh.spec.job import TrainingJob
from services.jobmaster.domain.job import JobStatus
from tests.support.job_world import JobWorld, spec

FRESH: dict[str, Any] = {"freshness": {"every_s": 0.5, "full_every": 8, "keep": 20}}


def status(world: JobWorld, job_id: str) -> JobStatus:
    return world.jobs.run_of(job_id).status


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_it_is_registered_while_the_job_trains_and_again_at_its_end(world: JobWorld) -> None:
    world.shards.total = 3000
    job_id = await world.submit(spec(**FRESH))
    await world.until(lambda: bool(world.models.registered))
    assert world.phase(job_id) == "Running"
    assert status(world, job_id).samples < world.shards.total
    await world.until(lambda: status(world, job_id).model_version == "1")
    await world.until_phase(job_id, "Succeeded")
    assert [(model.name, model.version) for model in world.models.registered] == [("ads", "1"), ("ads", "2")]
    ended = [data for data in world.told("job.role_exited") if data.role == "finisher"]
    assert [(data.exit_code, data.expected) for data in ended] == [(0, True), (0, True)]
    assert status(world, job_id).failures == 0


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_snapshots_are_as_frequent_as_it_wants_and_mostly_deltas(world: JobWorld) -> None:
    world.shards.total = 3000
    job_id = await world.submit(spec(**FRESH))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.record.last_committed >= 12)
    begun, number = world.clock.now(), run.record.last_committed
    await world.until(lambda: run.record.last_committed >= number + 4)
    assert world.clock.now() - begun < 4.0, "checkpoint.every_s alone is 2 s"
    chains = []
    for committed in run.record.committed[-8:]:
        document = await run.context.store.manifest(job_id, committed)
        assert document is not None
        chains.append(len(document["chain"]))
    assert max(chains) == 7


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_gateway_that_is_away_and_a_jobmaster_that_dies_delay_it_only(world: JobWorld) -> None:
    world.shards.total = 4000
    world.models.away = True
    job_id = await world.submit(spec(**FRESH))
    await world.until(lambda: (made := status(world, job_id).publication) is not None and made.by != "")
    await world.restart_jobmaster()
    committed = world.jobs.run_of(job_id).record.last_committed
    await world.until(lambda: world.jobs.run_of(job_id).record.last_committed > committed + 2)
    world.models.away = False
    await world.until(lambda: bool(world.models.registered))
    await world.until_phase(job_id, "Succeeded")
    assert [model.version for model in world.models.registered] == ["1", "2"]


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_finisher_that_dies_before_it_has_reported_is_started_again(world: JobWorld) -> None:
    world.shards.total = 4000
    world.unborn.add(("finisher", 0))
    job_id = await world.submit(spec(**FRESH))
    await world.until(lambda: "finisher-0-1" in world.cluster.started)
    world.unborn.clear()
    world.cluster.kill(job_id, "finisher-0-1")
    await world.until(lambda: bool(world.models.registered))
    assert "finisher-0-2" in world.cluster.started
    assert world.phase(job_id) == "Running"


@pytest.mark.asyncio
@pytest.mark.looptime
@pytest.mark.parametrize("code", [64, 1])
async def test_an_export_that_fails_while_the_job_trains_does_not_end_it(world: JobWorld, code: int) -> None:
    world.shards.total = 6000
    world.exports_fail = code
    job_id = await world.submit(spec(**FRESH, backoff_limit=1))
    await world.until(lambda: "finisher-0-3" in world.cluster.started)
    run = world.jobs.run_of(job_id)
    assert (world.phase(job_id), run.status.failures, run.status.mistakes) == ("Running", 0, 0)
    assert any("its export is tried again" in note for note in run.status.notes)
    world.exports_fail = 0
    await world.until(lambda: bool(world.models.registered))
    await world.until_phase(job_id, "Succeeded")


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_number_that_somebody_took_is_left_to_him(world: JobWorld) -> None:
    world.shards.total = 3000
    world.models.refusal = FailedPrecondition("version 7 is there", reason="VERSION_NOT_INCREASING")
    job_id = await world.submit(spec(**FRESH))
    await world.until(lambda: bool(world.models.registered))
    assert world.models.registered[0].version == ""
    await world.until(lambda: (made := status(world, job_id).publication) is not None and made.registered)


def test_a_model_that_is_not_exported_cannot_be_served_while_it_trains() -> None:
    with pytest.raises(InvalidArgument) as refused:
        TrainingJob.parse(spec(**FRESH, export=None))
    assert [item.path for item in refused.value.violations] == ["freshness"]
