"""What a jobmaster runs while it takes buckets, on virtual time."""

from collections.abc import Callable
from typing import Any

import pytest

from recmesh.runtime.errors import Unavailable
from services.jobmaster.app.runner import Runner
from services.jobmaster.domain.shards import bucket_of
from tests.support.job_fakes import FakeEntry
from tests.support.job_world import JobWorld, spec

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def two_jobs(world: JobWorld) -> tuple[str, str]:
    first, second = [await world.submit(spec(name=name)) for name in ("ads", "flights")]
    assert bucket_of(first) != bucket_of(second)
    await world.jobs.follow()
    return first, second


async def test_where_a_read_fails_no_job_of_the_buckets_is_run_and_the_next_attempt_runs_all(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, get = await two_jobs(world), world.keys.get

    async def failing(key: str) -> FakeEntry | None:
        if key.startswith("record.") and key.endswith(both[1]):
            raise Unavailable("no NATS")
        return await get(key)

    monkeypatch.setattr(world.keys, "get", failing)
    with pytest.raises(Unavailable):
        await world.jobs.lead()
    assert not world.jobs.runners and not world.jobs.unreadable and not world.jobs.buckets
    monkeypatch.undo()
    await world.jobs.lead()
    assert world.jobs.runners.keys() == set(both)


async def test_where_a_runner_cannot_be_made_those_before_it_are_let_go(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, run = await two_jobs(world), world.jobs._run
    made: list[Runner] = []

    def failing(job: Any, *more: Any) -> Any:
        if made:
            raise Unavailable("no more")
        found = run(job, *more)
        made.append(world.jobs.runners[job.job_id])
        return found

    monkeypatch.setattr(world.jobs, "_run", failing)
    with pytest.raises(Unavailable):
        await world.jobs.hold({bucket_of(job_id) for job_id in both})
    assert not world.jobs.runners and not world.jobs.buckets
    assert [all(task.done() for task in runner._tasks) for runner in made] == [True]


async def test_a_job_that_cannot_be_read_holds_up_no_other(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await two_jobs(world)
    job: Callable[[str], Any] = world.jobs.context.store.job

    async def unreadable(job_id: str) -> Any:
        if job_id == second:
            raise ValueError("from a later version")
        return await job(job_id)

    monkeypatch.setattr(world.jobs.context.store, "job", unreadable)
    await world.jobs.lead()
    assert world.jobs.runners.keys() == {first} and world.jobs.unreadable.keys() == {second}
