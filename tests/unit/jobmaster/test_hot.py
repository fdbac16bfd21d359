"""Hot parameter servers: popular rows and a throttled CPU look alike, and are answered alike."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.jobmaster.domain.hot import Hot, Load, judge
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.placement import SLOTS, applied, counts_of, even, plan_moves
from services.jobmaster.domain.vitals import Beat, Vitals
from tests.support.job_world import JobWorld, spec

LIMITS = Limits()


def after(hot: Hot, loads: dict[int, Load]) -> dict[int, float]:
    """Loads once the slots have moved, when a slot costs what it cost where it was."""
    owners = even(sorted(loads))
    counts = counts_of(applied(owners, plan_moves(owners, sorted(loads), weights=hot.weights)))
    return {ps: load.busy * counts.get(ps, 0) / load.slots for ps, load in loads.items()}


def equal(*busy: float) -> dict[int, Load]:
    owned = counts_of(even(list(range(len(busy)))))
    return {ps: Load(owned[ps], share) for ps, share in enumerate(busy)}


def test_a_server_with_far_more_load_than_its_peers_gives_slots_to_the_least_loaded() -> None:
    loads = equal(0.8, 0.2, 0.1)
    hot = judge(loads, waiting=0.5, limits=LIMITS)
    assert hot is not None and hot.ps == 0
    assert "80 %" in hot.seen and "5.3 times" in hot.seen
    balanced = after(hot, loads)
    assert max(balanced.values()) < 0.35
    assert balanced[1] >= 0.2 and balanced[2] >= 0.1, "nothing is taken from peers"


def test_a_server_at_three_percent_of_its_cpu_loses_nearly_all_of_its_slots() -> None:
    loads = equal(1.0, 0.03, 0.03)
    hot = judge(loads, waiting=0.9, limits=LIMITS)
    assert hot is not None
    counts = counts_of(applied(even([0, 1, 2]), plan_moves(even([0, 1, 2]), [0, 1, 2], weights=hot.weights)))
    assert counts.get(0, 0) <= 0.05 * SLOTS
    assert abs(counts[1] - counts[2]) <= 1


QUIET = {
    "nobody waits for servers": (equal(0.8, 0.1), 0.1),
    "all have the same load": (equal(0.8, 0.8, 0.7), 0.9),
    "there is one server": (equal(0.9), 0.9),
    "servers have hardly anything to do": (equal(0.04, 0.0001), 0.9),
    "all slots are one server's, and the others were relieved": ({0: Load(SLOTS, 0.9), 1: Load(0, 0.0)}, 0.9),
}


@pytest.mark.parametrize("sentence", QUIET)
def test_nothing_is_hot_when(sentence: str) -> None:
    loads, waiting = QUIET[sentence]
    assert judge(loads, waiting=waiting, limits=LIMITS) is None


def test_a_hot_server_whose_slots_would_be_no_better_elsewhere_is_only_told_of() -> None:
    loads = {0: Load(1, 0.9), 1: Load(SLOTS - 1, 0.1)}
    hot = judge(loads, waiting=0.9, limits=Limits(hot_ratio=2.0))
    assert hot is not None
    assert hot.weights == {} or hot.weights[0] == 0.0


@given(busy=st.lists(st.floats(0.0, 2.0), min_size=2, max_size=8), waiting=st.floats(0.3, 1.0))
def test_relief_lowers_the_highest_load_and_raises_nobody_above_it(busy: list[float], waiting: float) -> None:
    loads = equal(*busy)
    hot = judge(loads, waiting=waiting, limits=LIMITS)
    if hot is None or not hot.weights:
        return
    highest = max(load.busy for load in loads.values())
    slot = max(load.busy / load.slots for load in loads.values())
    # What a server that is relieved wholly would still have kept goes to all others alike.
    assert max(after(hot, loads).values()) <= 1.06 * highest + slot


def test_loads_count_from_a_process_that_was_heard_for_a_whole_window() -> None:
    vitals = Vitals()
    for second in range(20):
        vitals.hear(("ps", 0), Beat(at=float(second), incarnation="a", busy_s=0.5 * second))
        vitals.hear(("ps", 1), Beat(at=float(second), incarnation="a" if second < 15 else "b", busy_s=0.0))
    assert vitals.busy_over("ps", 10.0, now=19.0) == {0: pytest.approx(0.5)}


async def hot_job(world: JobWorld, **changes: Any) -> str:
    world.shards.total, world.step_s = 20_000, 0.5
    roles = {"ps": {"replicas": 3}, "worker": {"replicas": 2}}
    job_id = await world.submit(spec(roles=roles, checkpoint={"every_s": 1000.0}) | changes)
    await world.until(lambda: world.phase(job_id) == "Running")
    return job_id


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_slow_server_is_found_and_relieved_within_a_minute_and_training_goes_on(world: JobWorld) -> None:
    job_id = await hot_job(world)
    await world.clock.sleep(20.0)
    began = world.clock.now()
    server = world.servers.by_address[f"{job_id}/ps-1-1"]
    world.slowness["ps-1-1"] = 33.0
    await world.until(lambda: bool(world.told("job.decided")))
    assert world.clock.now() - began < 60.0
    assert world.told("job.decided")[0].place == "ps 1"
    await world.until(lambda: world.phase(job_id) == "Scaling")
    await world.until(lambda: world.phase(job_id) == "Running")
    assert int(server.slots.sum()) < 200
    run = world.jobs.run_of(job_id)
    world.servers.check_truth(run.record)
    assert run.status.rollbacks == 0 and {data.source for data in world.told("job.slots_moved")} == {1}
    moves = len(world.told("job.slots_moved"))
    await world.clock.sleep(100.0)
    assert len(world.told("job.slots_moved")) <= moves + 2, "it swings"
    await world.jobs.scale(job_id, role="ps", replicas=2, clear=False)
    await world.until(lambda: len(run.record.members) == 2 and run.record.move is None)
    world.servers.check_truth(run.record)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_servers_of_equal_speed_are_left_alone(world: JobWorld) -> None:
    job_id = await hot_job(world)
    await world.clock.sleep(100.0)
    assert not world.told("job.decided") and not world.told("job.slots_moved")
    assert world.phase(job_id) == "Running"
