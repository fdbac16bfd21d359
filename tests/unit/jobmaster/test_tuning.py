"""Better plans while a job trains: asked for, carried out one at a time, measured, kept or taken back."""

import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from services.jobmaster.domain.job import RolePlan, Trial
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.placement import SLOTS, counts_of
from services.jobmaster.domain.straggler import BACKUP_LEVEL
from services.jobmaster.domain.tuning import SteadyRate, differences, fault_of, overhead_s
from services.jobmaster.domain.vitals import Beat, Serving
from services.jobmaster.peers.planning import Advice, Planned
from tests.support.job_world import JobWorld, spec

LIMITS = Limits(move_slots=SLOTS, plan_interval_s=30.0, plan_settle_s=5.0, plan_window_s=10.0, plan_deadline_s=120.0)
FREE: dict[str, Any] = {
    "training": {"batch_size": 10}, "checkpoint": {"every_s": 1000.0},
    "roles": {"ps": {"min": 1, "max": 4, "cpu": 1.0}, "worker": {"min": 1, "max": 8, "cpu": 1.0}},
}


@pytest_asyncio.fixture
async def world() -> AsyncIterator[JobWorld]:
    made = JobWorld(limits=LIMITS)
    made.shards.total = 200_000
    await made.jobs.lead()
    yield made
    await made.close()


def advice(plan_id: str = "p1", *, expected: float = 1000.0, **roles: tuple[int, float]) -> Advice:
    planned = {role: RolePlan(replicas=count, cpu=cpu) for role, (count, cpu) in roles.items()}
    return Advice(plan_id, "pareto-greedy", planned, "GROW", "it would be faster", expected)


def lines(world: JobWorld, job_id: str) -> list[Any]:
    return [item for item in world.jobs.run_of(job_id).status.timeline if item.matter == "plan"]


async def training(world: JobWorld, *given: Advice | None, name: str = "ads") -> str:
    world.brain.advice.extend(given)
    job_id = await world.submit(spec(name=name, **FREE))
    await world.until(lambda: world.phase(job_id) == "Running")
    return job_id


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_change_for_the_better_is_carried_out_without_a_stop_and_stays(world: JobWorld) -> None:
    job_id = await training(world, advice(worker=(4, 1.0), ps=(2, 1.0)))
    await world.until(lambda: bool(world.brain.outcomes))
    run, outcome = world.jobs.run_of(job_id), world.brain.outcomes[0]
    assert outcome.verdict == "kept" and outcome.rate_after > 1.5 * outcome.rate_before > 0
    assert outcome.plan_id == "p1" and outcome.overhead_s < 5.0
    assert (outcome.before["worker"].replicas, outcome.after["worker"].replicas) == (1, 4)
    assert len(world.cluster.alive(job_id, "worker")) == 4 and len(world.cluster.alive(job_id, "ps")) == 2
    assert run.status.trial is None and run.status.rollbacks == 0
    line = lines(world, job_id)[0]
    assert "worker 1 → 4" in line.decided and "done after" in line.done and "before" in line.effect
    scaled = [(data.role, data.from_replicas, data.to_replicas, data.reason) for data in world.told("job.scaled")]
    assert ("worker", 1, 4, "pareto-greedy: worker 1 → 4; ps 1 → 2") in scaled


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_change_that_made_it_slower_is_taken_back(world: JobWorld) -> None:
    job_id = await training(world, advice(worker=(4, 1.0)), advice("p2", expected=1e9, worker=(2, 1.0)))
    await world.until(lambda: len(world.brain.outcomes) == 2)
    kept, taken = world.brain.outcomes
    assert kept.verdict == "kept" and taken.verdict == "taken back" and taken.rate_after < 0.95 * taken.rate_before
    await world.until(lambda: world.jobs.run_of(job_id).status.trial is None)
    assert len(world.cluster.alive(job_id, "worker")) == 4
    assert lines(world, job_id)[1].effect.startswith("taken back: ")
    assert world.jobs.run_of(job_id).status.plan["worker"].replicas == 4


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_what_brain_missed_while_it_was_away_it_is_told_before_it_is_asked_again(world: JobWorld) -> None:
    job_id = await training(world, advice(worker=(4, 1.0)))
    await world.until(lambda: world.jobs.run_of(job_id).status.trial is not None)
    asked, world.brain.away = len(world.brain.asks), True
    await world.until(lambda: bool(world.jobs.run_of(job_id).status.untold))
    await world.restart_jobmaster()
    assert world.jobs.run_of(job_id).status.trial is None and not world.brain.outcomes
    world.brain.away = False
    await world.until(lambda: len(world.brain.asks) > asked)
    [outcome] = world.brain.outcomes
    assert outcome.verdict == "kept" and outcome.rate_after > 1.5 * outcome.rate_before
    assert not world.jobs.run_of(job_id).status.untold


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.looptime
@pytest.mark.parametrize(("slowness", "level"), [(2.5, 2), (60.0, BACKUP_LEVEL)], ids=["held", "with a backup worker"])
async def test_a_worker_that_stays_slow_does_not_keep_brain_from_being_asked(
    world: JobWorld, slowness: float, level: int
) -> None:
    job_id = await training(world, advice(worker=(4, 1.0)))
    await world.until(lambda: bool(world.brain.outcomes))
    world.cluster.processes_of[job_id]["worker-3-1"].slowness = slowness
    run = world.jobs.run_of(job_id)
    await world.until(lambda: any(worker.level >= level for worker in run.status.slow))
    asked = len(world.brain.asks)
    world.brain.advice.append(advice("p2", ps=(2, 1.0)))
    await world.until(lambda: len(world.brain.outcomes) == 2)
    assert len(world.brain.asks) > asked and any(worker.level >= level for worker in run.status.slow)
    assert world.brain.outcomes[1].plan_id == "p2" and world.brain.outcomes[1].verdict != "cancelled"


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_smaller_plan_may_cost_what_it_said(world: JobWorld) -> None:
    job_id = await training(world, advice(worker=(4, 1.0)))
    await world.until(lambda: bool(world.brain.outcomes))
    promised = world.brain.outcomes[0].rate_after / 2.05
    world.brain.advice.append(advice("p2", expected=promised, worker=(2, 1.0)))
    await world.until(lambda: len(world.brain.outcomes) == 2)
    assert world.brain.outcomes[1].verdict == "kept" and len(world.cluster.alive(job_id, "worker")) == 2


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_executors_sizes_are_brain_s_to_change_too(world: JobWorld) -> None:
    world.serving, world.brain.planned = Serving(), Planned({"data": RolePlan(replicas=2, cpu=1.0)}, "default", "")
    world.brain.advice.append(advice(worker=(1, 1.0), ps=(1, 1.0), data=(2, 1.5)))
    roles = FREE["roles"] | {"data": {"min": 1, "max": 6}}
    job_id = await world.submit(spec(**FREE | {"roles": roles}))
    await world.until(lambda: bool(world.brain.outcomes))
    (outcome,), run = world.brain.outcomes, world.jobs.run_of(job_id)
    assert (outcome.before["data"].cpu, outcome.after["data"].cpu, outcome.verdict) == (1.0, 1.5, "kept")
    assert [role.size.cpu for role in run.status.live("data") if role.size is not None] == [1.5, 1.5]
    assert world.brain.asks[0].now["data"].replicas == 2 and "evaluator" not in world.brain.asks[0].now
    uses = {use.role: use.has for use in world.brain.profiles[-1].roles}
    assert set(uses) == {"worker", "ps", "data"} and (uses["data"].replicas, uses["data"].cpu) == (2, 1.5)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_role_that_the_user_has_taken_away_does_not_keep_changes_from_being_judged(world: JobWorld) -> None:
    world.serving, world.brain.planned = Serving(), Planned({"data": RolePlan(replicas=2, cpu=1.0)}, "default", "")
    job_id = await world.submit(spec(**FREE | {"roles": FREE["roles"] | {"data": {"min": 1, "max": 6}}}))
    await world.until(lambda: world.phase(job_id) == "Running")
    await world.jobs.scale(job_id, role="data", replicas=0, clear=False)
    world.brain.advice.append(advice(worker=(4, 1.0), ps=(2, 1.0)))
    await world.until(lambda: bool(world.brain.outcomes))
    (outcome,) = world.brain.outcomes
    assert outcome.verdict == "kept" and set(outcome.after) == {"worker", "ps"}


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.looptime
async def test_what_the_user_fixed_is_not_changed(world: JobWorld) -> None:
    job_id = await training(world, advice(worker=(2, 1.0)), advice("p2", expected=1.0, worker=(2, 2.0), ps=(1, 0.5)))
    await world.until(lambda: len(world.brain.asks) >= 3, timeout_s=400.0)
    assert [outcome.plan_id for outcome in world.brain.outcomes] == ["p1"] and len(lines(world, job_id)) == 1
    await world.jobs.resize(job_id, role="worker", cpu=3.0, memory_bytes=0)
    asked = len(world.brain.asks)
    await world.until(lambda: len(world.brain.asks) > asked + 1, timeout_s=400.0)
    assert {bound.role: bound.cpu for bound in world.brain.asks[-1].bounds}["worker"] == 3.0
    assert world.brain.asks[-1].now["worker"].cpu == 3.0


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_job_that_ends_during_a_change_is_remembered_as_it_was(world: JobWorld) -> None:
    job_id = await training(world, advice(worker=(4, 1.0)))
    await world.until(lambda: world.jobs.run_of(job_id).status.trial is not None)
    await world.jobs.stop(job_id, reason="enough", finish=True)
    await world.until_phase(job_id, "Succeeded")
    assert world.brain.ends[0].plan["worker"].replicas == 1


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_change_that_cannot_be_measured_does_not_last_for_ever(world: JobWorld) -> None:
    job_id = await training(world, advice(worker=(2, 1.0)))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.trial is not None and run.status.trial.settled > 0)
    world.cluster.processes_of[job_id]["worker-1-1"].stuck = True
    world.start_s = 1e6
    world.cluster.kill(job_id, "worker-1-1")        # its place stays empty: nothing is steady any more
    await world.until(lambda: bool(world.brain.outcomes), timeout_s=600.0)
    assert world.brain.outcomes[0].verdict == "taken back" and "not measured within" in world.brain.outcomes[0].why
    await world.until(lambda: run.status.trial is None, timeout_s=600.0)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_memory_is_there_before_the_slots_that_need_it(world: JobWorld) -> None:
    free = FREE | {"roles": {"ps": {"min": 1, "max": 4}, "worker": {"replicas": 1}}}
    world.brain.planned = replace(
        world.brain.planned, roles={"ps": RolePlan(replicas=2, cpu=1.0, memory_bytes=1 << 30)}
    )
    fewer = {"ps": RolePlan(replicas=1, cpu=1.0, memory_bytes=2 << 30)}
    world.brain.advice.append(Advice("p1", "pareto-greedy", fewer, "SHRINK", "it pays", 1.0))
    job_id = await world.submit(spec(**free))
    await world.until(lambda: bool(world.cluster.resized))
    owned = counts_of(world.jobs.run_of(job_id).record.owner_of)
    assert set(owned) == {0, 1}, "slots move when the memory is there"
    await world.until(lambda: set(counts_of(world.jobs.run_of(job_id).record.owner_of)) == {0})


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_brain_is_told_of_limits_that_were_raised(world: JobWorld) -> None:
    world.brain.planned = replace(
        world.brain.planned, roles={"ps": RolePlan(replicas=1, cpu=1.0, memory_bytes=1 << 30)}
    )
    job_id = await world.submit(spec(**FREE | {"roles": {"ps": {"min": 1, "max": 4}, "worker": {"replicas": 1}}}))
    run = world.jobs.run_of(job_id)
    run.update(memory={"ps": 3 << 30})
    await world.until(lambda: bool(world.brain.asks))
    assert world.brain.asks[0].now["ps"].memory_bytes == 3 << 30
    assert run.status.plan["ps"].memory_bytes == 1 << 30


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.asyncio
@pytest.mark.looptime
async def test_cores_that_the_user_left_to_brain(world: JobWorld, in_place: bool) -> None:
    world.cluster.resizes = in_place
    free = FREE | {"roles": {"ps": {"min": 1, "max": 4}, "worker": {"min": 1, "max": 8}}}
    world.brain.planned = replace(
        world.brain.planned, roles={"worker": RolePlan(replicas=2, cpu=1.0), "ps": RolePlan(replicas=1, cpu=1.0)}
    )
    world.brain.advice.append(advice(expected=1.0, worker=(2, 2.0), ps=(1, 0.5)))
    job_id = await world.submit(spec(**free))
    await world.until(lambda: bool(world.brain.outcomes))
    known, alive = world.cluster.processes_of[job_id], world.cluster.alive(job_id)
    assert world.brain.outcomes[0].verdict == "kept"
    assert {name: known[name].order.cpu for name in alive} == (
        {"ps-0-1": 0.5, "worker-0-1": 2.0, "worker-1-1": 2.0} if in_place
        else {"ps-1-1": 0.5, "worker-0-2": 2.0, "worker-1-2": 2.0}
    )
    assert world.jobs.run_of(job_id).status.rollbacks == 0


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_what_a_user_asks_for_meanwhile_stays(world: JobWorld) -> None:
    job_id = await training(world, advice(worker=(4, 1.0)))
    await world.until(lambda: world.jobs.run_of(job_id).status.trial is not None)
    await world.jobs.scale(job_id, role="worker", replicas=2, clear=False)
    await world.until(lambda: bool(world.brain.outcomes))
    assert world.brain.outcomes[0].verdict == "cancelled"
    await world.until(lambda: len(world.cluster.alive(job_id, "worker")) == 2)
    assert "changed by others" in lines(world, job_id)[0].effect


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_change_that_does_not_arrive_is_taken_back(world: JobWorld) -> None:
    job_id = await training(world)
    world.start_s = 1e6
    world.brain.advice.append(advice(worker=(3, 1.0)))
    await world.until(lambda: bool(world.brain.outcomes), timeout_s=600.0)
    assert world.brain.outcomes[0].verdict == "taken back" and "within 120 s" in world.brain.outcomes[0].why
    assert world.jobs.run_of(job_id).status.plan["worker"].replicas == 1


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_jobmaster_that_comes_back_goes_on_with_the_change(world: JobWorld) -> None:
    job_id = await training(world, advice(worker=(4, 1.0)))
    await world.until(lambda: world.jobs.run_of(job_id).status.trial is not None)
    await world.restart_jobmaster()
    await world.until(lambda: bool(world.brain.outcomes))
    assert world.brain.outcomes[0].verdict == "kept" and len(world.cluster.alive(job_id, "worker")) == 4


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_brain_is_asked_with_what_the_job_has_and_may_be_away(world: JobWorld) -> None:
    job_id = await training(world)
    await world.until(lambda: bool(world.brain.asks))
    ask = world.brain.asks[0]
    assert (ask.now["worker"].replicas, ask.now["worker"].cpu, ask.now["ps"].replicas) == (1, 1.0, 1)
    assert ask.samples_per_s > 0 and ask.remaining > 0 and ask.facts.job_id == job_id
    assert not world.brain.profiles[0].is_steady
    await world.until(lambda: any(profile.is_steady for profile in world.brain.profiles))
    world.brain.away = True
    await world.clock.sleep(100.0)
    world.brain.away = False
    asked = len(world.brain.asks)
    await world.until(lambda: len(world.brain.asks) > asked)


@given(st.lists(st.tuples(st.floats(0.1, 5.0), st.integers(0, 500), st.booleans()), max_size=60))
def test_a_rate_is_that_of_a_whole_window_without_changes(looks: list[tuple[float, int, bool]]) -> None:
    rate, now, samples, calm = SteadyRate(), 0.0, 0, None
    heard: list[tuple[float, int]] = []
    for step_s, more, is_steady in looks:
        now, samples = now + step_s, samples + more
        rate.hear(now, [Beat(now, "w", samples=samples)], is_steady=is_steady, limits=LIMITS)
        calm = (now if calm is None else calm) if is_steady else None
        heard = [*heard, (now, samples)] if calm is not None and now - calm >= LIMITS.plan_settle_s else []
        found = rate.per_s(limits=LIMITS)
        assert (found is None) == (not heard or now - heard[0][0] < LIMITS.plan_window_s)
        if found is not None:
            slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(heard)]
            assert min(slopes) - 1e-6 <= found <= max(slopes) + 1e-6


def test_every_worker_is_measured_over_its_own_heartbeats_and_another_one_begins_anew() -> None:
    rate = SteadyRate()
    for second in range(40):
        # The second one's heartbeats are late, and some are lost: what it trained is not.
        late = 0.7 if second % 3 else 1.7
        beats = [Beat(second, "a", samples=100 * second), Beat(second - late, "b", samples=round(50 * (second - late)))]
        rate.hear(second, beats, is_steady=True, limits=LIMITS)
        if second < 14:
            assert rate.per_s(limits=LIMITS) is None
    assert rate.per_s(limits=LIMITS) == pytest.approx(150.0, rel=0.01)
    rate.hear(41.0, [Beat(41.0, "a", samples=4_100), Beat(41.0, "c", samples=10)], is_steady=True, limits=LIMITS)
    assert rate.per_s(limits=LIMITS) is None


def a_trial(**changes: Any) -> Trial:
    one = {"worker": RolePlan(replicas=1)}
    values: dict[str, Any] = {
        "plan_id": "p", "decision": 1, "before": one, "after": one, "rate_before": 100.0, "rate_expected": 150.0,
        "began": 0.0, "samples": 0, "generation": 1,
    }
    return Trial(**values | changes)


@pytest.mark.parametrize(
    ("expected", "rate", "stays"),
    [(150.0, 95.0, True), (150.0, 94.0, False), (60.0, 57.0, True), (60.0, 56.0, False), (0.0, 96.0, True)],
)
def test_a_change_stays_unless_the_job_is_slower_than_before_and_than_was_said(
    expected: float, rate: float, stays: bool
) -> None:
    assert (not fault_of(a_trial(rate_expected=expected), rate, limits=LIMITS)) is stays


def test_what_a_change_costs_is_the_training_that_was_lost() -> None:
    assert overhead_s(a_trial(), now=10.0, samples=600) == pytest.approx(4.0)
    assert overhead_s(a_trial(), now=10.0, samples=2000) == 0.0


def test_differences_are_told_as_people_say_them() -> None:
    before = {"worker": RolePlan(replicas=1, cpu=1.0), "ps": RolePlan(replicas=1, cpu=0.5, memory_bytes=1 << 30)}
    after = {"worker": RolePlan(replicas=3, cpu=1.0), "ps": RolePlan(replicas=1, cpu=1.0, memory_bytes=2 << 30)}
    assert differences(before, after) == "worker 1 → 3; ps 0.5 → 1 cores, 1,024 → 2,048 MiB"
    assert differences(before, before) == ""
