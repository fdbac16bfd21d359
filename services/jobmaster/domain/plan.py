"""How many processes of each role are wanted: the plan, bounded by the spec, pinned by users."""

from collections.abc import Mapping

from recmesh.spec.job import Role, TrainingJob
from services.jobmaster.domain.job import Intent, RolePlan, Size

DEFAULT_REPLICAS: Mapping[str, int] = {"ps": 1, "worker": 1}
"""The documented small default, when brain cannot be asked."""


ROLES = ("ps", "worker", "data", "evaluator")

EXECUTOR_BYTES = 512 << 20
"""What a data executor needs beside its buffer, at least."""


def pin(spec: TrainingJob, intent: Intent, role: str) -> int | None:
    """The count to which a user has fixed a role; None when brain decides."""
    if role in intent.replicas:
        return intent.replicas[role]
    if role in intent.cleared:
        return None
    declared: Role = getattr(spec.roles, role)
    return declared.replicas


def wanted(spec: TrainingJob, intent: Intent, plan: Mapping[str, RolePlan], role: str) -> int:
    """How many processes of a role should be there now."""
    declared: Role = getattr(spec.roles, role)
    if role == "evaluator":
        evaluates = spec.evaluation is not None and spec.evaluation.every_s is not None
        return 1 if evaluates and declared.max > 0 and intent.replicas.get(role, 1) > 0 else 0
    fixed = pin(spec, intent, role)
    if fixed is not None:
        return fixed
    if role == "data" and not is_fed(spec, intent):
        return declared.min         # workers can do without
    planned = plan[role].replicas if role in plan else DEFAULT_REPLICAS.get(role, 0)
    return min(max(planned, declared.min, 1), declared.max)


def is_fed(spec: TrainingJob, intent: Intent) -> bool:
    """The number of data executors follows their buffers: the user wants some of the job's own, and says between how
    many."""
    data = spec.roles.data
    is_free = pin(spec, intent, "data") is None and 1 <= data.min < data.max
    return spec.data is not None and is_free and not data.shared


def planned_roles(spec: TrainingJob) -> tuple[str, ...]:
    """Roles that brain plans, where the job has them. Executors that are shared are no single job's to plan."""
    return tuple(role for role in ROLES if role != "data" or not spec.roles.data.shared)


def least(spec: TrainingJob, intent: Intent, plan: Mapping[str, RolePlan]) -> int:
    """How many processes the job cannot begin without: all servers, of other roles what is pinned or their `min`."""
    count = wanted(spec, intent, plan, "ps")
    for role in ("worker", "data"):
        fixed = pin(spec, intent, role)
        count += fixed if fixed is not None else max(getattr(spec.roles, role).min, int(role == "worker"))
    return count


def size(spec: TrainingJob, intent: Intent, plan: Mapping[str, RolePlan], role: str) -> RolePlan:
    """How large one process of a role is: what users asked for since, what the spec says, else what the plan says."""
    planned = plan.get(role, RolePlan(replicas=0))
    if role == "finisher":
        declared = spec.roles.worker
        planned = RolePlan(replicas=1)
    else:
        declared = getattr(spec.roles, role)
    asked = intent.sizes.get(role, Size())
    memory_bytes = planned.memory_bytes
    if role == "data" and memory_bytes:     # brain knows of no buffer
        memory_bytes = max(memory_bytes, spec.roles.data.buffer + EXECUTOR_BYTES)
    return RolePlan(
        replicas=planned.replicas,
        cpu=asked.cpu or declared.cpu or planned.cpu,
        memory_bytes=asked.memory_bytes or declared.memory or memory_bytes,
        gpu=declared.gpu or planned.gpu,
        gpu_kind=declared.gpu_kind or planned.gpu_kind,
    )


def default_plan(spec: TrainingJob) -> dict[str, RolePlan]:
    """One PS and one worker (within the spec's bounds), sizes as the user says."""
    return {
        role: RolePlan(
            replicas=min(max(count, getattr(spec.roles, role).min), getattr(spec.roles, role).max),
            cpu=getattr(spec.roles, role).cpu or 0.0,
            memory_bytes=getattr(spec.roles, role).memory or 0,
        )
        for role, count in DEFAULT_REPLICAS.items()
    }
