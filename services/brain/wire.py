"""Protobuf in, domain out, and back."""

from dataclasses import asdict, replace

from recmesh.pb import brain_pb2 as pb
from recmesh.plugins.planning import Resources
from services.brain.domain import serving
from services.brain.domain.executors.horizontal import Verdict
from services.brain.domain.loans.ledger import Loan, Sums
from services.brain.domain.loans.lenders import Lender
from services.brain.domain.loans.pool import LendAsk, Standing
from services.brain.domain.model import (
    Ask,
    Change,
    FeedAsk,
    Free,
    History,
    Job,
    Look,
    Plan,
    Profile,
    RoleLimits,
    RolePlan,
    RoleUse,
)
from services.brain.domain.online import Demand, OnlineAsk, Rules
from services.brain.domain.views import UNLIMITED_CPU, total

_JOB = (
    "job_id", "owner", "model", "framework", "dense_parameters", "tables", "dim", "batch_size", "data_rows",
    "data_bytes", "epochs", "priority", "deadline", "submitted", "namespace",
)  # fmt: skip
_RULES = tuple(field.name for field in pb.ScalingRules.DESCRIPTOR.fields if field.name != "series")
_DEMAND = tuple(field.name for field in pb.Demand.DESCRIPTOR.fields)
_PROFILE = tuple(field.name for field in pb.Profile.DESCRIPTOR.fields if field.name != "roles")


def job(message: pb.JobMeta) -> Job:
    """A job's metadata."""
    return Job(**{name: getattr(message, name) for name in _JOB}, labels=dict(message.labels))


def job_message(value: Job) -> pb.JobMeta:
    """A job's metadata."""
    return pb.JobMeta(**{name: getattr(value, name) for name in _JOB}, labels=dict(value.labels))


def limits(message: pb.RoleLimits) -> RoleLimits:
    """0 on the wire is "not pinned"."""
    return RoleLimits(
        message.role, min=message.min, max=message.max, pinned=message.pinned or None, cpu=message.cpu,
        memory_bytes=message.memory_bytes, gpu=message.gpu, gpu_kind=message.gpu_kind,
    )  # fmt: skip


def free(request: pb.PlanRequest | pb.DecideRequest | pb.FeedRequest | pb.ScheduleRequest) -> Free:
    """0 is nothing; what is not set is unknown. Executors need no accelerators."""
    return Free(
        cpu=request.free_cpu if request.HasField("free_cpu") else None,
        memory_bytes=request.free_memory_bytes if request.HasField("free_memory_bytes") else None,
        gpus=None if isinstance(request, pb.FeedRequest) else dict(request.free_gpus) or None,
        cluster=request.cluster,
    )  # fmt: skip


def role_plan(message: pb.RolePlan) -> RolePlan:
    """One role."""
    return RolePlan(
        message.role, replicas=message.replicas, cpu=message.cpu, memory_bytes=message.memory_bytes,
        gpu=message.gpu, gpu_kind=message.gpu_kind,
    )  # fmt: skip


def role_plan_message(value: RolePlan) -> pb.RolePlan:
    """One role."""
    return pb.RolePlan(
        role=value.role, replicas=value.replicas, cpu=value.cpu, memory_bytes=value.memory_bytes,
        gpu=value.gpu, gpu_kind=value.gpu_kind,
    )  # fmt: skip


def plan_reply(value: Plan) -> pb.PlanReply:
    """A plan with its reasons."""
    return pb.PlanReply(
        roles=[role_plan_message(role) for role in value.roles],
        source=value.source,
        explanation=value.explanation,
        similar=[pb.Similar(job_id=s.job_id, similarity=s.similarity, why=s.why) for s in value.similar],
        plan_id=value.plan_id,
    )


def profile(message: pb.Profile) -> Profile:
    """A profile."""
    roles = tuple(RoleUse(role_plan(each.has), each.cpu_max, each.memory_bytes) for each in message.roles)
    return Profile(**{name: getattr(message, name) for name in _PROFILE}, roles=roles)


def profile_message(value: Profile) -> pb.Profile:
    """A profile."""
    roles = [
        pb.RoleUse(has=role_plan_message(each.has), cpu_max=each.cpu_max, memory_bytes=each.memory_bytes)
        for each in value.roles
    ]
    return pb.Profile(**{name: getattr(value, name) for name in _PROFILE}, roles=roles)


def history(message: pb.JobHistory) -> History:
    """A job that ended."""
    return History(
        job=job(message.job), outcome=message.outcome, reason=message.reason, started=message.started,
        ended=message.ended, final_plan=tuple(role_plan(role) for role in message.final_plan),
        samples_per_s=message.samples_per_s, samples=message.samples, metrics=dict(message.metrics),
    )  # fmt: skip


def history_message(value: History) -> pb.JobHistory:
    """A job that ended."""
    return pb.JobHistory(
        job=job_message(value.job), outcome=value.outcome, reason=value.reason, started=value.started,
        ended=value.ended, final_plan=[role_plan_message(role) for role in value.final_plan],
        samples_per_s=value.samples_per_s, samples=value.samples, metrics=dict(value.metrics),
    )  # fmt: skip


def ask(request: pb.DecideRequest) -> Ask:
    """A job that trains."""
    return Ask(
        job=job(request.job), limits=tuple(limits(each) for each in request.limits),
        now={each.role: role_plan(each) for each in request.now}, samples_per_s=request.samples_per_s,
        remaining=request.remaining, free=free(request),
    )  # fmt: skip


def online_ask(request: pb.ScheduleRequest) -> OnlineAsk:
    """An online job."""
    rules, demand = request.rules, request.measured
    return OnlineAsk(
        job=job(request.job), limits=tuple(limits(each) for each in request.limits),
        now={each.role: role_plan(each) for each in request.now},
        rules=Rules(**{name: getattr(rules, name) for name in _RULES}, series=tuple(rules.series)),
        measured=Demand(**{name: getattr(demand, name) for name in _DEMAND}), free=free(request),
    )  # fmt: skip


def schedule_reply(look: Look, plan: Plan | None) -> pb.ScheduleReply:
    """What an online job should change to, and why; or why to nothing."""
    return pb.ScheduleReply(
        roles=[role_plan_message(role) for role in look.chosen], plan_id=look.plan_id, planner=look.planner,
        reason=look.reason, explanation=look.why, samples_per_s=look.expected_samples_per_s,
    )  # fmt: skip


def serving_ask(request: pb.PlanServingRequest) -> serving.ServingAsk:
    """A served model."""
    kinds = [
        serving.Kind(
            each.name, each.replicas, each.min, each.max, each.busy, each.answered_per_s, each.waiting, each.start_s
        )
        for each in request.kinds
    ]
    rules = serving.Rules(request.target_utilisation, request.quantile, request.hold_s)
    return serving.ServingAsk(
        request.model, request.series, request.step_s, request.arrivals_per_s, request.window_s, kinds, rules,
        request.asker, request.dry_run, request.elsewhere, request.latency_s, request.node,
        request.pods,
    )  # fmt: skip


def serving_reply(look: serving.Look) -> pb.PlanServingReply:
    """How many of each kind, and why."""
    return pb.PlanServingReply(
        decisions=[
            pb.ServingDecision(
                kind=each.kind, replicas=each.replicas, reason=each.reason, explanation=each.why,
                demand_per_s=each.demand_per_s, capacity_per_s=each.capacity_per_s,
            )
            for each in look.chosen
        ]
    )  # fmt: skip


def lend_ask(request: pb.LendRequest) -> LendAsk:
    """An elastic job."""
    worker = request.worker
    one = total([role_plan(worker)]) if worker.replicas else Resources()
    each = Resources().plus(one, 1.0 / worker.replicas) if worker.replicas else one
    each = each if each.cpu else replace(each, cpu=UNLIMITED_CPU)
    lender = Lender(
        request.job.job_id, request.job.priority, worker.replicas, request.least, each, request.lent,
        request.job.deadline, tuple(request.nodes),
    )  # fmt: skip
    return LendAsk(lender, request.settled)


def loan_message(value: Loan, *, now: float) -> pb.Loan:
    """A line of the ledger."""
    return pb.Loan(
        loan_id=value.loan_id, job_id=value.lender, state=value.state, cause=value.cause, explanation=value.why,
        planned=value.planned, since=value.since, due=value.due, lent=value.lent, ended=value.ended,
        renewals=value.renewals, late=value.is_late(now), node=value.node,
    )  # fmt: skip


def pool_message(standing: Standing, count: Sums) -> pb.LoanPool:
    """What serving has and needs, and what is lent."""
    return pb.LoanPool(
        own=standing.own, coming=count.coming, lent=count.lent, returning=count.returning, most=standing.most,
        used=standing.used, needed=standing.needed, late=count.late, explanation=standing.why,
    )  # fmt: skip


def feed_ask(request: pb.FeedRequest) -> FeedAsk:
    """A job's data executors."""
    return FeedAsk(
        request.job_id, role_plan(request.now), request.min, request.max, request.buffer_fill, request.cpu_idle,
        request.memory, request.samples_per_s, free(request), request.owner,
        request.namespace,
    )  # fmt: skip


def feed_reply(value: Verdict) -> pb.FeedReply:
    """How many there should be."""
    return pb.FeedReply(
        replicas=value.count, reason=value.reason.name, explanation=value.why, strategy=value.strategy
    )


def decide_reply(look: Look, plan: Plan | None) -> pb.DecideReply:
    """What a job should change to, and why; or why to nothing."""
    return pb.DecideReply(
        change=plan is not None, roles=[role_plan_message(role) for role in look.chosen], plan_id=look.plan_id,
        planner=look.planner, reason=look.reason, explanation=look.why,
        samples_per_s=look.expected_samples_per_s,
    )  # fmt: skip


def change(message: pb.ChangeOutcome) -> Change:
    """What came of a plan."""
    return Change(
        plan_id=message.plan_id, job_id=message.job_id, at=message.at, verdict=message.verdict, why=message.why,
        before=tuple(role_plan(each) for each in message.before),
        after=tuple(role_plan(each) for each in message.after), rate_before=message.rate_before,
        rate_expected=message.rate_expected, rate_after=message.rate_after, overhead_s=message.overhead_s,
    )  # fmt: skip


def change_message(value: Change) -> pb.ChangeOutcome:
    """What came of a plan."""
    return pb.ChangeOutcome(
        plan_id=value.plan_id, job_id=value.job_id, at=value.at, verdict=value.verdict, why=value.why,
        before=[role_plan_message(each) for each in value.before],
        after=[role_plan_message(each) for each in value.after], rate_before=value.rate_before,
        rate_expected=value.rate_expected, rate_after=value.rate_after, overhead_s=value.overhead_s,
    )  # fmt: skip


def look_message(value: Look) -> pb.Look:
    """What brain saw and decided."""
    return pb.Look(
        at=value.at, planner=value.planner, reason=value.reason, why=value.why, samples_per_s=value.samples_per_s,
        now=[role_plan_message(each) for each in value.now],
        chosen=[role_plan_message(each) for each in value.chosen],
        expected_samples_per_s=value.expected_samples_per_s, plan_id=value.plan_id,
        fit=pb.Fit(
            form=value.fit.form, error=value.fit.error, coefficients=dict(value.fit.coefficients),
            points=[pb.FitPoint(**asdict(point)) for point in value.fit.points], notes=value.fit.notes,
            unknown=value.fit.unknown,
        ),
        front=[pb.FrontPoint(**asdict(point)) for point in value.front],
        schedule=[pb.ScheduleStep(**asdict(step)) for step in value.schedule], step_s=value.step_s,
    )  # fmt: skip
