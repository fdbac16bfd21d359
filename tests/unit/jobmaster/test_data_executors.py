"""Data executors of jobs, on virtual time: who starts them, who learns of them, and what becomes of those that die."""

from typing import Any

import pytest

from recmesh.runtime.errors import InvalidArgument
from services.jobmaster.domain.exits import Exit
from services.jobmaster.domain.vitals import Beat, Serving
from tests.support.job_world import JobWorld, spec

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def with_executors(count: int, **changes: Any) -> dict[str, Any]:
    data = {"replicas": count} | changes.pop("data_role", {})
    return spec(roles={"ps": {"replicas": 1}, "worker": {"replicas": 2}, "data": data}, **changes)


async def running(world: JobWorld, job: dict[str, Any], **options: Any) -> str:
    world.shards.total = 200_000
    job_id = await world.submit(job, **options)
    await world.until(lambda: world.phase(job_id) == "Running")
    return job_id


def executors(world: JobWorld, job_id: str, role: str = "worker") -> list[str]:
    """As a process of the job learns of them."""
    run = world.jobs.run_of(job_id)
    state = run.status.role((role, 0))
    assert state is not None
    beat = Beat(at=world.clock.now(), incarnation=state.incarnation)
    return [each.address for each in world.roles.heartbeat(job_id, role=role, index=0, beat=beat).executors]


async def test_without_a_wish_for_them_there_are_none(world: JobWorld) -> None:
    job_id = await running(world, spec())
    assert not [name for name in world.cluster.started if name.startswith("data-")]
    assert executors(world, job_id) == []


async def test_workers_and_executors_learn_of_executors_and_servers_do_not(world: JobWorld) -> None:
    job_id = await running(world, with_executors(2))
    wanted = [f"{job_id}/data-0-1", f"{job_id}/data-1-1"]
    await world.until(lambda: executors(world, job_id) == wanted)
    assert executors(world, job_id, "data") == wanted
    assert executors(world, job_id, "ps") == []
    state = world.jobs.run_of(job_id).status.role(("worker", 0))
    assert state is not None
    assignment = await world.roles.register(job_id, role="worker", index=0, incarnation=state.incarnation, address="")
    assert [each.address for each in assignment.executors] == wanted


async def test_one_that_dies_is_no_longer_named_and_is_replaced(world: JobWorld) -> None:
    job_id = await running(world, with_executors(2))
    await world.until(lambda: len(executors(world, job_id)) == 2)
    world.cluster.kill(job_id, "data-0-1")
    await world.until(lambda: executors(world, job_id) == [f"{job_id}/data-0-2", f"{job_id}/data-1-1"])
    assert world.jobs.run_of(job_id).record.gen == 1


async def test_scaling_drains_the_highest_and_starts_the_lowest(world: JobWorld) -> None:
    job_id = await running(world, with_executors(1))
    await world.jobs.scale(job_id, role="data", replicas=3, clear=False)
    await world.until(lambda: len(executors(world, job_id)) == 3)
    await world.jobs.scale(job_id, role="data", replicas=0, clear=False)
    await world.until(lambda: not world.jobs.run_of(job_id).status.live("data"))
    assert executors(world, job_id) == []
    with pytest.raises(InvalidArgument, match=r"roles\.data\.max"):
        await world.jobs.scale(job_id, role="data", replicas=9, clear=False)


async def test_executors_of_another_size_are_replaced_and_their_buffer_must_fit(world: JobWorld) -> None:
    job_id = await running(world, with_executors(1))
    with pytest.raises(InvalidArgument, match="beside the buffer"):
        await world.jobs.resize(job_id, role="data", cpu=0.0, memory_bytes=300 << 20)
    await world.jobs.resize(job_id, role="data", cpu=2.0, memory_bytes=0)

    def sizes() -> list[float]:
        return [role.size.cpu for role in world.jobs.run_of(job_id).status.live("data") if role.size is not None]

    await world.until(lambda: sizes() == [2.0])


async def test_one_that_is_told_to_go_drains_and_is_no_failure(world: JobWorld) -> None:
    job_id = await running(world, with_executors(2))
    await world.until(lambda: len(executors(world, job_id)) == 2)
    world.draining.add("data-1-1")
    await world.until(lambda: "data-1-2" in world.cluster.started)
    status = world.jobs.run_of(job_id).status
    assert status.failures == 0
    assert [data.role for data in world.told("job.role_notified")] == ["data"]


async def test_the_end_of_training_takes_executors_down(world: JobWorld) -> None:
    job_id = await world.submit(with_executors(2))
    await world.until_phase(job_id, "Succeeded")
    assert world.cluster.alive(job_id) == []
    assert world.jobs.run_of(job_id).status.samples == world.shards.total


async def test_an_executor_that_ends_by_itself_is_started_again(world: JobWorld) -> None:
    job_id = await running(world, with_executors(1))
    world.cluster.kill(job_id, "data-0-1", Exit(code=0))
    await world.until(lambda: executors(world, job_id) == [f"{job_id}/data-0-2"])


async def test_jobs_that_read_alike_share_executors_in_the_same_order_and_others_do_not(world: JobWorld) -> None:
    shared = {"data_role": {"shared": True}}
    first = await running(world, with_executors(2, **shared), request_id="1")
    second = await running(world, with_executors(0, **shared), request_id="2")
    alone = await running(world, with_executors(1), request_id="3")
    data = {"source": {"files": ["/data/x.parquet"]}, "features": [{"name": "item"}]}
    unlike = await running(world, with_executors(0, data=data, **shared), request_id="4")
    wanted = [f"{first}/data-0-1", f"{first}/data-1-1"]
    await world.until(lambda: executors(world, first) == wanted)
    assert executors(world, second) == wanted
    assert executors(world, alone) == [f"{alone}/data-0-1"]
    assert executors(world, unlike) == []


async def test_an_event_says_when_an_executor_has_no_room_any_more_and_when_it_has_again(world: JobWorld) -> None:
    job_id = await running(world, with_executors(1))
    state = world.jobs.run_of(job_id).status.role(("data", 0))
    assert state is not None

    def beats(accepting: bool, queued: int) -> None:
        beat = Beat(at=world.clock.now(), incarnation=state.incarnation,
                    serving=Serving(queued=queued, accepting=accepting))
        world.roles.heartbeat(job_id, role="data", index=0, beat=beat)

    for accepting, queued in ((True, 0), (True, 3), (False, 5), (False, 4), (True, 1)):
        beats(accepting, queued)
    await world.until(lambda: len(world.told("job.executor_room_changed")) >= 3)
    told = [(data.accepting, data.queued) for data in world.told("job.executor_room_changed")]
    assert told == [(True, 0), (False, 5), (True, 1)]


def between(least: int, most: int, **changes: Any) -> dict[str, Any]:
    """brain says how many."""
    role = {"replicas": None, "min": least, "max": most, "cpu": 1.0}
    return spec(roles={"ps": {"replicas": 1}, "worker": {"replicas": 2}, "data": role}, **changes)


async def test_their_number_follows_their_buffers_and_is_carried_out_and_told(world: JobWorld) -> None:
    world.serving, world.waited_share = Serving(), 0.8
    world.brain.fed = [2, 4]
    job_id = await running(world, between(1, 6))
    await world.until(lambda: len(executors(world, job_id)) == 4)
    first, second = world.brain.feeds[:2]
    assert [(ask.now.replicas, ask.least, ask.most) for ask in (first, second)] == [(1, 1, 6), (2, 1, 6)]
    assert first.buffer_fill == pytest.approx(0.2) and second.samples_per_s > 0
    status = world.jobs.run_of(job_id).status
    told = [line for line in status.timeline if line.matter == "data"]
    assert [line.decided for line in told] == ["data 1 → 2 (STARVED)", "data 2 → 4 (STARVED)"]
    await world.until(lambda: [
        line.done for line in world.jobs.run_of(job_id).status.timeline if line.matter == "data"
    ] == ["2 run", "4 run"])
    world.brain.fed = [1]
    await world.until(lambda: len(world.jobs.run_of(job_id).status.live("data")) == 1)


@pytest.mark.long
async def test_a_count_that_the_user_fixed_or_did_not_ask_for_is_not_brains_to_change(world: JobWorld) -> None:
    world.serving, world.waited_share = Serving(), 1.0
    for number, job in enumerate((with_executors(1), between(0, 6), between(2, 2))):
        await running(world, job, request_id=str(number))
    job_id = await running(world, between(1, 6), request_id="last")
    await world.jobs.scale(job_id, role="data", replicas=2, clear=False)
    await world.until(lambda: len(executors(world, job_id)) == 2)
    world.brain.feeds.clear()
    await world.clock.sleep(60.0)
    assert world.brain.feeds == []
    await world.jobs.scale(job_id, role="data", replicas=0, clear=True)
    await world.until(lambda: {ask.job_id for ask in world.brain.feeds} == {job_id})


async def test_while_brain_is_away_they_stay(world: JobWorld) -> None:
    world.serving, world.waited_share = Serving(), 1.0
    job_id = await running(world, between(1, 6))
    world.brain.away = True
    await world.clock.sleep(40.0)
    assert len(executors(world, job_id)) == 1
    world.brain.away, world.brain.fed = False, [3]
    await world.until(lambda: len(executors(world, job_id)) == 3)


@pytest.mark.long
async def test_those_that_do_not_start_are_given_up_and_nothing_else_waits_for_them(world: JobWorld) -> None:
    world.serving, world.waited_share = Serving(), 1.0
    world.brain.fed = [2]
    job_id = await running(world, between(1, 6))
    await world.until(lambda: len(executors(world, job_id)) == 2)
    world.brain.fed = [3]
    world.unborn.add(("data", 2))
    await world.until(lambda: len(world.brain.feeds) >= 2)
    await world.clock.sleep(world.limits.feed_deadline_s + 5.0)
    run = world.jobs.run_of(job_id)
    assert run.status.plan["data"].replicas == 2 and len(executors(world, job_id)) == 2
    lines = [line for line in run.status.timeline if line.matter == "data"]
    assert lines[-2].done.startswith("2 of 3 run after")
    assert lines[-1].decided == "data 3 → 2, as the others do not come up"
    asked = len(world.brain.feeds)
    await world.clock.sleep(60.0)
    assert [line for line in run.status.timeline if line.matter == "data"][-1].done == "2 run"
    assert len(world.brain.feeds) == asked            # not again at once


async def test_shared_executors_are_no_single_jobs_to_scale(world: JobWorld) -> None:
    world.serving, world.waited_share = Serving(), 1.0
    job = between(1, 6)
    job["roles"]["data"]["shared"] = True
    await running(world, job)
    await world.clock.sleep(40.0)
    assert world.brain.feeds == []


async def test_a_fixed_count_is_where_brain_goes_on_from(world: JobWorld) -> None:
    world.serving, world.waited_share = Serving(), 0.5
    world.brain.fed = [6]
    job_id = await running(world, between(1, 6))
    await world.until(lambda: len(executors(world, job_id)) == 6)
    await world.jobs.scale(job_id, role="data", replicas=2, clear=False)
    await world.until(lambda: len(executors(world, job_id)) == 2)
    await world.clock.sleep(5.0)
    await world.jobs.scale(job_id, role="data", replicas=0, clear=True)
    await world.clock.sleep(30.0)
    assert len(executors(world, job_id)) == 2


@pytest.mark.parametrize("count", [0, 6])
async def test_a_decision_that_a_user_overtakes_is_over_and_holds_nothing_up(world: JobWorld, count: int) -> None:
    """Also where the user wants what brain wanted."""
    world.serving, world.waited_share = Serving(), 1.0
    world.brain.fed = [6]
    world.unborn.add(("data", 5))
    job_id = await running(world, between(1, 6))
    await world.until(lambda: len(executors(world, job_id)) == 5)
    await world.jobs.scale(job_id, role="data", replicas=count, clear=False)
    run = world.jobs.run_of(job_id)
    await world.until(lambda: [line.done for line in run.status.timeline if line.matter == "data"] == [
        "overtaken: its number is not brain's any more"])
