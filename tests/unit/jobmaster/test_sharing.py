"""Jobmasters that share one store, on virtual time: each bucket is held by one, whatever stands still or is lost."""

from collections.abc import Iterable
from typing import Any

import orjson
import pytest

from recmesh.runtime.clock import Clock, LeaseClock
from recmesh.runtime.errors import Unavailable
from services.jobmaster.app.fence import Fence
from services.jobmaster.app.sharing import LEADER, SHARED, Sharing
from services.jobmaster.domain.shards import BUCKETS, bucket_of
from services.jobmaster.store import SHARDS, JobStore
from tests.support.job_fakes import FakeKeys, LoopClock

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

TTL_S = 6.0


class ExpiringKeys(FakeKeys):
    """Keys that nobody has written for so long are gone."""

    def __init__(self) -> None:
        super().__init__()
        self._written: dict[str, float] = {}

    async def _touch(self) -> None:
        await super()._touch()
        now = LoopClock().monotonic()
        for key in [key for key in self.data if now >= self._written[key] + TTL_S]:
            del self.data[key]

    def _put(self, key: str, value: bytes) -> int:
        self._written[key] = LoopClock().monotonic()
        return super()._put(key, value)


class FakeJobs:
    """What sharing needs of jobs."""

    def __init__(self) -> None:
        self.buckets: frozenset[int] = frozenset()
        self.released: frozenset[int] = frozenset()
        self.live, self.sweeps = 3, 0
        self.live_elsewhere: Any = None

    async def hold(self, buckets: Iterable[int]) -> None:
        self.buckets |= frozenset(buckets)

    async def release(self, buckets: Iterable[int]) -> None:
        self.released |= self.buckets & frozenset(buckets)
        self.buckets -= frozenset(buckets)

    async def follow(self) -> None:
        self.buckets = frozenset()

    async def sweep(self) -> None:
        self.sweeps += 1


class Replica:
    def __init__(self, name: str, sessions: FakeKeys, store: FakeKeys, clock: Clock | None = None) -> None:
        clock = clock or LoopClock()
        self.jobs, self.fence = FakeJobs(), Fence(clock)
        self.sharing = Sharing(
            self.jobs, sessions, store, self.fence, clock=clock, ttl_s=TTL_S, name=name,  # type: ignore[arg-type]  # what it needs
            address=f"{name}:1",
        )

    async def step(self) -> None:
        await self.sharing.renew()
        await self.sharing.balance()

    def may_write(self, job_id: str) -> bool:
        try:
            self.fence.check(job_id)
        except Unavailable:
            return False
        return True


class World:
    def __init__(self) -> None:
        self.sessions, self.store = ExpiringKeys(), FakeKeys()

    def replica(self, name: str) -> Replica:
        return Replica(name, self.sessions, self.store)


async def settled(*replicas: Replica) -> None:
    for _ in range(4):
        for replica in replicas:
            await replica.step()
    held = [replica.jobs.buckets for replica in replicas]
    assert sum(map(len, held)) == len(frozenset().union(*held)) == BUCKETS
    assert max(map(len, held)) - min(map(len, held)) <= 1
    assert all(replica.fence.buckets == replica.jobs.buckets for replica in replicas)


async def later(delay_s: float, *replicas: Replica) -> None:
    """Time goes by; these renew, the others stand still."""
    for _ in range(int(delay_s / 1.5)):
        await LoopClock().sleep(1.5)
        for replica in replicas:
            await replica.step()


JOB = "ads"


async def test_one_holds_all_and_two_share_and_know_each_other() -> None:
    world = World()
    one, two = world.replica("one"), world.replica("two")
    await settled(one)
    assert one.may_write(JOB) and one.sharing.is_self(one.sharing.holder_of(JOB) or pytest.fail("nobody"))
    await settled(one, two)
    holder = one.sharing.holder_of(JOB)
    assert holder is not None and holder == two.sharing.holder_of(JOB)
    assert holder.address == ("one:1" if bucket_of(JOB) in one.jobs.buckets else "two:1")
    assert one.may_write(JOB) != two.may_write(JOB)
    assert one.jobs.live_elsewhere() == two.jobs.live_elsewhere() == 3
    await later(30.0, one, two)
    assert one.jobs.sweeps and two.jobs.sweeps


async def test_who_stands_still_beyond_its_lease_writes_nothing_more_and_comes_back_with_its_part() -> None:
    world = World()
    one, two = world.replica("one"), world.replica("two")
    await settled(one, two)
    before = world.store.data[SHARDS].value
    await later(4.5, two)
    assert world.store.data[SHARDS].value == before, "its lease is not over"
    await later(4.5, two)
    assert len(two.jobs.buckets) == BUCKETS and one.jobs.buckets, "it has not looked yet, ..."
    assert not any(one.may_write(f"job-{number}") for number in range(100)), "... and writes nothing"
    held = len(one.jobs.buckets)
    await one.sharing.renew()
    assert not one.fence.is_open and len(one.jobs.buckets) == held
    await settled(one, two)


async def test_what_others_held_meanwhile_is_read_anew_though_it_was_given_back_before_the_first_look() -> None:
    world = World()
    one, two = world.replica("one"), world.replica("two")
    await settled(one, two)
    held, one.jobs.released = one.jobs.buckets, frozenset()
    await later(9.0, two)
    assert len(two.jobs.buckets) == BUCKETS
    for _ in range(2):
        await one.sharing.renew()
    await two.step()
    assert len(two.jobs.buckets) == BUCKETS // 2, "given to the new session"
    await one.sharing.balance()
    assert one.jobs.released == held and len(one.jobs.buckets) == BUCKETS // 2
    await settled(one, two)


async def test_a_lease_that_is_lost_with_the_store_is_taken_again_and_no_job_is_let_go() -> None:
    world = World()
    one = world.replica("one")
    await settled(one)
    session = one.sharing.session
    world.sessions.away = world.store.away = True
    await later(9.0, one)
    assert not one.may_write(JOB) and len(one.jobs.buckets) == BUCKETS, "nobody else could take them"
    world.sessions.away = world.store.away = False
    for _ in range(4):
        await one.step()
    assert one.sharing.session != session and one.may_write(JOB)
    assert len(one.jobs.buckets) == BUCKETS and not one.jobs.released


async def test_one_that_resigns_gives_its_part_to_the_other_at_once() -> None:
    world = World()
    one, two = world.replica("one"), world.replica("two")
    await settled(one, two)
    await one.sharing.resign()
    assert not one.jobs.buckets and not one.may_write(JOB)
    await two.sharing.balance()
    assert len(two.jobs.buckets) == BUCKETS
    await two.sharing.resign()
    assert not world.sessions.data, "an older release may lead at once"


async def test_while_an_older_release_leads_nothing_is_taken_and_it_is_kept_out_later() -> None:
    world = World()
    one = world.replica("one")
    older = await world.sessions.create(LEADER, orjson.dumps({"id": "older", "host": "elsewhere"}))
    for _ in range(3):
        await one.step()
    assert not one.jobs.buckets
    await world.sessions.delete(LEADER, revision=older)
    await settled(one)
    assert world.sessions.data[LEADER].value == SHARED


async def test_the_store_writes_nothing_of_jobs_beyond_the_fence() -> None:
    world = World()
    one = world.replica("one")
    store = JobStore(world.store, fence=one.fence.check)
    for write in (
        store.save_events(JOB, []), store.save_manifest(JOB, 1, {}), store.delete(JOB), store.claim_request("r", JOB),
        store.move_request("r", JOB, taken="ads"),
    ):
        with pytest.raises(Unavailable, match="lease"):
            await write
    await settled(one)
    await store.save_events(JOB, [{"id": "1"}])
    await store.save_events(JOB, [{"id": "2"}])
    assert await store.events(JOB) == [{"id": "2"}]


async def test_a_lease_that_ended_while_the_machine_slept_is_known_to_be_over_at_once() -> None:
    asleep_s = 0.0
    clock = LeaseClock(LoopClock(), elapsed=lambda: LoopClock().monotonic() + asleep_s)
    one = Replica("one", ExpiringKeys(), FakeKeys(), clock=clock)
    await one.step()
    assert one.may_write("ads-1")
    asleep_s = TTL_S
    assert not one.may_write("ads-1"), "before any look at the store"
