"""Hot parameter servers: popular rows and a throttled CPU look alike, and are answered alike."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from services.jobmaster.domain import placement
from services.jobmaster.domain.hot import LEAST_LOAD, Load, judge, spread, weights_of
from services.jobmaster.domain.job import JobStatus, Relief
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.placement import SLOTS, applied, counts_of, even, moves_to
from services.jobmaster.domain.relief import RESTORE_BYTES_PER_S, is_futile, rollback_s
from services.jobmaster.domain.rules import decide
from services.jobmaster.domain.situation import Abandon
from services.jobmaster.domain.vitals import Beat, Vitals
from tests.support.job_world import JobWorld, spec
from tests.unit.jobmaster.test_rules import NOW, an_open_record, situation

LIMITS = Limits()
ALIKE = np.full(SLOTS, 100, np.uint32)


def after(
    goal: placement.Owners, loads: dict[int, Load], owners: placement.Owners, demand: NDArray[np.uint32]
) -> dict[int, float]:
    """Loads once the slots have moved, when a row costs a server what it cost it before."""
    result = {}
    for ps, load in loads.items():
        was = float(demand[owners == ps].sum())
        result[ps] = load.busy * float(demand[goal == ps].sum()) / was if was else load.busy
    return result


def equal(*busy: float) -> dict[int, Load]:
    owned = counts_of(even(list(range(len(busy)))))
    return {ps: Load(owned[ps], share) for ps, share in enumerate(busy)}


def test_a_server_with_far_more_load_than_its_peers_gives_slots_to_the_least_loaded() -> None:
    loads, owners = equal(0.8, 0.2, 0.1), even([0, 1, 2])
    hot = judge(loads, waiting=0.5, limits=LIMITS)
    assert hot is not None and hot.ps == 0
    assert "80 %" in hot.seen and "5.3 times" in hot.seen
    assert judge(equal(0.25, 0.01, 0.01), waiting=0.5, limits=LIMITS) is not None
    found = spread(0, loads, owners, ALIKE)
    balanced = after(found.goal, loads, owners, ALIKE)
    assert max(balanced.values()) < 0.35
    assert balanced[1] >= 0.2 and balanced[2] >= 0.1, "nothing is taken from peers"
    assert {(shift.source, shift.target) for shift in moves_to(found.goal, owners)} == {(0, 2)}


def test_a_server_at_three_percent_of_its_cpu_loses_all_of_its_slots() -> None:
    loads, owners = equal(1.0, 0.03, 0.03), even([0, 1, 2])
    assert judge(loads, waiting=0.9, limits=LIMITS) is not None
    found = spread(0, loads, owners, ALIKE)
    counts = counts_of(found.goal)
    assert 0 not in counts and abs(counts[1] - counts[2]) <= 1
    assert weights_of(found.goal, loads) == {0: 0.0, 1: pytest.approx(1, abs=0.001), 2: pytest.approx(1, abs=0.001)}


def test_of_a_server_with_popular_rows_few_slots_go_with_much_of_what_is_asked() -> None:
    owners, demand = even([0, 1, 2]), ALIKE.copy()
    demand[10:20] = 30_000
    loads = equal(0.8, 0.25, 0.25)
    found = spread(0, loads, owners, demand)
    gone = np.flatnonzero(found.goal != owners)
    assert len(gone) < 10 and set(gone.tolist()) <= set(range(10, 20))
    balanced = after(found.goal, loads, owners, demand)
    assert max(balanced.values()) < 0.8 * max(load.busy for load in loads.values())
    share = 100 * demand[gone].sum() / demand[owners == 0].sum()
    assert f"{len(gone)} of its slots, with {share:.0f} % of its rows" in found.decided


def test_a_slot_that_is_hot_alone_stays_where_it_is_and_others_make_room_for_it() -> None:
    owners, demand = even([0, 1]), ALIKE.copy()
    demand[7] = 10_000_000
    found = spread(0, equal(0.9, 0.02), owners, demand)
    assert found.goal[7] == 0
    assert (found.goal[owners == 0] != 0).any()


QUIET = {
    "nobody waits for servers": (equal(0.8, 0.1), 0.1),
    "all have the same load": (equal(0.8, 0.8, 0.7), 0.9),
    "there is one server": (equal(0.9), 0.9),
    "servers have hardly anything to do": (equal(0.14, 0.0001), 0.9),
    "all slots are one server's, and the others were relieved": ({0: Load(SLOTS, 0.9), 1: Load(0, 0.0)}, 0.9),
}


@pytest.mark.parametrize("sentence", QUIET)
def test_nothing_is_hot_when(sentence: str) -> None:
    loads, waiting = QUIET[sentence]
    assert judge(loads, waiting=waiting, limits=LIMITS) is None


def test_a_hot_server_whose_slots_would_be_no_better_elsewhere_is_only_told_of() -> None:
    owners = even([1])
    owners[0] = 0
    demand = ALIKE.copy()
    demand[0] = 100 * SLOTS
    found = spread(0, {0: Load(1, 0.9), 1: Load(SLOTS - 1, 0.4)}, owners, demand)
    assert (found.goal == owners).all() and found.decided.startswith("nothing")


@given(
    busy=st.lists(st.floats(0.0, 2.0), min_size=2, max_size=8), seed=st.integers(0, 1000), tail=st.floats(0.5, 3.0)
)
def test_relief_lowers_the_highest_load_and_raises_nobody_above_it(busy: list[float], seed: int, tail: float) -> None:
    loads, owners = equal(*busy), even(list(range(len(busy))))
    hot = judge(loads, waiting=0.9, limits=LIMITS)
    if hot is None:
        return
    demand = (100 * (1 + np.random.default_rng(seed).pareto(tail, SLOTS)).clip(max=1e5)).astype(np.uint32)
    found = spread(hot.ps, loads, owners, demand)
    assert set(owners[found.goal != owners].tolist()) <= {hot.ps}, "nothing is taken from peers"
    busiest = {ps: Load(load.slots, max(load.busy, LEAST_LOAD)) for ps, load in loads.items()}
    balanced = after(found.goal, busiest, owners, demand)
    dearest = max(
        float(demand[found.goal != owners].max(initial=0)) * load.busy / float(demand[owners == ps].sum())
        for ps, load in busiest.items()
    )
    # What a server that is relieved wholly would still have kept goes to all others alike.
    assert max(balanced.values()) <= 1.06 * max(load.busy for load in busiest.values()) + dearest


# ---- live, or by a rollback


def relief(*, owned: int = 1000, since: float = 100.0) -> Relief:
    return Relief(ps=0, since=since, owned=owned, goal=placement.encode(even([1, 2])))


FUTILE = {
    "nothing has come, for longer than a rollback takes": ({"owned": 1000, "now": 122.0}, True),
    "nothing has come yet": ({"owned": 1000, "now": 119.0}, False),
    "so little has come that the rest would take longer": ({"owned": 1000, "copied": 50.0, "now": 103.0}, True),
    "the rest will be there soon": ({"owned": 400, "copied": 100.0, "now": 103.0}, False),
    "it has taken long and is nearly done": ({"owned": 50, "now": 150.0}, False),
    "it is too early to say": ({"owned": 1000, "copied": 1.0, "now": 101.0}, False),
    "nobody waits": ({"owned": 1000, "copied": 50.0, "now": 110.0, "waiting": 0.05}, False),
    "all have left": ({"owned": 0, "now": 500.0}, False),
}


@pytest.mark.parametrize("sentence", FUTILE)
def test_a_live_move_is_futile_when(sentence: str) -> None:
    given, expected = FUTILE[sentence]
    found = is_futile(relief(), **({"copied": 0.0, "waiting": 0.95, "cost_s": 20.0} | given))  # type: ignore[arg-type]  # by name
    assert bool(found) is expected


@pytest.mark.parametrize(("ago_s", "marked", "given_up"), [(4.0, False, True), (4.0, True, False), (90.0, True, True)])
def test_a_snapshot_that_is_cut_excuses_a_slow_relief_for_moments_only(
    ago_s: float, marked: bool, given_up: bool
) -> None:
    hot = Relief(ps=0, since=NOW - ago_s, owned=2048, goal=placement.encode(even([1])))
    status = {"relief": hot, "rebalance": "PS 0 is relieved", "snapshot_at": NOW - ago_s - 1.0}
    cut: dict[str, Any] = {"record": an_open_record(pending="mark:7"), "operation": "snapshot"} if marked else {}
    # Nothing has come so far: the rest is taken to need as long again.
    at = situation(status=status, waiting=0.9, **cut)
    found = decide(replace(at, limits=Limits(rollback_s=1.0)))
    assert (Abandon in map(type, found)) is given_up


def test_the_cost_of_a_rollback_grows_with_what_would_be_trained_again() -> None:
    hot = Relief(ps=0, since=NOW - 100.0, owned=2048, goal=placement.encode(even([1])))
    status = {"relief": hot, "rebalance": "PS 0 is relieved"}
    for age_s, expected in ((5.0, True), (150.0, True), (250.0, False)):
        found = decide(situation(status=status | {"snapshot_at": NOW - age_s}, waiting=0.9))
        assert any(isinstance(action, Abandon) for action in found) is expected


def test_a_rollback_costs_what_is_read_and_what_is_trained_again() -> None:
    status = JobStatus(job_id="ads", snapshot_at=70.0, snapshot_bytes=int(4 * RESTORE_BYTES_PER_S), settled_ps=(0, 1))
    limits = Limits(rollback_s=5.0)
    assert rollback_s(status, since=100.0, waiting=0.0, now=100.0, limits=limits) == 5.0 + 2.0 + 30.0
    assert rollback_s(status, since=100.0, waiting=1.0, now=180.0, limits=limits) == 5.0 + 2.0 + 30.0, "nothing came"
    assert rollback_s(status, since=100.0, waiting=0.75, now=180.0, limits=limits) == 5.0 + 2.0 + 30.0 + 20.0
    begun = status.model_copy(update={"snapshot_at": 0.0, "trained_since": 90.0})
    assert rollback_s(begun, since=100.0, waiting=1.0, now=180.0, limits=limits) == 5.0 + 2.0 + 10.0, "no snapshot yet"
    assert rollback_s(status, since=60.0, waiting=0.5, now=80.0, limits=limits) == 5.0 + 2.0 + 5.0


def test_loads_count_from_a_process_that_was_heard_for_a_whole_window() -> None:
    vitals = Vitals()
    for second in range(20):
        vitals.hear(("ps", 0), Beat(at=float(second), incarnation="a", busy_s=0.5 * second))
        vitals.hear(("ps", 1), Beat(at=float(second), incarnation="a" if second < 15 else "b", busy_s=0.0))
    assert vitals.busy_over("ps", 10.0, now=19.0) == {0: pytest.approx(0.5)}


# ---- in a job


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
async def test_popular_slots_leave_and_the_others_stay(world: JobWorld) -> None:
    job_id = await hot_job(world)
    world.servers.popular[5:45] = 1000
    world.slowness["ps-0-1"] = 4.0
    await world.until(lambda: bool(world.told("job.slots_moved")))
    await world.until(lambda: world.phase(job_id) == "Running")
    run = world.jobs.run_of(job_id)
    gone = np.flatnonzero(run.record.owner_of != even([0, 1, 2]))
    assert 0 < len(gone) <= 40 and set(gone.tolist()) <= set(range(5, 45))
    assert run.status.relief is None
    world.servers.check_truth(run.record)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_server_too_slow_to_send_its_slots_is_left_behind_by_a_rollback(world: JobWorld) -> None:
    job_id = await hot_job(world, checkpoint={"every_s": 30.0})
    await world.until(lambda: bool(world.told("job.snapshot_committed")))
    world.servers.copy_s = 1e6
    world.slowness["ps-1-1"] = 33.0
    await world.until(lambda: len(world.told("job.decided")) == 2, timeout_s=300.0)
    found, left = world.told("job.decided")
    assert found.place == left.place == "ps 1"
    assert "a rollback costs about" in left.seen and "last snapshot" in left.decided
    world.servers.copy_s = 0.2
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.rollbacks == 1 and world.phase(job_id) == "Running")
    assert run.status.failures == 0, "nobody is to blame"
    assert [role.name for role in run.status.live("ps")] == ["ps-0-1", "ps-1-2", "ps-2-1"]
    assert ("ps", 3) not in {role.key for role in run.status.roles}, "only its place is filled again"
    await world.until(lambda: not run.status.rebalance and run.record.move is None)
    assert len(run.record.owning) == 3
    world.servers.check_truth(run.record)
    assert all(item.done for item in run.status.timeline), run.status.timeline


async def under_relief(world: JobWorld) -> str:
    """A job whose PS 1 is hot, with its slots on their way."""
    job_id = await hot_job(world)
    world.servers.copy_s = 5.0
    world.slowness["ps-1-1"] = 33.0
    await world.until(lambda: world.jobs.run_of(job_id).record.move is not None, timeout_s=300.0)
    assert world.jobs.run_of(job_id).status.relief is not None
    return job_id


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_the_goal_of_a_relief_ends_where_servers_come(world: JobWorld) -> None:
    job_id = await under_relief(world)
    run = world.jobs.run_of(job_id)
    await world.jobs.scale(job_id, role="ps", replicas=4, clear=False)
    await world.until(lambda: run.status.settled_ps == (0, 1, 2, 3), timeout_s=300.0)
    assert {member.ps for member in run.record.owning} >= {0, 2, 3} and run.status.relief is None
    assert run.status.rollbacks == 0
    world.servers.check_truth(run.record)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_the_goal_of_a_relief_ends_with_the_process_that_was_hot(world: JobWorld) -> None:
    job_id = await under_relief(world)
    run = world.jobs.run_of(job_id)
    moved = len(world.told("job.slots_moved"))
    world.cluster.kill(job_id, "ps-1-1")
    await world.until(lambda: run.status.rollbacks == 1 and world.phase(job_id) == "Running")
    await world.clock.sleep(40.0)
    assert len(world.told("job.slots_moved")) == moved, "the process that took its place is as good as any"
    assert set(counts_of(run.record.owner_of).values()) == {1365, 1366}
    assert (run.status.relief, run.status.rebalance) == (None, "")
    assert {role.weight for role in run.status.live("ps")} == {1.0}
    assert all(item.done for item in run.status.timeline), run.status.timeline
    world.servers.check_truth(run.record)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_jobmaster_that_dies_before_it_ends_a_starved_server_is_followed_by_one_that_does(
    world: JobWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await hot_job(world, checkpoint={"every_s": 30.0})
    await world.until(lambda: bool(world.told("job.snapshot_committed")))
    asked: list[str] = []

    async def held(job_id: str, name: str, *, grace_s: float) -> None:
        asked.append(name)
        await asyncio.Event().wait()

    world.servers.copy_s = 1e6
    world.slowness["ps-1-1"] = 33.0
    with monkeypatch.context() as held_up:
        held_up.setattr(world.cluster, "stop", held)
        await world.until(lambda: bool(asked), timeout_s=300.0)
        await world.restart_jobmaster()
    run = world.jobs.run_of(job_id)
    assert run.status.relief is None
    assert [role.name for role in run.status.live("ps") if role.stage == "draining"] == asked == ["ps-1-1"]
    world.servers.copy_s = 0.2
    await world.until(lambda: run.status.rollbacks == 1 and world.phase(job_id) == "Running")
    assert run.status.failures == 0 and [role.name for role in run.status.live("ps")] == ["ps-0-1", "ps-1-2", "ps-2-1"]
    world.servers.check_truth(run.record)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_servers_of_equal_speed_are_left_alone(world: JobWorld) -> None:
    job_id = await hot_job(world)
    await world.clock.sleep(100.0)
    assert not world.told("job.decided") and not world.told("job.slots_moved")
    assert world.phase(job_id) == "Running"


def test_moves_to_a_goal_are_what_differs() -> None:
    owners, goal = even([0, 1]), even([0, 1])
    goal[[3, 5]] = 2
    goal[4000] = 0
    shifts = moves_to(goal, owners)
    assert [(shift.source, shift.target, shift.slots) for shift in shifts] == [(0, 2, (3, 5)), (1, 0, (4000,))]
    assert (applied(owners, shifts) == goal).all()
