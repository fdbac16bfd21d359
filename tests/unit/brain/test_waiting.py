"""Jobs that wait for room in their owner's quota: their order, and what waiting costs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from recmesh.plugins.planning import Resources
from recmesh.runtime.errors import InvalidArgument, ResourceExhausted
from services.brain.app import waiting as module
from services.brain.app.book import Book
from services.brain.app.feeding import Feeding
from services.brain.app.jobs import Jobs
from services.brain.app.waiting import LEAST_S, PATIENCE_S, Waiting, kept_back
from services.brain.domain.executors.horizontal import Rule
from services.brain.domain.model import FeedAsk, Free, History, Job, Plan, Profile, RoleLimits, RolePlan, RoleUse
from services.brain.domain.warmstart import WarmStart
from services.brain.store import SqlStore
from tests.support.gateway import FakeClock

pytestmark = pytest.mark.asyncio

GIB = 1 << 30


class Brain:
    """An owner with ten cores and four accelerators, and what the store was asked."""

    def __init__(self, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.searches, self.store = FakeClock(), 0, store
        self.book = Book({"ads": Resources(10.0, 500 * GIB, {"a100": 4.0})}, clock=self.clock)
        self.jobs = Jobs(store, self.book, rule=WarmStart(), clock=self.clock, told=self._tell)
        searched = store.histories

        def counted(*, owner: str = "", outcome: str = "", limit: int = 100) -> list[History]:
            self.searches += 1
            return searched(owner=owner, outcome=outcome, limit=limit)

        monkeypatch.setattr(store, "histories", counted)

    async def _tell(self, plan: Plan) -> None:
        pass

    async def begins(self, name: str, cores: int, *, submitted: float = 1.0, priority: int = 0, gpus: int = 0) -> str:
        """Empty, or why it waits. It is of one server, which has a core, and workers of one core."""
        limits = [
            RoleLimits("worker", pinned=cores - 1, cpu=1.0, gpu=gpus / (cores - 1), gpu_kind="a100" if gpus else ""),
            RoleLimits("ps", pinned=1, cpu=1.0),
        ]
        try:
            await self.jobs.plan(Job(name, owner="ads", priority=priority, submitted=submitted), limits, Free())
        except ResourceExhausted as refused:
            assert refused.reason == "OVER_QUOTA"
            return refused.message
        return ""

    async def begins_in(self, namespace: str, name: str, cores: int) -> str:
        """As `begins`, of a job of a namespace."""
        limits = [RoleLimits("worker", pinned=cores - 1, cpu=1.0), RoleLimits("ps", pinned=1, cpu=1.0)]
        try:
            await self.jobs.plan(Job(name, owner="ads", namespace=namespace, submitted=1.0), limits, Free())
        except ResourceExhausted as refused:
            return refused.message
        return ""

    async def ended(self, name: str) -> None:
        await self.jobs.record(History(Job(name, owner="ads"), "Stopped"))


@pytest.fixture
def brain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Brain]:
    store = SqlStore(f"sqlite:///{tmp_path}/brain.sqlite")
    store.open()
    yield Brain(store, monkeypatch)
    store.close()


async def test_small_late_jobs_do_not_overtake_a_large_early_one(brain: Brain) -> None:
    assert not await brain.begins("first", 6) and not await brain.begins("second", 3)
    assert "is 8 cores" in await brain.begins("large", 8, submitted=2.0)
    for name, submitted in (("small", 3.0), ("smaller", 4.0)):
        why = await brain.begins(name, 2, submitted=submitted)
        assert "behind large" in why, why
    await brain.ended("first")
    assert "behind large" in await brain.begins("small", 2, submitted=3.0), "seven cores are free, large needs eight"
    await brain.ended("second")
    assert "behind large" in await brain.begins("smaller", 2, submitted=4.0), "small is before it, too"
    assert not await brain.begins("small", 2, submitted=3.0), "ten are free: two are left beside large"
    assert not await brain.begins("large", 8, submitted=2.0)
    assert "waits behind" not in await brain.begins("smaller", 2, submitted=4.0)


async def test_priority_comes_before_the_time_of_submission(brain: Brain) -> None:
    assert not await brain.begins("first", 8)
    assert await brain.begins("early", 4, submitted=2.0)
    assert "waits behind" not in await brain.begins("urgent", 4, submitted=3.0, priority=5)
    await brain.ended("first")
    assert not await brain.begins("low", 2, submitted=4.0), "two of ten are left beside urgent and early"
    assert not await brain.begins("urgent", 4, submitted=3.0, priority=5)
    assert not await brain.begins("early", 4, submitted=2.0)


async def test_waiting_costs_no_look_through_the_past(brain: Brain) -> None:
    assert not await brain.begins("first", 8)
    assert await brain.begins("waits", 4)
    searched = brain.searches
    for _ in range(20):
        brain.clock.time += 10.0
        assert "left in the quota of owner 'ads'" in await brain.begins("waits", 4)
    assert brain.searches == searched
    brain.clock.time += LEAST_S
    brain.book.see("first", "ads", [RolePlan("worker", 7, 1.0, GIB), RolePlan("ps", 1, 1.0, GIB)])
    assert await brain.begins("waits", 4)
    assert brain.searches == searched + 1, "similar jobs may have ended meanwhile"
    assert "is 5 cores" in await brain.begins("waits", 5), "its user has changed it"
    await brain.ended("first")
    assert not await brain.begins("waits", 5)


async def test_a_job_that_can_never_begin_or_asks_no_more_is_before_nobody(brain: Brain) -> None:
    assert "it can never begin" in await brain.begins("huge", 11)
    assert not await brain.begins("first", 8, submitted=2.0)
    assert await brain.begins("gone", 4, submitted=3.0)
    assert "behind gone" in await brain.begins("small", 2, submitted=4.0)
    brain.clock.time += PATIENCE_S + 1.0
    assert not await brain.begins("small", 2, submitted=4.0)


async def test_a_job_that_was_stopped_while_it_waited_is_before_nobody(brain: Brain) -> None:
    assert not await brain.begins("first", 8)
    assert await brain.begins("stopped", 4, submitted=2.0)
    await brain.ended("stopped")
    assert not await brain.begins("small", 2, submitted=3.0)


async def test_what_nobody_before_it_needs_a_job_may_have(brain: Brain) -> None:
    assert not await brain.begins("first", 3, gpus=3)
    assert await brain.begins("gpus", 3, submitted=2.0, gpus=2)
    assert not await brain.begins("cores", 4, submitted=3.0), "four cores are left beside those that gpus needs"
    assert "behind gpus" in await brain.begins("more", 2, submitted=4.0, gpus=1)


async def test_jobs_that_train_do_not_grow_into_what_another_waits_for(brain: Brain) -> None:
    assert not await brain.begins("first", 8)
    feeding = Feeding(Rule(), brain.book, clock=brain.clock)
    ask = FeedAsk("first", RolePlan("data", 1, 1.0, GIB), 1, 8, buffer_fill=0.0, samples_per_s=9.0, owner="ads")
    assert await brain.begins("waits", 4)
    assert (await feeding.decide(ask)).count == 1
    await brain.ended("waits")
    brain.clock.time += 3600.0
    brain.book.see("first", "ads", [RolePlan("worker", 7, 1.0, GIB), RolePlan("ps", 1, 1.0, GIB)])
    assert (await feeding.decide(ask)).count == 2


async def test_of_too_many_that_wait_those_that_asked_longest_ago_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    line = Waiting(FakeClock())
    for name in ("a", "b", "a", "c"):
        line.refuse(Job(name, owner="ads"), (), Resources(1.0))
    assert [each.job.job_id for each in line.of("ads")] == ["a", "c"]
    kept = [replace(line.of("ads")[0], least=Resources(3.0, 5.0, {"a100": 1.0}))]
    assert kept_back(Resources(4.0, 2.0, {"a100": -1.0}), kept) == Resources(1.0, 0.0, {"a100": -1.0})


async def test_a_suspended_job_holds_and_waits_for_nothing_until_it_asks_again(brain: Brain) -> None:
    has = [RoleUse(RolePlan("worker", 7, 1.0, 0), 1.0, 0), RoleUse(RolePlan("ps", 1, 1.0, 0), 1.0, 0)]
    told = Profile("a", brain.clock.time, 7, 1, samples_per_s=100.0, roles=tuple(has), owner="ads")
    assert not await brain.begins("a", 8)
    await brain.jobs.observe(told)
    assert await brain.begins("b", 8)
    assert "waits behind b" in await brain.begins("c", 4)
    brain.clock.time += 1.0
    await brain.jobs.suspend("a")
    await brain.jobs.observe(told)              # it was measured before, and comes late
    assert not await brain.begins("b", 8)
    assert await brain.begins("a", 8), "resumed, it waits as all do"
    await brain.jobs.suspend("b")
    assert not await brain.begins("a", 8)
    await brain.jobs.suspend("a")

    anew = Book(brain.book.quotas, clock=brain.clock)
    brain.clock.time += 1.0
    await Jobs(brain.store, anew, rule=WarmStart(), clock=brain.clock, told=brain._tell).restore()
    assert anew.left("ads") == brain.book.quotas["ads"], "brain began anew, and books nothing for it"
    with pytest.raises(InvalidArgument, match="job_id"):
        await brain.jobs.suspend("")


async def test_jobs_of_a_namespace_with_a_quota_are_bounded_by_it_and_not_by_their_owners(brain: Brain) -> None:
    brain.book.quotas["namespace:play"] = Resources(5.0, 500 * GIB, {})
    assert not await brain.begins_in("play", "first", 4)
    why = await brain.begins_in("play", "second", 3)
    assert "is 3 cores" in why and "quota of namespace 'play'" in why, why
    left = brain.book.left("ads")
    assert left is not None and left.cpu == 10.0
    assert not await brain.begins_in("work", "third", 8)        # which has none: its owner's counts
    assert "quota of owner 'ads'" in await brain.begins("fourth", 4)
    await brain.ended("first")
    assert not await brain.begins_in("play", "second", 3)


async def test_what_a_job_tells_is_booked_for_its_namespace(brain: Brain) -> None:
    brain.book.quotas["namespace:play"] = Resources(5.0, 500 * GIB, {})
    has = (RoleUse(RolePlan("worker", 3, 1.0, GIB), 1.0, GIB),)
    told = Profile("a", brain.clock.now(), 3, 1, owner="ads", namespace="play", roles=has)
    await brain.jobs.observe(told)
    left = brain.book.left("namespace:play")
    assert left is not None and left.cpu == 2.0
    again = Jobs(
        brain.store, Book(brain.book.quotas, clock=brain.clock), rule=WarmStart(), clock=brain.clock, told=brain._tell
    )
    await again.restore()
    left = again._book.left("namespace:play")
    assert left is not None and left.cpu == 2.0
