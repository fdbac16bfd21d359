"""Loans from the ask of a gateway to the workers of a job and back, over restarts of brain."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recmesh.plugins.planning import Resources
from recmesh.runtime.errors import InvalidArgument
from recmesh.runtime.ops import Chart, Table, Tone
from services.brain.app.book import Book
from services.brain.app.lending import GONE_S, STALE_S, Lending
from services.brain.domain.loans.interference import Tolerance
from services.brain.domain.loans.ledger import Cause, Loan, State
from services.brain.domain.loans.lenders import Lender
from services.brain.domain.loans.planning import Rules
from services.brain.domain.loans.pool import LendAsk, Owed, Pool, Served, kept_back
from services.brain.domain.model import Ask, Free, Job, RoleLimits, RolePlan
from services.brain.domain.serving import Decision, Kind, Reason
from services.brain.ops import View
from services.brain.store import SqlStore
from tests.support.forecasts import SetClock

RULES = Rules(own=1, most=4, most_draining=2, drain_s=30, start_s=30, return_s=30, hold_s=60, notice_s=60, slack_s=60)
UNIT = Resources(cpu=2.0)
WORKER = Resources(cpu=1.0)


class World:
    """brain's part with one job of six workers, and one gateway."""

    def __init__(self, folder: Path, tolerance: Tolerance | None = None) -> None:
        self.clock, self.book = SetClock(1000.0), Book(clock=SetClock(1000.0))
        self.store = SqlStore(f"sqlite:///{folder}/brain.sqlite")
        self.store.open()
        self.pool = Pool(RULES, UNIT, 5.0, tolerance or Tolerance())
        self.told: list[Loan] = []
        self.lending = self.anew()

    def anew(self) -> Lending:
        """As after a restart, before `restore`."""
        self.lending = Lending(
            self.store, self.pool, self.book, clock=self.clock, told=lambda loan, now: self.told.append(loan)
        )
        return self.lending

    async def job(
        self, workers: int = 6, lent: int = 0, *, settled: bool = True, node: str = "", worker: Resources = WORKER
    ) -> Owed:
        """It asks."""
        nodes = (node,) if node else ()
        lender = Lender("ads", 0, workers, 2, worker, lent, nodes=nodes)
        return await self.lending.lend(LendAsk(lender, settled))

    def serve(
        self, replicas: int, need: int, *, latency_s: float = 0.0, node: str = "", pods: bool = False
    ) -> None:
        """A gateway tells."""
        told = Served(self.clock.now(), replicas, (need,) * 40, 60.0, need, latency_s, node, pods=pods)
        self.lending.saw("gateway", "flights", told)

    def room(self, wanted: int) -> Decision:
        """What of so many HNs may be."""
        kind = Kind("hn", 1, 1, 9)
        return self.lending.bounded("gateway", "flights", kind, Decision("hn", wanted, Reason.FORECAST, "forecast"))

    @property
    def states(self) -> list[State]:
        """Of the open loans."""
        return sorted(loan.state for loan in self.lending.open)

    async def lent(self) -> None:
        """Two units are lent, four workers are out."""
        await self.job()
        self.serve(1, 3)
        await self.lending.step()
        await self.job()
        await self.job(2, 4)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.asyncio
async def test_a_loan_is_planned_drained_used_and_returned(world: World) -> None:
    await world.job()
    world.serve(1, 3)
    assert world.room(3).replicas == 1, "serving's own alone"
    await world.lending.step()
    assert world.states == [State.PLANNED] * 2
    owed = await world.job()
    assert (owed.workers, owed.again_s) == (4, 5.0), "two units of 2 cores are four workers of one"
    assert world.states == [State.DRAINING] * 2
    assert (world.book.room(Free(cpu=10.0)).cpu) == 6.0, "kept back from whoever else trains"
    assert (await world.job(2, 4, settled=False)).workers == 4
    assert world.room(3).replicas == 1, "they have not left yet"
    assert (await world.job(2, 4)).workers == 4
    assert world.states == [State.LENT] * 2
    assert world.room(3) == Decision("hn", 3, Reason.FORECAST, "forecast")
    limited = world.room(9)
    assert (limited.replicas, limited.reason) == (3, Reason.ROOM) and "room for 3" in limited.why
    world.clock.at = 1200.0
    world.serve(3, 1)
    await world.lending.step()
    assert world.states == [State.RETURNING] * 2
    assert world.room(3).replicas == 1
    assert (await world.job(2, 4)).workers == 4, "serving has not left yet"
    world.serve(2, 1)
    await world.lending.step()
    assert (await world.job(2, 4)).workers == 2
    world.serve(1, 1)
    await world.lending.step()
    assert (await world.job(4, 2)).workers == 0
    assert world.states == [] and world.book.room(Free(cpu=10.0)).cpu == 10.0
    ledger = await world.lending.ledger(is_open=False, limit=10)
    assert [loan.state for loan in ledger] == [State.RETURNED] * 2
    assert not any(loan.is_late(world.clock.now()) for loan in ledger)
    steps = [loan.state for loan in world.told if loan.loan_id == ledger[0].loan_id and loan.renewals == 0]
    assert steps == [State.PLANNED, State.DRAINING, State.LENT, State.RETURNING, State.RETURNED]


@pytest.mark.asyncio
async def test_what_is_lent_is_kept_back_once_where_hns_are_pods_that_count_in_what_is_free(world: World) -> None:
    await world.lent()
    assert world.book.room(Free(cpu=10.0)).cpu == 6.0, "free until an HN is there"
    world.serve(2, 3, pods=True)
    assert world.book.room(Free(cpu=8.0)).cpu == 6.0, "one is in it, and of what is free one unit is kept"
    world.serve(3, 3, pods=True)
    assert world.book.room(Free(cpu=6.0)).cpu == 6.0, "both are"
    world.clock.at += STALE_S + 1
    await world.job(2, 4)
    await world.lending.step()
    assert world.book.room(Free(cpu=10.0)).cpu == 6.0, "of a gateway that is silent nothing is known"


@pytest.mark.parametrize(
    ("served", "kept"),
    [
        ([], 4), ([(1, True)], 4), ([(3, False)], 4), ([(3, True)], 2), ([(9, True)], 0),
        ([(1, True), (2, False)], 3), ([(2, True), (4, False)], 2),
    ],
)
def test_units_are_kept_back_that_no_hn_pod_is_in(served: list[tuple[int, bool]], kept: int) -> None:
    told = [Served(0.0, replicas, (), 60.0, replicas, pods=pods) for replicas, pods in served]
    assert kept_back(4, RULES, told) == kept


@pytest.mark.asyncio
async def test_a_restart_in_the_middle_keeps_the_ledger_and_returns_nothing_unasked(world: World) -> None:
    await world.lent()
    lending = world.anew()
    await lending.restore()
    assert world.states == [State.LENT] * 2
    assert world.room(3).replicas == 3
    await lending.step()
    assert world.states == [State.LENT] * 2, "no gateway has told yet what it needs"
    assert (await world.job(2, 4)).workers == 4
    world.serve(3, 3)
    await lending.step()
    assert world.states == [State.LENT] * 2
    world.clock.at += 200.0
    world.serve(3, 1)
    await lending.step()
    assert world.states == [State.RETURNING] * 2


@pytest.mark.asyncio
async def test_when_serving_is_gone_everything_goes_back(world: World) -> None:
    await world.lent()
    world.clock.at += STALE_S + 1
    await world.job(2, 4)
    await world.lending.step()
    await world.lending.step()
    assert world.states == []
    assert (await world.job(2, 4)).workers == 0


@pytest.mark.asyncio
async def test_the_room_of_a_job_that_ended_stays_with_serving_until_the_peak_is_over(world: World) -> None:
    await world.lent()
    await world.lending.leave("ads")
    assert world.states == [State.LENT] * 2
    assert world.room(3).replicas == 3
    assert (await world.job()).workers == 0, "a job of the same name owes nothing"
    world.clock.at += 1000.0
    world.serve(1, 1)
    await world.lending.step()
    await world.lending.step()
    assert world.states == []


@pytest.mark.asyncio
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_job_that_was_away_for_long_has_nothing_back_while_serving_is_in_its_room(
    world: World, is_restarted: bool
) -> None:
    await world.lent()
    if is_restarted:
        await world.anew().restore()
    for _ in range(3):
        world.clock.at += GONE_S + 1
        world.serve(3, 3)
        await world.lending.step()
        assert world.states == [State.LENT] * 2 and world.room(3).replicas == 3
    assert (await world.job(2, 4)).workers == 4, "it goes on doing without"
    world.serve(3, 1)
    await world.lending.step()
    world.clock.at += GONE_S + 1
    world.serve(2, 1)
    await world.lending.step()
    assert world.states == [State.RETURNING]
    assert (await world.job(2, 4)).workers == 2, "serving has left one of them"


@pytest.mark.asyncio
async def test_a_job_whose_workers_hold_nothing_of_a_unit_any_more_has_its_workers_back_when_serving_has_left(
    world: World,
) -> None:
    await world.lent()
    none = Resources(memory_bytes=1e9)
    for _ in range(2):
        assert (await world.job(2, 4, worker=none)).workers == 4, "serving is in the room of four"
        world.serve(3, 3)
        await world.lending.step()
        assert world.states == [State.LENT] * 2 and world.room(3).replicas == 3
    world.clock.at += 200.0
    world.serve(3, 1)
    await world.lending.step()
    world.serve(2, 1)
    await world.lending.step()
    assert world.states == [State.RETURNING]
    assert (await world.job(2, 4, worker=none)).workers == 4, "in the room of some of them"
    world.serve(1, 1)
    await world.lending.step()
    assert world.states == [] and (await world.job(2, 4, worker=none)).workers == 0


@pytest.mark.asyncio
async def test_what_workers_that_hold_nothing_of_a_unit_had_not_given_up_comes_to_nothing(world: World) -> None:
    none = Resources(memory_bytes=1e9)
    await world.job()
    world.serve(1, 3)
    await world.lending.step()
    await world.job()
    assert world.states == [State.DRAINING] * 2
    assert (await world.job(worker=none)).workers == 0
    assert world.states == [] and world.room(3).replicas == 1
    await world.lending.step()
    assert world.states == [], "it is not asked again"


@pytest.mark.asyncio
async def test_of_a_job_that_is_away_for_long_nothing_more_is_expected(world: World) -> None:
    await world.job()
    world.serve(1, 3)
    await world.lending.step()
    assert world.states == [State.PLANNED] * 2
    world.clock.at += GONE_S + 1
    world.serve(1, 3)
    await world.lending.step()
    assert world.states == [], "it had not heard of it, and is not asked again"
    assert (await world.job()).workers == 0


@pytest.mark.asyncio
async def test_a_job_that_does_not_give_is_not_waited_for_without_end(world: World) -> None:
    await world.job()
    world.serve(1, 3)
    await world.lending.step()
    await world.job()
    world.clock.at += GONE_S + 1
    await world.job(settled=False)
    world.serve(1, 1)
    await world.lending.step()
    assert world.states == []
    assert [loan.state for loan in await world.lending.ledger(is_open=False, limit=9)] == [State.CANCELLED] * 2


@pytest.mark.asyncio
async def test_a_job_at_its_least_lends_nothing_and_brain_says_so(world: World) -> None:
    await world.job(2)
    world.serve(1, 3)
    await world.lending.step()
    assert world.states == []
    assert world.room(3).reason is Reason.ROOM


@pytest.mark.asyncio
async def test_a_lender_is_given_no_more_workers_meanwhile(world: World) -> None:
    ask = Ask(Job("ads", "me"), (RoleLimits("worker", 2, 8), RoleLimits("ps", 1, 4)),
              {"worker": RolePlan("worker", 2, 1.0, 0)}, 100.0, 1000, Free())  # fmt: skip
    assert world.lending.kept(ask) == ask
    await world.lent()
    kept = world.lending.kept(ask)
    assert [(each.min, each.max) for each in kept.limits] == [(2, 2), (1, 4)]


@pytest.mark.asyncio
async def test_offline_work_that_slows_online_requests_leaves_the_node_and_comes_back(tmp_path: Path) -> None:
    world = World(tmp_path, Tolerance(goal_s=0.025, after_s=10, settle_s=20, clear_s=30))
    for _ in range(3):
        await world.job(node="node-1")
        world.serve(1, 1, latency_s=0.2, node="node-1")
        await world.lending.step()
        world.clock.at += 6.0
    [loan] = world.lending.open
    assert (loan.cause, loan.node, loan.due) == (Cause.INTERFERENCE, "node-1", 0.0)
    assert "200.0 ms" in loan.why
    assert (await world.job(node="node-1")).workers == 2
    await world.job(4, 2, node="node-1")
    assert world.room(3).replicas == 1, "what was evicted is nobody's room"
    for _ in range(8):
        await world.job(4, 2)
        world.serve(1, 1, latency_s=0.001, node="node-1")
        await world.lending.step()
        world.clock.at += 6.0
    assert world.states == []
    assert (await world.job(4, 2)).workers == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["brain is started anew", "nothing is served there any more", "none is to leave"])
async def test_offline_work_that_was_evicted_comes_back_whatever_is_forgotten(tmp_path: Path, how: str) -> None:
    tolerance = Tolerance(goal_s=0.010, after_s=10, settle_s=20, clear_s=30)
    world = World(tmp_path, tolerance)
    for _ in range(3):
        await world.job(node="node-1")
        world.serve(1, 1, latency_s=0.050, node="node-1")
        await world.lending.step()
        world.clock.at += 6.0
    assert (await world.job(node="node-1")).workers == 2
    await world.job(4, 2)
    assert world.states == [State.LENT]
    if how != "nothing is served there any more":
        if how == "none is to leave":
            world.pool = replace(world.pool, tolerance=Tolerance())
        await world.anew().restore()
    node = "node-2" if how == "nothing is served there any more" else "node-1"
    for _ in range(8):
        await world.job(4, 2)
        world.serve(1, 1, latency_s=0.001, node=node)
        await world.lending.step()
        world.clock.at += 6.0
    assert world.states == [] and (await world.job(4, 2)).workers == 0



@pytest.mark.asyncio
async def test_without_a_pool_nothing_is_lent_or_bounded(world: World) -> None:
    lending = Lending(world.store, None, world.book, clock=world.clock, told=lambda loan, now: None)
    owed = await lending.lend(LendAsk(Lender("ads", 0, 6, 2, WORKER), settled=True))
    assert owed.workers == 0 and owed.again_s >= 30
    kind = Kind("hn", 1, 1, 9)
    made = Decision("hn", 9, Reason.FORECAST, "forecast")
    assert lending.bounded("gateway", "flights", kind, made) is made
    assert await lending.step() > 0


@pytest.mark.asyncio
async def test_a_wrong_ask_names_its_fields(world: World) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await world.lending.lend(LendAsk(Lender("", 0, 0, 2, WORKER), settled=True))
    assert {each.path for each in refused.value.violations} == {"job.job_id", "worker.replicas", "least"}


@pytest.mark.asyncio
async def test_the_page_shows_the_ledger_and_how_much_is_lent(world: World) -> None:
    await world.lent()
    unused: Any = None
    view = View(unused, unused, world.lending, clock=world.clock)
    panels = {panel.title: panel for panel in view.page().panels}
    table, chart = panels["Loans"], panels["Room lent to serving"]
    assert isinstance(table, Table) and isinstance(chart, Chart)
    rows: Any = await called(table.rows)
    assert [(row[1], row[2].text, row[2].tone) for row in rows] == [("ads", "lent", Tone.OK)] * 2
    lines: Any = await called(chart.series)
    assert [points[-1][1] for points in lines.values()] == [2, 2]
    assert [points[0][1] for points in lines.values()] == [0, 0]
    without = View(unused, unused, Lending(world.store, None, world.book, clock=world.clock, told=unused),
                   clock=world.clock)  # fmt: skip
    assert "Loans" not in {panel.title for panel in without.page().panels}


async def called(provider: Any) -> Any:
    """What a panel asks for when somebody looks."""
    found = provider()
    return await found if inspect.isawaitable(found) else found
