"""brain over gRPC: protobuf in and out, nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import grpc

from recmesh.pb import brain_pb2, brain_pb2_grpc
from services.jobmaster.domain.facts import JobFacts
from services.jobmaster.domain.job import Capacity, Outcome, RolePlan
from services.jobmaster.peers.planning import (
    Advice,
    Fed,
    FeedAsk,
    JobEnd,
    JobProfile,
    LendAsk,
    Owed,
    PlanAsk,
    Planned,
    RoleBounds,
    ScheduleAsk,
    Scheduled,
)


class GrpcBrain:
    """brain over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = brain_pb2_grpc.BrainStub(channel)

    async def plan(self, facts: JobFacts, bounds: Sequence[RoleBounds], *, free: Capacity) -> Planned:
        """See `peers.planning.Brain`."""
        request = brain_pb2.PlanRequest(
            job=_meta(facts), limits=[_bounds_message(bound) for bound in bounds], **_free(free)
        )
        # A start must not wait for advice: the small default serves as well at first.
        reply = await self._stub.Plan(request, timeout=2.0)
        return Planned(_roles(reply.roles), reply.source, reply.explanation)

    async def observe(self, profile: JobProfile) -> None:
        """See `peers.planning.Brain`."""
        await self._stub.Observe(profile_message(profile), timeout=2.0)

    async def decide(self, ask: PlanAsk) -> Advice | None:
        """See `peers.planning.Brain`."""
        request = brain_pb2.DecideRequest(
            job=_meta(ask.facts), limits=[_bounds_message(bound) for bound in ask.bounds],
            now=_role_messages(ask.now), samples_per_s=ask.samples_per_s, remaining=ask.remaining,
            **_free(ask.free),
        )
        reply = await self._stub.Decide(request, timeout=10.0)
        if not reply.change:
            return None
        return Advice(
            plan_id=reply.plan_id, planner=reply.planner, roles=_roles(reply.roles), reason=reply.reason,
            explanation=reply.explanation, samples_per_s=reply.samples_per_s,
        )

    async def feed(self, ask: FeedAsk) -> Fed:
        """See `peers.planning.Brain`."""
        request = brain_pb2.FeedRequest(
            job_id=ask.job_id, now=_role_messages({"data": ask.now})[0], min=ask.least, max=ask.most,
            buffer_fill=ask.buffer_fill, cpu_idle=ask.cpu_idle, memory=ask.memory, samples_per_s=ask.samples_per_s,
            free_cpu=ask.free.cpu, free_memory_bytes=ask.free.memory_bytes, cluster=ask.free.cluster, owner=ask.owner,
            namespace=ask.namespace,
        )
        reply = await self._stub.Feed(request, timeout=5.0)
        return Fed(reply.replicas, reply.reason, reply.explanation)

    async def schedule(self, ask: ScheduleAsk) -> Scheduled:
        """See `peers.planning.Brain`."""
        rules = ask.rules
        request = brain_pb2.ScheduleRequest(
            job=_meta(ask.facts), limits=[_bounds_message(bound) for bound in ask.bounds],
            now=_role_messages(ask.now), **_free(ask.free),
            rules=brain_pb2.ScalingRules(
                planner=rules.planner, step_s=rules.step_s, steps=rules.steps, quantile=rules.quantile,
                lag_slo_s=rules.lag_slo_s, drain_s=rules.drain_s, hold_s=rules.hold_s, fallback=rules.fallback,
                workers_per_ps=rules.workers_per_ps, series=ask.series, dry_run=rules.dry_run,
            ),
            measured=brain_pb2.Demand(
                arrivals_per_s=ask.arrivals_per_s, trained_per_s=ask.trained_per_s, occupied=ask.occupied,
                lag_s=ask.lag_s, backlog=ask.backlog, since_s=ask.since_s, pause_s=ask.pause_s, lead_s=ask.lead_s,
            ),
        )
        reply = await self._stub.Schedule(request, timeout=10.0)
        return Scheduled(_roles(reply.roles), reply.planner, reply.reason, reply.explanation)

    async def lend(self, ask: LendAsk) -> Owed:
        """See `peers.planning.Brain`."""
        request = brain_pb2.LendRequest(
            job=_meta(ask.facts), worker=_role_messages({"worker": ask.worker})[0], least=ask.least, lent=ask.lent,
            settled=ask.settled, nodes=ask.nodes,
        )
        reply = await self._stub.Lend(request, timeout=5.0)
        return Owed(reply.workers, reply.explanation, reply.again_s)

    async def stream_planners(self) -> Sequence[str]:
        """See `peers.planning.Brain`."""
        reply = await self._stub.StreamPlanners(brain_pb2.StreamPlannersRequest(), timeout=2.0)
        return list(reply.names)

    async def conclude(self, outcome: Outcome) -> None:
        """See `peers.planning.Brain`."""
        request = brain_pb2.ChangeOutcome(
            plan_id=outcome.plan_id, job_id=outcome.job_id, at=outcome.at, verdict=outcome.verdict, why=outcome.why,
            before=_role_messages(outcome.before), after=_role_messages(outcome.after),
            rate_before=outcome.rate_before, rate_expected=outcome.rate_expected, rate_after=outcome.rate_after,
            overhead_s=outcome.overhead_s,
        )
        await self._stub.Conclude(request, timeout=5.0)

    async def suspend(self, job_id: str) -> None:
        """See `peers.planning.Brain`."""
        await self._stub.Suspend(brain_pb2.SuspendRequest(job_id=job_id), timeout=2.0)

    async def record_job(self, end: JobEnd) -> None:
        """See `peers.planning.Brain`."""
        request = brain_pb2.JobHistory(
            job=_meta(end.facts), outcome=end.outcome, reason=end.reason, started=end.started,
            ended=end.ended, final_plan=_role_messages(end.plan), samples_per_s=end.samples_per_s,
            samples=end.samples, metrics=dict(end.metrics),
        )
        await self._stub.RecordJob(request, timeout=5.0)


def profile_message(profile: JobProfile) -> brain_pb2.Profile:
    """Each field has its namesake in the message."""
    told = asdict(replace(profile, roles=()))
    told["roles"] = [
        brain_pb2.RoleUse(
            has=_role_messages({use.role: use.has})[0], cpu_max=use.cpu_max, memory_bytes=use.memory_bytes
        )
        for use in profile.roles
    ]
    return brain_pb2.Profile(**told)


def _roles(messages: Iterable[brain_pb2.RolePlan]) -> dict[str, RolePlan]:
    return {
        role.role: RolePlan(
            replicas=role.replicas, cpu=role.cpu, memory_bytes=role.memory_bytes, gpu=role.gpu,
            gpu_kind=role.gpu_kind,
        )
        for role in messages
    }


def _role_messages(roles: Mapping[str, RolePlan]) -> list[brain_pb2.RolePlan]:
    return [
        brain_pb2.RolePlan(
            role=role, replicas=item.replicas, cpu=item.cpu, memory_bytes=item.memory_bytes, gpu=item.gpu,
            gpu_kind=item.gpu_kind,
        )
        for role, item in roles.items()
    ]


def _bounds_message(bound: RoleBounds) -> brain_pb2.RoleLimits:
    return brain_pb2.RoleLimits(
        role=bound.role, min=bound.min, max=bound.max, pinned=bound.pinned, cpu=bound.cpu,
        memory_bytes=bound.memory_bytes, gpu=bound.gpu, gpu_kind=bound.gpu_kind,
    )


def _free(free: Capacity) -> dict[str, Any]:
    return {
        "free_cpu": free.cpu, "free_memory_bytes": free.memory_bytes, "free_gpus": dict(free.gpus),
        "cluster": free.cluster,
    }


def _meta(facts: JobFacts) -> brain_pb2.JobMeta:
    return brain_pb2.JobMeta(
        job_id=facts.job_id, owner=facts.owner, model=facts.model, framework=facts.framework, dim=facts.dim,
        tables=facts.tables, batch_size=facts.batch_size, data_rows=facts.data_rows,
        data_bytes=facts.data_bytes, epochs=facts.epochs, labels=dict(facts.labels), priority=facts.priority,
        deadline=facts.deadline, submitted=facts.submitted, namespace=facts.namespace,
    )
