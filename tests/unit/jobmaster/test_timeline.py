"""What the ops page tells of decisions on parameter servers and of what came of them."""

import pytest

from services.jobmaster.ops import _timeline_rows
from tests.support.job_world import JobWorld, spec

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_the_timeline_tells_what_was_seen_decided_and_done_the_newest_first(world: JobWorld) -> None:
    world.shards.total = 100_000
    job_id = await world.submit(spec(checkpoint={"every_s": 1000.0}))
    await world.until(lambda: world.phase(job_id) == "Running")
    world.draining.add("ps-1-1")
    await world.until(lambda: bool(world.told("job.slots_moved")))
    await world.jobs.scale(job_id, role="ps", replicas=3, clear=False)
    await world.until(lambda: bool(world.told("job.scaled")))
    rows = [tuple(str(cell) for cell in row[1:]) for row in _timeline_rows(world.jobs)]
    assert rows[0] == (job_id, "scaled", "ps: 2 → 3")
    seen = (job_id, "seen at ps 1", "its machine asks it to go → another process takes over its slots")
    assert rows[-1] == seen
    assert rows[-2][1] == "slots moved" and rows[-2][2].startswith("2048 from PS 1 to PS 2, pause ")
