"""When the memory of a parameter server will not do, and what is done: the rules alone, then lives of jobs."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.runtime.errors import InvalidArgument
from services.jobmaster.domain.exits import Exit
from services.jobmaster.domain.limits import Limits
from services.jobmaster.domain.memory import (
    LEAST_POINTS,
    MAX_POINTS,
    MIB,
    Forecast,
    Growth,
    Point,
    after_oom,
    ceiling_of,
    forecast,
    grown,
    hottest,
    why_no_server,
)
from tests.support.job_world import JobWorld, spec

LIMITS = Limits()
ROW, BASE = 1000, 100 * MIB
PER_S = 1000.0


def growth(a: float, b: float, *, seconds: int, linear: bool = False) -> Growth:
    """One point a second of rows(n) = a·n / (b + n), or a·n/b."""
    made = Growth("ps")
    for second in range(1, seconds + 1):
        n = int(second * PER_S)
        rows = int(a * n / b) if linear else int(a * n / (b + n))
        made.hear(Point(float(second), n, rows, BASE + rows * ROW))
    return made


def judge(of: Growth, limit: int, *, total: int = 10**9, **changes: Any) -> Forecast | None:
    return forecast(of, limit_bytes=limit, total=total, samples_per_s=PER_S, limits=Limits(**changes))


def test_the_saturating_curve_is_found_again() -> None:
    rows = growth(2e6, 50_000.0, seconds=60).rows_at(500_000)
    assert rows == pytest.approx(2e6 * 500_000 / 550_000, rel=0.001)


@given(st.floats(1e4, 1e7), st.floats(1e3, 1e6), st.integers(10, 120), st.floats(1.0, 50.0))
def test_the_line_is_never_below_the_saturating_curve(a: float, b: float, seconds: int, ahead: float) -> None:
    of = growth(a, b, seconds=seconds)
    if len(of.points) < LEAST_POINTS:
        return
    n = of.points[-1].samples * (1 + ahead)
    line, curve = of.line_rows_at(n), of.rows_at(n)
    assert line is not None and curve is not None
    assert line >= curve * 0.98 - 10 and line >= of.points[-1].rows


def test_memory_follows_rows_from_where_it_is() -> None:
    of = growth(2e6, 50_000.0, seconds=60)
    assert of.memory_at(2e6) == pytest.approx(BASE + 2e6 * ROW, rel=0.001)
    assert of.memory_at(0) == of.points[-1].memory_bytes, "no forecast is below what is used"


def test_points_are_thinned_and_only_growth_is_heard() -> None:
    of = growth(2e6, 50_000.0, seconds=3 * MAX_POINTS)
    assert len(of.points) <= MAX_POINTS + 1 and of.points[-1].samples == 3 * MAX_POINTS * PER_S
    before = len(of.points)
    of.hear(of.points[-1])
    assert len(of.points) == before


def test_a_limit_that_the_curve_never_reaches_is_left_alone_and_one_that_it_crosses_is_told_in_time() -> None:
    of = growth(1e6, 50_000.0, seconds=60)
    assert judge(of, int((BASE + 1e6 * ROW) * 1.2)) is None
    found = judge(of, int(BASE + 0.9e6 * ROW))
    assert found is not None and 0 < found.in_s <= LIMITS.memory_horizon_s
    assert "saturating growth" in found.seen and "MiB" in found.seen


def test_a_job_that_ends_before_is_left_alone() -> None:
    of = growth(1e6, 50_000.0, seconds=60)
    assert judge(of, int(BASE + 0.9e6 * ROW), total=61_000) is None


def test_within_the_lead_time_the_line_is_believed() -> None:
    # A burst of new ids after a long quiet time: the fitted curve is still flat.
    of = growth(1e5, 1e3, seconds=100)
    last = of.points[-1]
    for second in range(1, 41):
        rows = last.rows + second * 4000
        of.hear(Point(100.0 + second, last.samples + second * 1000, rows, BASE + rows * ROW))
    now = of.points[-1].memory_bytes
    found = judge(of, int((now + 100 * 1000 * ROW) / 0.9), memory_horizon_s=1e-9)
    assert found is not None and "linear growth" in found.seen
    assert judge(of, int((now + 100 * 1000 * ROW) / 0.9), memory_horizon_s=1e-9, memory_lead_s=5.0) is None


def started(*, settle_s: float, seconds: int = 120, jump_at: int = 10**9) -> list[Growth]:
    """What was heard of a server by every third second: 200 MiB become 264 in 32 s, and each second brings 40 rows of
    1 KB; at `jump_at` it takes 60 MiB once."""
    result = []
    for until in range(1, seconds + 1, 3):
        made = Growth("ps", settle_s=settle_s)
        for second in range(1, until + 1):
            rows = 40 * second
            memory = (200 + 2 * min(second, 32) + 60 * (second >= jump_at)) * MIB + rows * ROW
            made.hear(Point(float(second), int(second * PER_S), rows, memory))
        result.append(made)
    return result


@pytest.mark.parametrize("limit_mib", [350, 400, 1024])
def test_what_a_process_takes_while_it_starts_is_not_taken_for_rows(limit_mib: int) -> None:
    told = [judge(of, limit_mib * MIB) for of in started(settle_s=LIMITS.memory_settle_s)]
    assert told == [None] * len(told)
    hasty = [judge(of, limit_mib * MIB, memory_lead_s=10.0) for of in started(settle_s=0.0)]
    assert any(hasty), "the series is one that deceives who looks at the start"


@pytest.mark.parametrize("jump_at", [66, 75, 90, 110])
def test_memory_that_is_taken_once_is_not_the_price_of_rows(jump_at: int) -> None:
    grown_until = started(settle_s=LIMITS.memory_settle_s, jump_at=jump_at)
    assert [judge(of, 400 * MIB) for of in grown_until] == [None] * len(grown_until)


def test_growth_is_carried_on_no_longer_than_it_was_seen_for() -> None:
    short, long = growth(1e6, 1e6, seconds=25, linear=True), growth(1e6, 1e6, seconds=40, linear=True)
    limit = int(long.points[-1].memory_bytes * 1.2)
    assert judge(short, limit) is None
    assert judge(long, limit) is not None
    assert judge(short, limit, memory_lead_s=40.0) is not None


def test_rows_that_hardly_grow_have_no_price_until_they_have_grown_by_a_tenth() -> None:
    of = Growth("ps")
    for second in range(60):
        of.hear(Point(float(second), int((second + 1) * PER_S), 1_000_000 + 1_000 * second, 500 * MIB + second))
    assert of.memory_at(3_000_000) == of.points[-1].memory_bytes
    assert judge(of, 600 * MIB) is None
    assert judge(of, 550 * MIB) is not None, "what it has is more than the reserve leaves"


def test_too_little_is_known_at_first() -> None:
    assert judge(growth(1e6, 1e4, seconds=LEAST_POINTS - 1), 1) is None
    assert judge(growth(1e6, 1e4, seconds=60), 0) is None, "there is no limit"


def test_the_server_that_is_over_first_is_answered() -> None:
    later, sooner = Forecast(1, 50.0, ""), Forecast(2, 5.0, "")
    assert hottest([(0, later), (1, sooner)]) == (1, sooner)


def test_memory_is_raised_where_it_may_be_and_else_a_server_is_asked_for() -> None:
    free = ceiling_of(pin_bytes=0, most_bytes=0, free_bytes=1000 * MIB, limit_bytes=200 * MIB, limits=LIMITS)
    given: dict[str, Any] = {"wanted_bytes": 280 * MIB, "may_add_servers": "", "limits": LIMITS}
    assert grown(200 * MIB, ceiling=free, **given).memory_bytes == math.floor(280 * MIB * 1.1)
    pin = ceiling_of(
        pin_bytes=200 * MIB, most_bytes=0, free_bytes=1000 * MIB, limit_bytes=200 * MIB, limits=LIMITS
    )
    asked = grown(200 * MIB, ceiling=pin, **given)
    assert asked.kind == "more servers" and "a pin" in asked.reason
    stuck = grown(200 * MIB, ceiling=pin, **given | {"may_add_servers": why_no_server(pinned=False, count=8, most=8)})
    assert stuck.kind == "nothing" and "roles.ps.max is 8" in stuck.reason


@given(
    st.integers(1, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
)
def test_no_raise_goes_beyond_any_bound_nor_downwards(limit: int, pin: int, most: int, free: int, top: int) -> None:
    limits = Limits(memory_ceiling_bytes=top)
    ceiling = ceiling_of(pin_bytes=pin, most_bytes=most, free_bytes=free, limit_bytes=limit, limits=limits)
    answer = after_oom("ps", limit, ceiling=ceiling, limits=limits)
    if answer.kind == "raise":
        assert limit < answer.memory_bytes <= limit + free
        assert not top or answer.memory_bytes <= top
        assert not pin or answer.memory_bytes <= max(pin, most)
    else:
        assert answer.kind == "nothing" and answer.reason


# ---- lives of jobs

SMALL = {
    "roles": {"ps": {"replicas": 2, "memory": "100Mi", "memory_max": "200Mi"}, "worker": {"replicas": 2}},
}
OOM = Exit(oom=True, signal=9, reason="OOMKilled: out of memory, limit 100 MiB")


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_server_that_was_killed_for_memory_comes_back_with_more_up_to_the_users_bound(world: JobWorld) -> None:
    world.shards.total = 20_000
    job_id = await world.submit(spec(**SMALL))
    sizes = []
    for attempt in (1, 2, 3, 4):
        await world.until(lambda: world.phase(job_id) == "Running")
        name = f"ps-0-{attempt}"
        sizes.append(world.cluster.processes_of[job_id][name].order.memory_bytes // MIB)
        if attempt < 4:
            gen = world.jobs.run_of(job_id).record.gen
            world.cluster.kill(job_id, name, OOM)
            await world.until(lambda gen=gen: world.jobs.run_of(job_id).record.gen > gen)  # type: ignore[misc]
    assert sizes == [100, 150, 200, 200]
    assert [(d.role, d.from_bytes // MIB, d.to_bytes // MIB, d.cause) for d in world.told("job.memory_raised")] == [
        ("ps", 100, 150, "oom"), ("ps", 150, 200, "oom"),
    ]
    lines = [item for item in world.jobs.run_of(job_id).status.timeline if item.matter == "memory"]
    assert len(lines) == 3 and "memory_max" in lines[2].decided and all("OOMKilled" in item.seen for item in lines)
    await world.until_phase(job_id, "Succeeded", timeout_s=600.0)
    assert world.jobs.run_of(job_id).status.samples == 20_000


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_user_who_names_a_size_overrules_what_was_raised_before(world: JobWorld) -> None:
    world.shards.total = 20_000
    job_id = await world.submit(spec(**SMALL))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: world.phase(job_id) == "Running")
    world.cluster.kill(job_id, "ps-0-1", OOM)
    await world.until(lambda: run.record.gen == 2 and world.phase(job_id) == "Running")
    assert run.status.memory == {"ps": 150 * MIB}
    for wrong, why in ((1 << 20, "64 MiB"), (300 * MIB, "roles.ps.memory_max")):
        with pytest.raises(InvalidArgument) as refused:
            await world.jobs.resize(job_id, role="ps", cpu=0.0, memory_bytes=wrong)
        assert refused.value.violations[0].path == "memory" and why in refused.value.violations[0].reason
    assert run.status.memory == {"ps": 150 * MIB}
    await world.jobs.resize(job_id, role="ps", cpu=1.0, memory_bytes=0)
    assert run.status.memory == {"ps": 150 * MIB}, "only cores were named"
    await world.jobs.resize(job_id, role="ps", cpu=0.0, memory_bytes=80 * MIB)

    def limits() -> set[int]:
        names = world.cluster.alive(job_id, "ps")
        return {world.cluster.processes_of[job_id][name].order.memory_bytes // MIB for name in names}

    await world.until(lambda: limits() == {80}, timeout_s=300.0)
    assert run.status.memory == {}


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_pinned_size_stays_and_the_timeline_says_so(world: JobWorld) -> None:
    job_id = await world.submit(spec(roles={"ps": {"replicas": 1, "memory": "100Mi"}, "worker": {"replicas": 1}}))
    await world.until(lambda: world.phase(job_id) == "Running")
    world.cluster.kill(job_id, "ps-0-1", OOM)
    await world.until(lambda: "ps-0-2" in world.cluster.started)
    assert world.cluster.processes_of[job_id]["ps-0-2"].order.memory_bytes == 100 * MIB
    [line] = world.jobs.run_of(job_id).status.timeline
    assert "a pin" in line.decided and not world.told("job.memory_raised")


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_growth_that_will_not_fit_is_answered_before_it_is_too_late(world: JobWorld) -> None:
    world.shards.total = 60_000
    world.rows_per_sample, world.row_bytes = 10, 200
    job_id = await world.submit(spec(**SMALL | {"checkpoint": {"every_s": 1000.0}}))
    await world.until(lambda: bool(world.told("job.memory_raised")), timeout_s=300.0)
    [raised] = world.told("job.memory_raised")[:1]
    assert raised.cause == "forecast" and raised.to_bytes <= 200 * MIB
    assert {name for name, _ in world.cluster.resized} >= {"ps-0-1", "ps-1-1"}
    assert world.jobs.run_of(job_id).record.gen == 1, "nothing was stopped for it"


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_where_memory_is_pinned_another_server_is_asked_for(world: JobWorld) -> None:
    world.shards.total = 60_000
    world.rows_per_sample, world.row_bytes = 10, 130
    roles = {"ps": {"memory": "64Mi", "max": 4}, "worker": {"replicas": 2}}
    job_id = await world.submit(spec(roles=roles, checkpoint={"every_s": 1000.0}))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.plan.get("ps") is not None and run.status.plan["ps"].replicas > 1)
    await world.until(lambda: bool(world.told("job.scaled")))
    [told] = world.told("job.scaled")[:1]
    assert (told.role, told.from_replicas, told.to_replicas) == ("ps", 1, 2) and "memory" in told.reason
    assert "one more parameter server is asked for" in run.status.timeline[0].decided


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_second_server_is_asked_for_only_once_the_first_has_its_slots(world: JobWorld) -> None:
    world.shards.total = 200_000
    world.rows_per_sample, world.row_bytes = 10, 100
    world.servers.copy_s = 100.0
    roles = {"ps": {"memory": "64Mi", "max": 4}, "worker": {"replicas": 2}}
    job_id = await world.submit(spec(roles=roles, checkpoint={"every_s": 1000.0}))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: len(run.record.members) == 2, timeout_s=600.0)
    await world.clock.sleep(90.0)
    assert run.status.plan["ps"].replicas == 2 and run.record.move is not None
    await world.until(lambda: len(run.status.settled_ps) == 2, timeout_s=600.0)
    placed_at = run.status.placed_at
    await world.until(lambda: run.status.plan["ps"].replicas == 3, timeout_s=600.0)
    assert world.clock.now() - placed_at >= world.limits.memory_cooldown_s


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_that_nothing_can_be_done_is_told_once(world: JobWorld) -> None:
    world.shards.total = 60_000
    world.rows_per_sample, world.row_bytes = 10, 130
    roles = {"ps": {"memory": "64Mi", "replicas": 1}, "worker": {"replicas": 2}}
    job_id = await world.submit(spec(roles=roles, checkpoint={"every_s": 1000.0}))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: bool(world.told("job.decided")), timeout_s=600.0)
    await world.clock.sleep(120.0)
    assert world.phase(job_id) == "Running"
    assert [item.decided[:22] for item in run.status.timeline] == ["nothing can be done; m"]
