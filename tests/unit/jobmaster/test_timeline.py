"""What the ops page tells of decisions on parameter servers and of what came of them."""

import pytest

from services.jobmaster.ops import _move_rows, _timeline_rows
from tests.support.job_world import JobWorld, spec

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_a_notice_to_a_parameter_server_and_the_move_that_follows_are_shown(world: JobWorld) -> None:
    world.shards.total = 100_000
    job_id = await world.submit(spec(checkpoint={"every_s": 1000.0}))
    await world.until(lambda: world.phase(job_id) == "Running")
    world.draining.add("ps-1-1")
    await world.until(lambda: bool(world.told("job.slots_moved")))
    [row] = [tuple(str(cell) for cell in row[1:]) for row in _timeline_rows(world.jobs)]
    assert row[:3] == (job_id, "termination", "ps 1")
    assert row[4] == "another process takes over its slots"
    [moved] = [tuple(str(cell) for cell in row[1:5]) for row in _move_rows(world.jobs)]
    assert moved == (job_id, "2048", "ps 1", "ps 2")
