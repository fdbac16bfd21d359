"""How many data executors, over the wire's types: histories by job, limits and what is free."""

from itertools import pairwise
from typing import Any

import pytest

from recmesh.pb import brain_pb2 as pb
from recmesh.plugins.planning import Resources
from recmesh.runtime.errors import InvalidArgument
from services.brain import wire
from services.brain.app import feeding
from services.brain.app.book import Book
from services.brain.app.feeding import Feeding
from services.brain.domain.executors.horizontal import Rule
from tests.support.gateway import FakeClock

pytestmark = pytest.mark.asyncio


def ask(count: int, fill: float, *, job_id: str = "ads", **more: Any) -> pb.FeedRequest:
    now = pb.RolePlan(role="data", replicas=count, cpu=1.0, memory_bytes=1 << 30)
    fields: dict[str, Any] = {"job_id": job_id, "now": now, "min": 1, "max": 16, "buffer_fill": fill} | more
    return pb.FeedRequest(**fields)


def made(clock: FakeClock | None = None, **quotas: Resources) -> Feeding:
    clock = clock or FakeClock()
    return Feeding(Rule(), Book(quotas, clock=clock), clock=clock)


async def fed(app: Feeding, *arguments: Any, **more: Any) -> tuple[int, str]:
    reply = wire.feed_reply(await app.decide(wire.feed_ask(ask(*arguments, **more))))
    return reply.replicas, reply.reason


@pytest.mark.parametrize("needs", [2, 5, 23, 50])
async def test_a_starved_job_grows_until_it_is_fed_and_does_not_fall_back(needs: int) -> None:
    clock = FakeClock()
    app, counts = made(clock), [1]
    for _ in range(480):          # two hours
        fill = 0.05 if counts[-1] < needs else 1.0 - 0.25 * needs / counts[-1]
        counts.append((await fed(app, counts[-1], fill, max=64, samples_per_s=1000.0 * min(counts[-1], needs)))[0])
        clock.time += 15.0
    assert max(counts) <= 2 * needs and set(counts[-60:]) == {counts[-1]} and needs <= counts[-1] <= 1.3 * needs
    assert counts.index(next(count for count in counts if count >= needs)) <= 20


async def test_jobs_have_histories_of_their_own_until_they_end() -> None:
    clock = FakeClock()
    app = made(clock)
    assert await fed(app, 1, 0.0) == (2, "STARVED")
    assert await fed(app, 2, 0.0) == (2, "COOLING")
    assert (await fed(app, 2, 0.0, job_id="other"))[1] == "STARVED"
    app.forget("ads")
    assert (await fed(app, 2, 0.0))[1] == "STARVED"


async def test_an_answer_that_was_not_carried_out_is_forgotten() -> None:
    app = made()
    assert await fed(app, 1, 0.0) == (2, "STARVED")
    assert await fed(app, 1, 0.0) == (2, "STARVED")
    assert await fed(app, 2, 0.0) == (2, "COOLING")
    assert (await fed(app, 7, 1.0))[1] == "IDLE"              # a user was quicker


async def test_only_what_is_free_is_taken() -> None:
    app = made()
    assert await fed(app, 4, 0.0, free_cpu=0.5) == (4, "AT_LIMIT")
    assert (await fed(app, 4, 0.0, free_cpu=2.0))[0] == 6
    assert (await fed(app, 4, 0.0, job_id="b", free_memory_bytes=3 << 30))[0] == 5     # two were promised
    assert (await fed(app, 4, 1.0, job_id="c", free_cpu=-3.0))[0] < 4


async def test_what_is_wrong_is_named() -> None:
    with pytest.raises(InvalidArgument) as caught:
        await fed(made(), 0, 1.5, max=0, job_id="")
    assert {each.path for each in caught.value.violations} == {"buffer_fill", "job_id", "now.replicas", "min"}


async def test_the_longest_silent_job_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "MAX_LIVE", 2)
    app = made()
    for job_id in ("a", "b", "a", "c"):
        await fed(app, 1, 0.0, job_id=job_id)
    assert (await fed(app, 2, 0.0, job_id="a"))[1] == "COOLING" and (await fed(app, 2, 0.0, job_id="b"))[1] == "STARVED"


async def test_an_owner_s_quota_bounds_them_and_what_is_given_counts() -> None:
    app = made(ads=Resources(9.0, 1 << 40))
    assert (await fed(app, 4, 0.0, owner="ads"))[0] == 8
    assert await fed(app, 1, 0.0, job_id="b", owner="ads") == (1, "AT_LIMIT")       # 8 were given, and b has one
    assert (await fed(app, 4, 0.0, job_id="c", owner="search"))[0] == 8


async def test_one_fewer_that_starves_is_gone_back_from_to_what_was_enough() -> None:
    """3.4 are needed: 2, 4, then 3, as 4 are more than enough, and 4 again, not 6; then it stays."""
    clock = FakeClock()
    app, counts = made(clock), [1]
    for _ in range(200):
        count = counts[-1]
        fill = 0.05 if count < 3.4 else 0.9
        counts.append((await fed(app, count, fill, samples_per_s=1000.0 * min(count, 3.4)))[0])
        clock.time += 10.0
    path = [count for before, count in pairwise(counts) if count != before]
    assert path == [2, 4, 3, 4]
