"""Online jobs, on virtual time: what is measured, what brain is told, and how its answer is carried out."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.job import TrainingJob
from services.jobmaster.domain.minutes import Minutes, area
from services.jobmaster.domain.scaling import ChangeCost, Flow, FlowWindow, learned
from services.jobmaster.domain.vitals import Beat, Scores
from tests.support.job_world import JobWorld, spec


def beat(at: float, samples: int, occupied_s: float, name: str = "a") -> Beat:
    return Beat(at=at, incarnation=name, samples=samples, occupied_s=occupied_s)


def test_flow_tells_what_comes_what_is_trained_and_for_how_much_of_the_time_there_was_something_to_train() -> None:
    window = FlowWindow()
    for second in range(31):
        workers = [beat(second, 50 * second, 0.5 * second), beat(second, 100 * second, 0.25 * second, "b")]
        ended = 1000 + 200 * (second - second % 5)       # topics are looked at every 5 s
        window.hear(float(second), arrived=ended, partitions=4, workers=workers, window_s=15.0)
    flow = window.mean()
    assert flow is not None
    assert flow.arrivals_per_s == pytest.approx(200.0)
    assert flow.trained_per_s == pytest.approx(150.0)
    assert flow.trained_per_s / flow.occupied == pytest.approx(100.0 + 400.0), "what both can do"


@pytest.mark.parametrize(("lag_s", "backlog", "occupied"), [
    (0.0, 0, 0.4), (20.0, 100, 0.4),              # a few messages of a sparse partition linger
    (10.0, 9000, 0.4), (20.0, 9000, 1.0),
])  # fmt: skip
def test_workers_that_a_backlog_waited_for_could_do_no_more_than_they_did(
    lag_s: float, backlog: int, occupied: float
) -> None:
    flow = Flow(arrivals_per_s=570.0, trained_per_s=380.0, occupied=0.4, workers=2)
    assert flow.where(lag_s=lag_s, backlog=backlog, window_s=15.0).occupied == occupied


def test_flow_of_a_topic_that_falls_silent_is_nothing() -> None:
    window = FlowWindow()
    for second in range(60):
        window.hear(float(second), arrived=100 * min(second, 20), partitions=1, workers=[], window_s=15.0)
    flow = window.mean()
    assert flow is not None and flow.arrivals_per_s == 0.0


def test_what_a_new_partition_holds_has_not_arrived_now() -> None:
    window = FlowWindow()
    window.hear(0.0, arrived=100, partitions=1, workers=[], window_s=15.0)
    window.hear(5.0, arrived=100_000, partitions=2, workers=[], window_s=15.0)
    assert window.mean() is None
    window.hear(10.0, arrived=100_050, partitions=2, workers=[], window_s=15.0)
    flow = window.mean()
    assert flow is not None and flow.arrivals_per_s == pytest.approx(10.0)


def test_what_workers_can_do_is_known_only_where_all_of_them_had_something_to_do() -> None:
    window = FlowWindow()
    for second in range(31):
        workers = [beat(second, 50 * second, 0.5 * second), beat(second, 0, 0.0, "b")]
        window.hear(float(second), arrived=50 * second, partitions=4, workers=workers, window_s=15.0)
    flow = window.mean()
    assert flow is not None and (flow.occupied, flow.workers) == (0.0, 2)


def test_a_change_costs_the_longest_time_in_which_nobody_trains_though_there_is_work() -> None:
    def of(*seen: tuple[float, bool, float]) -> float:
        cost = ChangeCost(100.0, grows=True)
        for now, has_work, trained_at in seen:
            cost.hear(now, has_work=has_work, trained_at=trained_at)
        return cost.still_s

    assert of(*((101.0 + second, True, 100.0 + second) for second in range(30))) == 0.0, "heartbeats apart"
    assert of(*((101.0 + second, True, 100.0) for second in range(12))) == 11.0
    assert of(*((101.0 + second, False, 100.0) for second in range(12))) == 0.0, "nothing to train"
    assert [learned(0.0, 8.0), learned(8.0, 4.0)] == [8.0, 6.0]


def test_minutes_add_workers_up_to_one_area_and_each_is_told_once() -> None:
    minutes = Minutes(["click", "buy"])
    # Worker a ranks its own pairs perfectly, as does b; together they do not.
    first = Scores((100, 200), (0, 20), (20, 0))
    second = Scores((300, 400), (0, 20), (20, 0))
    for name, scores in (("a", first), ("b", second)):
        told = beat(120.0, 40, 0.0, name)
        minutes.hear(replace(told, window_samples=40, loss=0.5, scores=(scores,)))
    assert minutes.close(180.0) == [], "heartbeats of it may still come"
    (minute,) = minutes.close(186.0)
    assert (minute.at, minute.samples, minute.loss) == (120.0, 80, 0.5)
    assert minute.auc == {"click": pytest.approx(0.75)}
    assert minutes.close(1e9) == [] and list(minutes.closed) == [minute]


def test_an_area_of_too_few_is_none_and_of_equal_predictions_one_half() -> None:
    assert area(Counter({1: 9}), Counter({1: 100})) is None
    assert area(Counter({1: 50}), Counter({1: 100})) == 0.5


ONLINE = {"planner": "kale", "step_s": 10.0, "horizon_s": 60.0, "hold_s": 10.0}
TOPIC = {"streams": [{"sources": [{"jetstream": "clicks-*", "start": "earliest",
                                    "types": {"item": "int", "label": "float"}}]}],
         "features": [{"name": "item"}]}


def online(**scaling: Any) -> dict[str, Any]:
    roles = {"ps": {"replicas": 1}, "worker": {"min": 1, "max": 4}}
    return spec(data=TOPIC, roles=roles, scaling=ONLINE | scaling)


async def running(world: JobWorld, job: dict[str, Any]) -> str:
    world.shards.total = 200_000
    world.shards.arrivals_per_s = 100
    job_id = await world.submit(job)
    await world.until(lambda: world.phase(job_id) == "Running")
    return job_id


def told(world: JobWorld, job_id: str) -> list[tuple[str, str]]:
    lines = world.jobs.run_of(job_id).status.timeline
    return [(line.decided, line.done) for line in lines if line.matter == "demand"]


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_brain_is_told_each_step_and_its_answer_is_carried_out_and_measured(world: JobWorld) -> None:
    world.brain.scheduled = [3, 1]
    job_id = await running(world, online())
    await world.until(lambda: len(world.jobs.run_of(job_id).status.live("worker")) == 3)
    ask = world.brain.schedules[0]
    assert ask.now["worker"].replicas == 1 and ask.series == ("topic/clicks",) and ask.rules.planner == "kale"
    assert ask.arrivals_per_s == pytest.approx(100.0, rel=0.35)
    assert [ask.lag_s, ask.backlog] == [0.0, 0]
    await world.until(lambda: world.jobs.run_of(job_id).status.lead_s > 0)
    assert told(world, job_id)[0][0] == "worker 1 → 3 (kale: GROW)"
    assert told(world, job_id)[0][1].startswith("3 run after")
    await world.until(lambda: len(world.jobs.run_of(job_id).status.live("worker")) == 1)
    assert told(world, job_id)[1][0] == "worker 3 → 1 (kale: GROW)"
    run = world.jobs.run_of(job_id)
    assert run.record.gen == 1 and world.brain.asks == [], "and no other plan was asked for"
    await world.until(lambda: len(world.brain.schedules) > 3)
    assert world.brain.schedules[-1].lead_s == run.status.lead_s


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_while_workers_come_what_there_are_tells_nothing_of_what_is_wanted(world: JobWorld) -> None:
    """Else few workers' capacity would pass for that of many, and more and more would be asked for."""
    world.brain.scheduled = [3]
    job_id = await running(world, online())
    world.start_s = 45.0
    await world.until(lambda: len(world.brain.schedules) >= 4)
    asks = [ask for ask in world.brain.schedules if ask.now["worker"].replicas == 3]
    assert len(asks) >= 2 and len(world.jobs.run_of(job_id).status.live("worker")) == 3
    assert all(ask.occupied == 0.0 for ask in asks[:2])
    await world.until(lambda: world.jobs.run_of(job_id).status.lead_s >= 45.0)
    world.brain.scheduled = [1]
    await world.until(lambda: len(told(world, job_id)) == 2 and bool(told(world, job_id)[1][1]))
    assert world.jobs.run_of(job_id).status.lead_s >= 45.0, "that some go tells nothing of how long others take to come"


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_dry_run_is_told_once_and_changes_nothing(world: JobWorld) -> None:
    world.brain.scheduled = [3, 3, 2]
    job_id = await running(world, online(dry_run=True))
    await world.until(lambda: len(world.brain.schedules) >= 4)
    assert [decided for decided, _ in told(world, job_id)] == [
        "would be worker 1 → 3 (kale)", "would be worker 1 → 2 (kale)"
    ]
    assert len(world.jobs.run_of(job_id).status.live("worker")) == 1


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_count_that_the_user_fixes_stays_and_brain_goes_on_from_it(world: JobWorld) -> None:
    job_id = await running(world, online())
    await world.jobs.scale(job_id, role="worker", replicas=2, clear=False)
    world.brain.scheduled = [4]
    await world.until(lambda: sum(
        bound.pinned == 2 for ask in world.brain.schedules for bound in ask.bounds
    ) >= 3)
    assert len(world.jobs.run_of(job_id).status.live("worker")) == 2


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_count_that_is_given_back_stays_until_brain_decides_anew(world: JobWorld) -> None:
    """And is not what was planned before it was fixed, which may be hours old."""
    world.brain.scheduled = [4]
    job_id = await running(world, online())
    await world.until(lambda: len(world.jobs.run_of(job_id).status.live("worker")) == 4)
    await world.jobs.scale(job_id, role="worker", replicas=2, clear=False)
    await world.until(lambda: len(world.jobs.run_of(job_id).status.live("worker")) == 2)
    world.brain.away = True
    await world.jobs.scale(job_id, role="worker", replicas=0, clear=True)
    await world.clock.sleep(60.0)
    assert len(world.jobs.run_of(job_id).status.live("worker")) == 2
    world.brain.away, world.brain.scheduled = False, [3]
    await world.until(lambda: len(world.jobs.run_of(job_id).status.live("worker")) == 3)
    assert told(world, job_id)[-1][0] == "worker 2 → 3 (kale: GROW)"


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_while_brain_is_away_the_count_stays(world: JobWorld) -> None:
    job_id = await running(world, online())
    world.brain.away = True
    await world.clock.sleep(60.0)
    assert len(world.jobs.run_of(job_id).status.live("worker")) == 1
    world.brain.away, world.brain.scheduled = False, [2]
    await world.until(lambda: len(world.jobs.run_of(job_id).status.live("worker")) == 2)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_planner_that_brain_does_not_have_is_refused_and_without_brain_found_out_later(world: JobWorld) -> None:
    with pytest.raises(InvalidArgument, match=r"scaling\.planner: brain has no 'oracle': horizon, kale"):
        await world.submit(online(planner="oracle"))
    world.brain.planners.append("oracle")           # then, and not any more
    job_id = await running(world, online(planner="oracle"))
    await world.until(lambda: any("no 'oracle'" in note for note in world.jobs.run_of(job_id).status.notes))
    await world.clock.sleep(30.0)
    assert sum("oracle" in note for note in world.jobs.run_of(job_id).status.notes) == 1


def test_wrong_rules_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgument) as refused:
        TrainingJob.parse(online(horizon_s=10.0, quantile=0.3))
    assert {item.path for item in refused.value.violations} == {"scaling.horizon_s", "scaling.quantile"}
    with pytest.raises(InvalidArgument) as refused:
        TrainingJob.parse(spec(scaling={}))
    assert [item.path for item in refused.value.violations] == ["scaling"]
