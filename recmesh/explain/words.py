"""Short texts for roles, configurations, speeds and moments."""

from collections.abc import Sequence
from datetime import UTC, datetime

from recmesh.client.explanations import FitPoint, FrontPoint, Plan, RolePlan
from recmesh.runtime.ops import text


def utc(at: float) -> str:
    """Month, day and time of day in UTC; empty for 0."""
    return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M:%S") if at else ""


def rate(samples_per_s: float) -> str:
    """`1,235`, `12.3`; empty for 0, which is "not measured"."""
    if not samples_per_s:
        return ""
    return f"{samples_per_s:,.0f}" if abs(samples_per_s) >= 100 else f"{samples_per_s:.3g}"


def shape(roles: Sequence[RolePlan]) -> str:
    """`2 worker × 1 CPU 2.0 GiB, ...`; what is without a limit is left out."""
    return ", ".join(" ".join(filter(None, [f"{each.replicas} {each.role}", _size(each)])) for each in roles)


def _size(role: RolePlan) -> str:
    gpu = f"{role.gpu:g} {role.gpu_kind or 'GPU'}" if role.gpu else ""
    parts = [f"{role.cpu:g} CPU" if role.cpu else "", gpu, text.size(role.memory_bytes) if role.memory_bytes else ""]
    return "× " + " ".join(filter(None, parts)) if any(parts) else ""


def configuration(point: FitPoint | FrontPoint) -> str:
    """`4 × 2 CPU + 2 PS × 1 CPU`"""
    return f"{point.workers} × {point.worker_cpu:g} CPU + {point.ps} PS × {point.ps_cpu:g} CPU"


def difference(before: Sequence[RolePlan], after: Sequence[RolePlan]) -> str:
    """What changes: `worker 2 → 3`, `ps 1 CPU → 2 CPU`; empty when nothing does, or nothing is chosen."""
    old = {each.role: each for each in before}
    parts = []
    for role in after:
        was = old.get(role.role, RolePlan(role=role.role))
        if was.replicas != role.replicas:
            parts.append(f"{role.role} {was.replicas} → {role.replicas}")
        if _size(was) != _size(role) and was.replicas:
            parts.append(f"{role.role} {_size(was)[2:] or 'no limit'} → {_size(role)[2:] or 'no limit'}")
    return ", ".join(parts)


def source(plan: Plan) -> str:
    """Where a plan came from, in words."""
    known = {"default": "defaults", "similar": "similar past jobs"}
    return known.get(plan.source, f"the planner {plan.source}")


def step(step_s: dict[str, float]) -> str:
    """`compute 80 %, pull 12 %, ...`, the longest first; empty when nothing is known."""
    total = sum(step_s.values())
    longest = sorted(step_s, key=lambda name: step_s[name], reverse=True)
    return ", ".join(f"{name} {step_s[name] / total:.0%}" for name in longest) if total > 0 else ""
