"""Who is slow, and what is done about it: the rules alone, then a whole life of a job."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.runtime.errors import Unavailable
from recmesh.runtime.ops import Table
from services.jobmaster.app.straggling import StragglerWatch
from services.jobmaster.domain.exits import Exit
from services.jobmaster.domain.job import MAX_DECISIONS, SlowWorker
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.straggler import BACKUP_LEVEL, Found, Pace, Recovered, backups, judged, shard_batches
from services.jobmaster.domain.timeline import MAX_TEXT, Timeline, concluded, decided
from services.jobmaster.domain.vitals import Beat, StepTimes, Vitals
from services.jobmaster.ops import page, recorder
from tests.support.job_world import JobWorld, spec

LIMITS = Limits()
WINDOW = LIMITS.straggler_window_s


def slow(level: int, *, at: float = 0.0, index: int = 3) -> SlowWorker:
    return SlowWorker(index=index, incarnation=f"w{index}", level=level, since=0.0, at=at)


def judge(rates: list[float | None], held: list[SlowWorker] | None = None, **changes: Any) -> list[Found | Recovered]:
    given: dict[str, Any] = {"batch_size": 10, "is_busy": True, "may_back_up": "", "limits": LIMITS, "now": 100.0}
    paces = {index: (f"w{index}", rate) for index, rate in enumerate(rates)}
    return judged(paces, held or [], **(given | changes))


def found(verdicts: list[Found | Recovered]) -> Found:
    [one] = verdicts
    assert isinstance(one, Found)
    return one


# ---- pace


def test_a_pace_is_not_known_before_a_whole_window_of_training() -> None:
    pace = Pace("w")
    for second in range(11):
        pace.hear(float(second), second * 5, window_s=10.0)
    assert pace.per_s(10.5, window_s=10.0) is None, "the first sample was at second 1"
    pace.hear(11.0, 55, window_s=10.0)
    assert pace.per_s(11.0, window_s=10.0) == 5.0


def test_silence_counts_as_no_progress() -> None:
    pace = Pace("w")
    for second in range(1, 21):
        pace.hear(float(second), second * 5, window_s=10.0)
    assert pace.per_s(25.0, window_s=10.0) == 2.5
    assert pace.per_s(40.0, window_s=10.0) == 0.0


@given(st.lists(st.tuples(st.floats(0.1, 5.0), st.integers(0, 50)), min_size=1, max_size=60), st.floats(1.0, 30.0))
def test_a_pace_is_never_negative_nor_more_than_all_samples(steps: list[tuple[float, int]], window_s: float) -> None:
    pace, now, samples = Pace("w"), 0.0, 0
    for gap, more in steps:
        now, samples = now + gap, samples + more
        pace.hear(now, samples, window_s=window_s)
        rate = pace.per_s(now, window_s=window_s)
        assert rate is None or 0.0 <= rate * window_s <= samples


# ---- judgement


def test_a_worker_well_below_the_median_of_its_peers_gets_smaller_shards() -> None:
    one = found(judge([100.0, 110.0, 90.0, 3.0]))
    assert (one.worker.index, one.worker.level, one.answer) == (3, 1, "smaller shards")
    assert "3% of its peers' median 100" in one.seen


@pytest.mark.parametrize(
    ("rates", "changes"),
    [
        ([100.0, 110.0, 90.0, 60.0], {}),
        ([100.0], {}),
        ([100.0, 100.0, 100.0, None], {}),
        ([100.0, 100.0, 100.0, 3.0], {"is_busy": False}),
        ([2.0, 2.0, 2.0, 0.0], {}),
        ([0.0, 0.0, 0.0], {}),
    ],
    ids=[
        "a little slower", "alone", "not known for a whole window", "there was nothing to train",
        "the peers trained too little to compare", "nobody trains",
    ],
)
def test_nobody_is_called_slow_when(rates: list[float | None], changes: dict[str, Any]) -> None:
    assert judge(rates, **changes) == []


def test_the_answers_get_stronger_with_a_pause_between_and_end_with_one_backup() -> None:
    held: list[SlowWorker] = []
    answers, now = [], 100.0
    for _ in range(60):
        for verdict in judge([100.0, 100.0, 100.0, 3.0], held, now=now):
            assert isinstance(verdict, Found)
            held = [verdict.worker]
            answers.append((now - 100.0, verdict.worker.level, verdict.answer))
        now += 1.0
    cooldown = LIMITS.straggler_cooldown_s
    assert answers == [
        (0.0, 1, "smaller shards"), (cooldown, 2, "smaller shards"), (2 * cooldown, 3, "backup worker"),
    ]
    assert [shard_batches(level, most=256) for level in range(4)] == [0, 128, 64, 64]
    assert backups(held) == 1


def test_without_room_for_a_backup_small_shards_are_all() -> None:
    assert judge([100.0, 100.0, 3.0], [slow(2, index=2)], may_back_up="roles.worker.max is 3") == []


def test_two_slow_workers_get_one_backup_at_a_time() -> None:
    held = [slow(2, index=2), slow(2, index=3)]
    one = found(judge([100.0, 100.0, 3.0, 3.0, 100.0, 100.0], held))
    assert one.worker.level == BACKUP_LEVEL


def test_a_pace_between_the_limits_changes_nothing_and_above_them_it_is_forgiven() -> None:
    assert judge([100.0, 100.0, 100.0, 65.0], [slow(1)]) == []
    [one] = judge([100.0, 100.0, 100.0, 85.0], [slow(3)])
    assert isinstance(one, Recovered) and one.worker.level == 3


def test_one_whose_steps_take_no_longer_than_its_peers_is_well_again_though_it_waits_for_small_shards() -> None:
    rates: list[float | None] = [100.0, 100.0, 100.0, 45.0]
    [one] = judge(rates, [slow(2)], work_s={0: 0.010, 1: 0.011, 2: 0.010, 3: 0.0105})
    assert isinstance(one, Recovered) and "its steps take no longer" in one.seen
    assert found(judge(rates, [slow(1)], work_s={0: 0.010, 1: 0.011, 2: 0.010, 3: 0.3})).worker.level == 2
    assert judge(rates, [slow(2)], work_s={3: 0.01}, may_back_up="no") == [], "with nobody to compare"
    assert found(judge(rates, work_s={0: 0.01, 1: 0.01, 2: 0.01, 3: 0.01})).worker.level == 1, "only of slow ones"


def test_time_in_steps_is_summed_over_every_heartbeat_also_those_between_two_looks() -> None:
    vitals, pace = Vitals(), Pace("w")
    step = StepTimes(data_s=0.05, pull_s=0.1, compute_s=0.2, push_s=0.05, total_s=0.9, steps=1)
    for second in range(1, 31):
        vitals.hear(("worker", 0), Beat(float(second), "w", samples=second * 50, step=step))
        if second % 3 == 0:
            beat = vitals.beats["worker", 0]
            pace.hear(beat.at, beat.samples, window_s=10.0, worked_s=beat.worked_s)
    assert pace.work_s() == pytest.approx(0.4 / 50)
    vitals.hear(("worker", 0), Beat(31.0, "its successor", samples=50, step=step))
    assert vitals.beats["worker", 0].worked_s == pytest.approx(0.4)


def test_what_was_held_against_a_process_is_not_held_against_its_successor() -> None:
    [one] = judge([100.0, 100.0, 100.0, None], [slow(3).model_copy(update={"incarnation": "another"})])
    assert isinstance(one, Recovered)
    [gone] = judge([100.0, 100.0, 100.0], [slow(3)], is_busy=False)
    assert isinstance(gone, Recovered)


@given(
    st.lists(st.one_of(st.none(), st.floats(0.0, 1000.0)), max_size=8), st.lists(st.integers(0, 7), unique=True),
    st.integers(1, 3), st.booleans(),
)
def test_levels_only_rise_by_one_and_only_of_workers_that_are_there(
    rates: list[float | None], marked: list[int], level: int, busy: bool
) -> None:
    held = [slow(level, index=index) for index in marked]
    for verdict in judge(rates, held, is_busy=busy):
        before = next((one.level for one in held if one.index == verdict.worker.index), 0)
        if isinstance(verdict, Found):
            assert verdict.worker.level == before + 1 <= BACKUP_LEVEL and busy
            assert verdict.worker.index < len(rates) and rates[verdict.worker.index] is not None
        else:
            assert before


# ---- the timeline


@given(st.lists(st.text(max_size=500), max_size=150))
def test_the_timeline_is_bounded_numbered_on_and_keeps_the_newest(texts: list[str]) -> None:
    lines: Timeline = ()
    for number, text in enumerate(texts, 1):
        lines = decided(lines, at=float(number), matter="straggler", place="worker 1", seen=text, decision=text)
        lines = concluded(lines, number, done=text)
        lines = concluded(lines, number, effect="faster")
        assert lines[-1].number == number and lines[-1].effect == "faster" and lines[-1].done == text[:MAX_TEXT]
    assert len(lines) == min(len(texts), MAX_DECISIONS)
    assert concluded(lines, 10_000, effect="x") == lines


# ---- lives of jobs



async def started(world: JobWorld, name: str) -> None:
    await world.until(lambda: name in world.cluster.started)


FOUR = {
    "training": {"batch_size": 10}, "roles": {"ps": {"replicas": 1}, "worker": {"replicas": 4}},
    "checkpoint": {"every_s": 1000.0},
}


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_slow_worker_gets_small_shards_then_help_and_loses_both_when_it_keeps_up_again(world: JobWorld) -> None:
    world.shards.total = 60_000
    job_id = await world.submit(spec(**FOUR))
    await world.until(lambda: world.phase(job_id) == "Running")
    await world.clock.sleep(20.0)
    victim = world.cluster.processes_of[job_id]["worker-3-1"]
    victim.slowness = 60.0
    began = world.clock.now()
    await world.until(lambda: bool(world.told("job.straggler_detected")))
    assert world.clock.now() - began < 60.0
    await world.until(lambda: "worker-4-1" in world.cluster.started)
    assert [data.answer for data in world.told("job.straggler_detected")] == [
        "smaller shards", "smaller shards", "backup worker",
    ]
    worker = world.shards.sized[0][0]
    sizes = list(dict.fromkeys(size for _, size in world.shards.sized))
    assert worker.startswith("3-") and sizes == [32, 16]
    assert world.phase(job_id) == "Running", "a backup is no scaling"
    victim.slowness = 1.0
    await world.until(lambda: bool(world.told("job.straggler_recovered")))
    await world.until(lambda: "worker-4-1" not in world.cluster.alive(job_id, "worker"))
    await world.until(lambda: (worker, 0) in world.shards.sized)
    run = world.jobs.run_of(job_id)
    assert run.status.slow == () and run.status.failures == 0 and run.record.gen == 1
    lines = [item for item in run.status.timeline if item.matter == "straggler"]
    assert [item.place for item in lines] == ["worker 3"] * 4
    assert all(item.seen and item.decided for item in lines) and lines[0].done and lines[0].effect
    shown = next(panel for panel in page(world.jobs, recorder(world.jobs)).panels if panel.title == "Timeline")
    assert isinstance(shown, Table)
    rows = list(shown.rows())  # type: ignore[arg-type]  # this one is no coroutine
    assert [row[2:5] for row in rows] == [["straggler", "worker 3", line.seen] for line in reversed(lines)]
    assert all(len(row) == len(shown.columns) for row in rows)
    await world.until_phase(job_id, "Succeeded", timeout_s=3000.0)
    assert run.status.samples == 60_000


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_what_is_held_against_a_worker_outlives_jobmaster_and_the_generation(world: JobWorld) -> None:
    world.shards.total = 60_000
    job_id = await world.submit(spec(**FOUR))
    await world.until(lambda: world.phase(job_id) == "Running")
    await world.clock.sleep(20.0)
    world.cluster.processes_of[job_id]["worker-3-1"].slowness = 60.0
    await world.until(lambda: "worker-4-1" in world.cluster.started)
    await world.restart_jobmaster()
    world.shards.sized.clear()
    await world.until(lambda: bool(world.shards.sized))
    assert world.shards.sized[0][1] == 16
    assert "worker-4-1" in world.cluster.alive(job_id, "worker")
    world.shards.sized.clear()
    world.cluster.kill(job_id, "ps-0-1")
    await world.until(lambda: world.jobs.run_of(job_id).record.gen == 2)
    await world.until(lambda: bool(world.shards.sized))
    assert world.shards.sized[0][1] == 16, "the queue of a new generation knows nothing of it"


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_while_shardsvc_is_away_nothing_is_decided_and_afterwards_it_is(world: JobWorld) -> None:
    world.shards.total = 60_000
    job_id = await world.submit(spec(**FOUR))
    await world.until(lambda: world.phase(job_id) == "Running")
    await world.clock.sleep(20.0)
    world.cluster.processes_of[job_id]["worker-3-1"].slowness = 60.0
    world.shards.away = True
    await world.clock.sleep(40.0)
    assert not world.told("job.straggler_detected")
    world.shards.away = False
    await world.until(lambda: bool(world.told("job.straggler_detected")))


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_shardsvc_hears_of_a_recovery_also_from_the_next_jobmaster(world: JobWorld) -> None:
    world.shards.total = 60_000
    job_id = await world.submit(spec(**FOUR))
    await world.until(lambda: world.phase(job_id) == "Running")
    await world.clock.sleep(20.0)
    victim = world.cluster.processes_of[job_id]["worker-3-1"]
    victim.slowness = 60.0
    await world.until(lambda: bool(world.told("job.straggler_detected")))
    worker = world.shards.sized[0][0]

    async def unheard(job_id: str, *, gen: int, worker: str, shard_batches: int) -> int:
        raise Unavailable("no shardsvc")

    size_shards, world.shards.size_shards = world.shards.size_shards, unheard  # type: ignore[method-assign]  # a fault
    victim.slowness = 1.0
    await world.until(lambda: bool(world.told("job.straggler_recovered")))
    await world.clock.sleep(3.0)
    await world.restart_jobmaster()
    world.shards.size_shards = size_shards  # type: ignore[method-assign]  # it is over
    await world.until(lambda: (worker, 0) in world.shards.sized)
    await world.until(lambda: world.jobs.run_of(job_id).status.slow == ())


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_window_of_zero_leaves_stragglers_alone() -> None:
    world = JobWorld(limits=Limits(straggler_window_s=0.0))
    await world.jobs.lead()
    try:
        world.shards.total = 20_000
        job_id = await world.submit(spec(**FOUR))
        await world.until(lambda: world.phase(job_id) == "Running")
        world.cluster.processes_of[job_id]["worker-3-1"].slowness = 60.0
        await world.clock.sleep(60.0)
        assert not world.told("job.straggler_detected") and not world.shards.sized
    finally:
        await world.close()


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_notice_that_no_heartbeat_brought_is_known_by_the_code_of_the_end(world: JobWorld) -> None:
    world.shards.total = 6_000
    job_id = await world.submit(spec(backoff_limit=0))
    await world.until(lambda: world.phase(job_id) == "Running")
    world.cluster.kill(job_id, "worker-0-1", Exit(code=75))
    await started(world, "worker-0-2")
    await world.until_phase(job_id, "Succeeded")
    assert [data.index for data in world.told("job.role_notified")] == [0]
    [role] = [data for data in world.told("job.role_exited") if data.role == "worker" and data.exit_code == 75]
    assert role.expected and world.jobs.run_of(job_id).status.failures == 0


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_worker_that_is_told_to_go_is_replaced_at_once_and_costs_no_failure(world: JobWorld) -> None:
    world.shards.total = 6_000
    job_id = await world.submit(spec(backoff_limit=0))
    await world.until(lambda: world.phase(job_id) == "Running")
    for attempt in range(1, 4):
        name = f"worker-0-{attempt}"
        await started(world, name)
        await world.clock.sleep(2.0)
        world.cluster.processes_of[job_id][name].notified = True
        began = world.clock.now()
        await started(world, f"worker-0-{attempt + 1}")
        assert world.clock.now() - began < 3.0, "no pause grows with repeated notices"
    await world.until_phase(job_id, "Succeeded")
    run = world.jobs.run_of(job_id)
    assert (run.status.samples, run.status.failures) == (6_000, 0)
    assert [data.index for data in world.told("job.role_notified")] == [0, 0, 0]
    assert [crashed for _, crashed in world.shards.released][:3] == [False] * 3
    assert all(data.expected for data in world.told("job.role_exited") if data.role == "worker")
    assert [item.matter for item in run.status.timeline] == ["termination"] * 3


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_window_in_which_a_rollback_fell_says_nothing_of_a_worker(world: JobWorld) -> None:
    world.shards.total = 100_000
    job_id = await world.submit(spec(roles={"ps": {"replicas": 1}, "worker": {"replicas": 2}}))
    await world.until(lambda: world.phase(job_id) == "Running")
    run = world.jobs.run_of(job_id)
    watch = StragglerWatch(run)

    async def paces() -> list[float | None]:
        for _ in range(int(WINDOW) + 3):
            await world.clock.sleep(1.0)
            await watch.look()
        return [pace for _, pace in watch._hear().values()]

    assert all(await paces())
    world.cluster.kill(job_id, "ps-0-1")
    await world.until(lambda: run.record.gen == 2 and world.phase(job_id) == "Running")
    await watch.look()
    assert [pace for _, pace in watch._hear().values()] == [None, None]
    assert all(await paces())
