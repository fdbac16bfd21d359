"""Calls that reach one jobmaster of several: each goes to the one that runs the job, and from there no further.

A call for a job that is just changing hands waits for its next holder, within its deadline. What a jobmaster that has
died, or stands still, does not answer is asked of whoever takes over: all calls may be repeated.
"""

import asyncio
import math
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import grpc
import orjson

from recmesh.pb import jobmaster_pb2 as pb
from recmesh.pb.jobmaster_pb2_grpc import JobsStub, RunsStub
from recmesh.runtime.clock import Clock
from recmesh.runtime.deadline import remaining_s
from recmesh.runtime.errors import DeadlineExceeded, NotFound, Unavailable
from services.jobmaster.app.fence import LEASE_OVER
from services.jobmaster.app.jobs import MAX_PAGE, NOT_HELD, NotHeld
from services.jobmaster.app.members import Member
from services.jobmaster.domain.shards import BUCKETS

PASSED_ON = "recmesh-passed-on"
"""Metadata of a call that came by another jobmaster."""
PATIENCE_S = 15.0
"""A job without a holder is waited for so long, or as long as the call may take; a dead one is replaced sooner."""
MARGIN_S = 0.3
"""Before the end of a call's time it is told who is missing."""
LOOK_S = 0.25
LIST_S = 5.0
LONGEST_S = 90.0
"""Of a call that is passed on and has no deadline of its own: `Record` waits for a minute at most."""
_MOVED = frozenset({NOT_HELD, LEASE_OVER})
"""Reasons for which another look at who holds the job helps. What a use case itself lacks (shardsvc is away) has
others, and is told at once."""

Reply = TypeVar("Reply")
Service = type[JobsStub] | type[RunsStub]


class Replicas(Protocol):
    """Who holds what, as of the last look."""

    @property
    def members(self) -> Sequence[Member]:
        """All jobmasters that live."""
        ...

    def holder_of(self, name: str) -> Member | None:
        """None: nobody, or it is not known."""
        ...

    def is_self(self, member: Member) -> bool:
        """This one."""
        ...

    async def seen(self, *, timeout_s: float) -> None:
        """Returns at the next look that shows something new, or after the time."""
        ...


class Front:
    """Finds who is to answer. Channels to the others are kept while these live."""

    def __init__(self, replicas: Replicas, connect: Callable[[str], grpc.aio.Channel], *, clock: Clock) -> None:
        self._replicas, self._connect, self._clock = replicas, connect, clock
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def answer(
        self, service: Service, method: str, request: Any, name: str, here: Callable[[], Awaitable[Reply]],
        context: Any, *, done: Reply | None = None,
    ) -> Reply:
        """`here` answers where this jobmaster runs the jobs of this name; else the reply of the one that does.
        Unavailable when nobody does for so long.

        done: what is answered when nothing is found any more after an attempt whose answer did not come.
        """
        if is_passed_on(context):
            return await here()
        left_s = remaining_s()
        patience_s = PATIENCE_S if left_s is None else min(PATIENCE_S, left_s - MARGIN_S)
        until = self._clock.monotonic() + patience_s
        may_be_done = False
        while True:
            is_here = True
            try:
                member = self._replicas.holder_of(name)
                if member is None:
                    raise NotHeld(name)
                is_here = self._replicas.is_self(member)
                if is_here:
                    return await here()
                reply: Reply = await self._while_held(member, name, service, method, request)
                return reply
            except NotFound:
                if done is None or not may_be_done:
                    raise
                return done
            except Unavailable as error:
                is_other = isinstance(error, NotHeld) and error.job_id != name
                is_unanswered = not is_here and not error.from_server
                is_moved = is_unanswered or error.reason in _MOVED
                if is_other or not is_moved or self._clock.monotonic() >= until:
                    raise
                may_be_done |= is_unanswered or error.reason == LEASE_OVER
            await self._replicas.seen(timeout_s=LOOK_S)

    async def _while_held(self, member: Member, name: str, service: Service, method: str, request: Any) -> Any:
        """The other's reply; Unavailable as soon as it does not hold the name any more."""
        call = asyncio.create_task(self._ask(member, service, method, request))
        try:
            while True:
                watch = asyncio.create_task(self._replicas.seen(timeout_s=1.0))
                try:
                    await asyncio.wait((call, watch), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    watch.cancel()
                if call.done():
                    return call.result()
                if self._replicas.holder_of(name) != member and not self._lives(member):
                    raise Unavailable(f"the jobmaster at {member.address} is gone", reason=NOT_HELD)
        finally:
            call.cancel()

    def _lives(self, member: Member) -> bool:
        return any(each.session == member.session for each in self._replicas.members)

    async def _ask(
        self, member: Member, service: Service, method: str, request: Any, *, longest_s: float = LONGEST_S
    ) -> Any:
        left_s = remaining_s()
        timeout_s = longest_s if left_s is None else min(left_s, longest_s)
        stub: Any = service(self._channel(member.address))
        return await getattr(stub, method)(
            request, timeout=timeout_s, metadata=((PASSED_ON, "1"),), wait_for_ready=False
        )

    def _channel(self, address: str) -> grpc.aio.Channel:
        if address not in self._channels:
            live = {member.address for member in self._replicas.members}
            for old in [known for known in self._channels if known not in live]:
                task = asyncio.create_task(self._channels.pop(old).close(grace=None))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
            self._channels[address] = self._connect(address)
        return self._channels[address]

    async def list(self, request: pb.ListRequest, here: Callable[[], pb.ListReply], context: Any) -> pb.ListReply:
        """The page of all jobs, by whomever they are run. Unavailable while some are run by nobody."""
        if is_passed_on(context):
            return here()
        left_s = remaining_s()
        until = self._clock.monotonic() + min(PATIENCE_S, math.inf if left_s is None else left_s - MARGIN_S)
        while True:
            replies = await self._all_pages(request, here)
            if len({bucket for reply in replies for bucket in reply.buckets}) == BUCKETS:
                return merged(replies, limit=request.limit)
            if self._clock.monotonic() >= until:
                raise Unavailable("some jobs change hands at this moment", reason=NOT_HELD)
            await self._replicas.seen(timeout_s=LOOK_S)

    async def _all_pages(
        self, request: pb.ListRequest, here: Callable[[], pb.ListReply]
    ) -> Sequence[pb.ListReply]:
        others = [each for each in self._replicas.members if not self._replicas.is_self(each)]
        asked = (self._ask(each, JobsStub, "List", request, longest_s=LIST_S) for each in others)
        replies = await asyncio.gather(*asked, return_exceptions=True)
        for reply in replies:
            # One that stands still is asked again, or whoever has its jobs by then.
            if isinstance(reply, BaseException) and not isinstance(reply, Unavailable | DeadlineExceeded):
                raise reply
        return [here(), *(reply for reply in replies if isinstance(reply, pb.ListReply))]

    async def close(self) -> None:
        """Ends the connections."""
        for task in [asyncio.ensure_future(item.close(grace=None)) for item in self._channels.values()]:
            await task
        await asyncio.gather(*self._closing, return_exceptions=True)


def is_passed_on(context: Any) -> bool:
    """It came by another jobmaster: it is answered here, or refused."""
    return context is not None and any(key == PASSED_ON for key, _ in context.invocation_metadata())


def merged(replies: Sequence[pb.ListReply], *, limit: int) -> pb.ListReply:
    """One page of several jobmasters' pages; of a job that was handed over between them, one."""
    found = {job.job_id: job for reply in replies for job in reply.jobs}
    jobs = sorted(found.values(), key=lambda job: (-job.created, job.job_id))
    size = min(limit or MAX_PAGE, MAX_PAGE)
    page = jobs[:size]
    is_more = len(jobs) > size or any(reply.next_page_token for reply in replies)
    token = f"{page[-1].created!r}/{page[-1].job_id}" if page and is_more else ""
    return pb.ListReply(jobs=page, next_page_token=token)


def name_of(spec_json: str) -> str:
    """Of the job that is submitted; empty where it has none, so that anybody may refuse it."""
    try:
        value = orjson.loads(spec_json)
    except ValueError:
        return ""
    name = value.get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else ""


def repeatable(request: pb.SubmitRequest) -> pb.SubmitRequest:
    """With a request id, so that one that is passed on twice makes one job."""
    if request.request_id or request.dry_run:
        return request
    made = pb.SubmitRequest()
    made.CopyFrom(request)
    made.request_id = f"passed-on/{uuid.uuid4().hex}"
    return made
