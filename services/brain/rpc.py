"""gRPC face of brain: decode, call the app, encode."""

from collections.abc import Callable
from typing import Any

import grpc

from recmesh.pb import brain_pb2 as pb
from recmesh.pb import brain_pb2_grpc as pb_grpc
from services.brain import wire
from services.brain.app.deciding import Deciding
from services.brain.app.feeding import Feeding
from services.brain.app.jobs import Jobs
from services.brain.app.lending import Lending
from services.brain.app.scheduling import Scheduling, planners
from services.brain.app.serving import Serving
from services.brain.domain.loans.ledger import sums

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["Brain"].full_name

DEFAULT_LOANS = 100
"""Of the ledger, where no number is asked for."""


class BrainServicer(pb_grpc.BrainServicer):
    """One line per method; anything longer belongs in app.py."""

    def __init__(
        self, app: Jobs, deciding: Deciding, feeding: Feeding, scheduling: Scheduling, serving: Serving,
        lending: Lending,
    ) -> None:  # fmt: skip
        self._app, self._deciding, self._feeding, self._scheduling = app, deciding, feeding, scheduling
        self._serving, self._lending = serving, lending

    async def Plan(self, request: pb.PlanRequest, context: Any) -> pb.PlanReply:
        """A first plan."""
        limits = [wire.limits(each) for each in request.limits]
        return wire.plan_reply(await self._app.plan(wire.job(request.job), limits, wire.free(request)))

    async def Observe(self, request: pb.Profile, context: Any) -> pb.ObserveReply:
        """A profile."""
        await self._app.observe(wire.profile(request))
        return pb.ObserveReply()

    async def Decide(self, request: pb.DecideRequest, context: Any) -> pb.DecideReply:
        """A better plan, or none."""
        return wire.decide_reply(*await self._deciding.decide(self._lending.kept(wire.ask(request))))

    async def Feed(self, request: pb.FeedRequest, context: Any) -> pb.FeedReply:
        """How many data executors."""
        return wire.feed_reply(await self._feeding.decide(wire.feed_ask(request)))

    async def Schedule(self, request: pb.ScheduleRequest, context: Any) -> pb.ScheduleReply:
        """How many workers."""
        return wire.schedule_reply(*await self._scheduling.schedule(wire.online_ask(request)))

    async def PlanServing(self, request: pb.PlanServingRequest, context: Any) -> pb.PlanServingReply:
        """How many processes of a served model."""
        return wire.serving_reply(await self._serving.plan(wire.serving_ask(request)))

    async def Lend(self, request: pb.LendRequest, context: Any) -> pb.LendReply:
        """What an elastic job is to do without."""
        owed = await self._lending.lend(wire.lend_ask(request))
        return pb.LendReply(workers=owed.workers, explanation=owed.why, again_s=owed.again_s)

    async def Loans(self, request: pb.LoansRequest, context: Any) -> pb.LoansReply:
        """The ledger, and what is lent now."""
        now = self._lending.now
        found = await self._lending.ledger(is_open=request.open, limit=request.limit or DEFAULT_LOANS)
        return pb.LoansReply(
            enabled=self._lending.pool is not None,
            pool=wire.pool_message(self._lending.standing(), sums(self._lending.open, now)),
            loans=[wire.loan_message(each, now=now) for each in found],
        )

    async def StreamPlanners(self, request: pb.StreamPlannersRequest, context: Any) -> pb.StreamPlannersReply:
        """Their names."""
        return pb.StreamPlannersReply(names=planners())

    async def Conclude(self, request: pb.ChangeOutcome, context: Any) -> pb.ConcludeReply:
        """What came of one."""
        await self._deciding.conclude(wire.change(request))
        return pb.ConcludeReply()

    async def Suspend(self, request: pb.SuspendRequest, context: Any) -> pb.SuspendReply:
        """A job holds nothing until its next first plan."""
        await self._app.suspend(request.job_id)
        await self._lending.leave(request.job_id)
        self._forget(request.job_id)
        return pb.SuspendReply()

    async def RecordJob(self, request: pb.JobHistory, context: Any) -> pb.RecordReply:
        """A job ended."""
        await self._app.record(wire.history(request))
        await self._lending.leave(request.job.job_id)
        self._forget(request.job.job_id)
        return pb.RecordReply()

    def _forget(self, job_id: str) -> None:
        for each in (self._deciding, self._feeding, self._scheduling):
            each.forget(job_id)

    async def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainReply:
        """Why a job has what it has."""
        found = await self._app.explain(request.job_id)
        return pb.ExplainReply(
            plan=wire.plan_reply(found.plan) if found.plan else None,
            profiles=[wire.profile_message(each) for each in found.profiles],
            text=found.text,
            look=wire.look_message(found.look) if found.look else None,
            changes=[wire.change_message(each) for each in found.changes],
            decisions=[wire.look_message(each) for each in found.decisions],
            first=wire.plan_reply(found.first) if found.first else None,
        )

    async def History(self, request: pb.HistoryRequest, context: Any) -> pb.HistoryReply:
        """Jobs that ended."""
        found = await self._app.history(owner=request.owner, limit=request.limit)
        return pb.HistoryReply(jobs=[wire.history_message(each) for each in found])


def register(servicer: BrainServicer) -> Callable[[grpc.aio.Server], None]:
    """What adds the servicer to a server."""

    def add(server: grpc.aio.Server) -> None:
        pb_grpc.add_BrainServicer_to_server(servicer, server)

    return add
