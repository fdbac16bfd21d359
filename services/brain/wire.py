"""Protobuf in, domain out, and back."""

from recmesh.pb import brain_pb2 as pb
from services.brain.domain.model import Free, History, Job, Plan, Profile, RoleLimits, RolePlan

_JOB = (
    "job_id", "owner", "model", "framework", "dense_parameters", "tables", "dim", "batch_size", "data_rows",
    "data_bytes", "epochs", "priority", "deadline",
)  # fmt: skip
_PROFILE = tuple(field.name for field in pb.Profile.DESCRIPTOR.fields)


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
        memory_bytes=message.memory_bytes,
    )  # fmt: skip


def free(request: pb.PlanRequest) -> Free:
    """0 on the wire is "unknown"."""
    return Free(cpu=request.free_cpu or None, memory_bytes=request.free_memory_bytes or None)


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
    return Profile(**{name: getattr(message, name) for name in _PROFILE})


def profile_message(value: Profile) -> pb.Profile:
    """A profile."""
    return pb.Profile(**{name: getattr(value, name) for name in _PROFILE})


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
