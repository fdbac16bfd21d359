"""What Prometheus sees of single jobs."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.jobmaster.gauges import SHOWN_AFTER_END_S, register
from services.jobmaster.ops import job_figures
from tests.support.job_world import JobWorld, spec

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def scraped(world: JobWorld) -> dict[str, float]:
    registry = CollectorRegistry()
    register(lambda: job_figures(world.jobs), registry=registry)
    register(lambda: job_figures(world.jobs), registry=registry)      # an app that is built twice
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


@pytest.mark.long
async def test_a_job_tells_of_itself_while_it_trains_and_for_an_hour_after(world: JobWorld) -> None:
    world.shards.total = 5000
    job_id = await world.submit(spec())
    await world.until(lambda: world.jobs.run_of(job_id).status.samples > 0)
    prefix, own = "recmesh_jobmaster_job_", f'{{job_id="{job_id}"}}'
    found = scraped(world)
    run = world.jobs.run_of(job_id)
    assert found[f'{prefix}phase{{job_id="{job_id}",owner="{run.spec.owner}",phase="{run.status.phase}"}}'] == 1
    assert found[f"{prefix}samples{own}"] == run.status.samples
    assert found[f"{prefix}expected_samples{own}"] == 5000
    assert found[f'{prefix}role_processes{{job_id="{job_id}",role="worker"}}'] == len(run.status.live("worker"))
    assert found[f'{prefix}role_wanted{{job_id="{job_id}",role="ps"}}'] == len(run.status.live("ps"))
    assert f"{prefix}lag_seconds{own}" not in found           # it reads no topic
    await world.until_phase(job_id, "Succeeded")
    found = scraped(world)
    assert found[f'{prefix}phase{{job_id="{job_id}",owner="{run.spec.owner}",phase="Succeeded"}}'] == 1
    assert found[f"{prefix}samples_per_second{own}"] == 0
    await asyncio.sleep(SHOWN_AFTER_END_S + 1)
    assert not [name for name in scraped(world) if job_id in name]
