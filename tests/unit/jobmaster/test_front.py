"""Which jobmaster answers a call, on virtual time: the others are hand-written."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.runtime.errors import DeadlineExceeded, MeshError, NotFound, Unavailable
from services.jobmaster.app.fence import LEASE_OVER
from services.jobmaster.app.jobs import NOT_HELD, NotHeld
from services.jobmaster.app.members import Member
from services.jobmaster.domain.shards import BUCKETS
from services.jobmaster.rpc.front import LIST_S, PATIENCE_S, Front
from services.jobmaster.rpc.routed import RoutedJobs
from tests.support.job_fakes import LoopClock

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

SELF, OTHER = Member("self.1", "self:1"), Member("other.1", "other:1")
HALVES = range(BUCKETS // 2), range(BUCKETS // 2, BUCKETS)


class FakeReplicas:
    def __init__(self) -> None:
        self.members: Sequence[Member] = [SELF, OTHER]

        self.holder: Member | None = OTHER

    def holder_of(self, name: str) -> Member | None:
        return self.holder

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


class Answers:
    """A channel to a jobmaster that says this, one after the other, and goes on with the last."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.calls = list(answers), 0

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Any]:
        async def call(request: Any, **_: Any) -> Any:
            self.calls += 1
            found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if isinstance(found, MeshError):
                raise found
            return found

        return call


class Here:
    """The jobmaster itself, whose use cases end so."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.calls = list(answers), 0

    async def Submit(self, request: pb.SubmitRequest, context: Any) -> Any:
        self.calls += 1
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(found, MeshError):
            raise found
        return found

    Delete = Submit


def told(error: MeshError) -> MeshError:
    """As the channel raises what a server has said."""
    error.from_server = True
    return error


def routed(here: Here, there: Answers | None = None, *, holder: Member | None = OTHER) -> tuple[RoutedJobs, LoopClock]:
    replicas, clock = FakeReplicas(), LoopClock()
    replicas.holder = holder
    front = Front(replicas, lambda address: there, clock=clock)    # type: ignore[arg-type,return-value]  # what it needs
    return RoutedJobs(front, here), clock       # type: ignore[arg-type]  # what it needs


SUBMIT = pb.SubmitRequest(spec_json='{"name": "ads"}', request_id="one")


@pytest.mark.parametrize("reason", ["UNREACHABLE", "CANCELLED", ""])
@pytest.mark.parametrize("holder", [SELF, OTHER])
async def test_what_a_use_case_lacks_is_told_at_once(holder: Member, reason: str) -> None:
    away = told(Unavailable("shardsvc cannot be reached", reason=reason))
    away.from_server = holder is OTHER      # at home it is what the call to shardsvc ran into
    here, there = Here(away), Answers(away)
    jobs, clock = routed(here, there, holder=holder)
    began = clock.monotonic()
    with pytest.raises(Unavailable, match="shardsvc"):
        await jobs.Submit(SUBMIT, None)
    assert clock.monotonic() == began and here.calls + there.calls == 1


@pytest.mark.parametrize("error", [
    Unavailable("other:1 cannot be reached", reason="UNREACHABLE"), Unavailable("connection refused"),
    told(Unavailable("not here", reason=NOT_HELD)), told(Unavailable("over", reason=LEASE_OVER)),
])
async def test_a_jobmaster_that_does_not_answer_or_has_the_job_no_more_is_asked_again(error: MeshError) -> None:
    there = Answers(error, error, pb.Job(job_id="ads"))
    jobs, _ = routed(Here(None), there)
    assert (await jobs.Submit(SUBMIT, None)).job_id == "ads" and there.calls == 3


async def test_nobody_holds_the_job_for_so_long() -> None:
    jobs, clock = routed(Here(None), holder=None)
    with pytest.raises(NotHeld):
        await jobs.Submit(SUBMIT, None)
    assert PATIENCE_S <= clock.monotonic() <= PATIENCE_S + 1.0


GONE = NotFound("there is no job ads", reason="NO_SUCH_JOB")


@pytest.mark.parametrize("lost", [Unavailable("other:1 is gone"), told(Unavailable("over", reason=LEASE_OVER))])
async def test_a_delete_whose_answer_was_lost_has_been_done_when_the_job_is_not_there(lost: MeshError) -> None:
    jobs, _ = routed(Here(None), Answers(lost, told(GONE)))
    assert await jobs.Delete(pb.JobRequest(job_id="ads"), None) == pb.DeleteReply()


@pytest.mark.parametrize("answers", [[told(GONE)], [told(Unavailable("not here", reason=NOT_HELD)), told(GONE)]])
async def test_a_delete_of_a_job_that_never_was_is_refused(answers: list[MeshError]) -> None:
    jobs, _ = routed(Here(None), Answers(*answers))
    with pytest.raises(NotFound):
        await jobs.Delete(pb.JobRequest(job_id="ads"), None)


async def test_a_delete_that_the_new_holder_finds_done_is_done() -> None:
    lost = Unavailable("other:1 is gone")
    replicas, clock = FakeReplicas(), LoopClock()
    here = Here(GONE)
    front = Front(replicas, lambda address: Answers(lost), clock=clock)   # type: ignore[arg-type,return-value]  # what it needs
    jobs = RoutedJobs(front, here)      # type: ignore[arg-type]  # what it needs
    deleting = asyncio.create_task(jobs.Delete(pb.JobRequest(job_id="ads"), None))
    await clock.sleep(1.0)
    replicas.holder = SELF
    assert await deleting == pb.DeleteReply() and here.calls == 1
