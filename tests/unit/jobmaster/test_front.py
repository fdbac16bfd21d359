"""Which jobmaster answers a call, on virtual time: the others are hand-written."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.runtime.errors import DeadlineExceeded, Unavailable
from services.jobmaster.app.members import Member
from services.jobmaster.domain.shards import BUCKETS
from services.jobmaster.rpc.front import LIST_S, PATIENCE_S, Front
from tests.support.job_fakes import LoopClock

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

SELF, OTHER = Member("self.1", "self:1"), Member("other.1", "other:1")
HALVES = range(BUCKETS // 2), range(BUCKETS // 2, BUCKETS)


class FakeReplicas:
    def __init__(self) -> None:
        self.members: Sequence[Member] = [SELF, OTHER]

    def holder_of(self, name: str) -> Member | None:
        return OTHER

    def is_self(self, member: Member) -> bool:
        return member is SELF

    async def seen(self, *, timeout_s: float) -> None:
        await asyncio.sleep(timeout_s)


class StandingStill:
    """A channel to a jobmaster that accepts calls and answers none."""

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:
        async def call(request: Any, *, timeout: float, metadata: Any, wait_for_ready: bool) -> Any:    # noqa: ASYNC109  # as grpc has it
            await asyncio.sleep(timeout)
            raise DeadlineExceeded("other:1 did not answer in time")

        return call


async def test_a_list_waits_for_the_successor_of_a_jobmaster_that_stands_still() -> None:
    replicas, clock = FakeReplicas(), LoopClock()
    front = Front(replicas, lambda address: StandingStill(), clock=clock)    # type: ignore[arg-type,return-value]  # what it needs
    held = [*HALVES[0]]

    def here() -> pb.ListReply:
        return pb.ListReply(jobs=[pb.Job(job_id="ads")], buckets=held)

    listing = asyncio.create_task(front.list(pb.ListRequest(), here, None))
    await clock.sleep(LIST_S + 1.0)
    assert not listing.done(), "half of the jobs are missing"
    replicas.members = [SELF]
    held += HALVES[1]
    assert [job.job_id for job in (await listing).jobs] == ["ads"]


async def test_a_list_that_nobody_completes_is_refused_with_the_reason() -> None:
    clock = LoopClock()
    front = Front(FakeReplicas(), lambda address: StandingStill(), clock=clock)      # type: ignore[arg-type,return-value]  # what it needs
    with pytest.raises(Unavailable, match="change hands"):
        await front.list(pb.ListRequest(), lambda: pb.ListReply(buckets=HALVES[0]), None)
    assert PATIENCE_S <= clock.monotonic() <= PATIENCE_S + LIST_S + 1.0
