"""What the user allows and what is free bound every plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from recmesh.plugins.planning import Resources
from services.brain.domain.model import RoleLimits, RolePlan
from services.brain.domain.views import total

SHRINK_FIRST = ("evaluator", "data", "worker", "ps")
"""Who gives up replicas first when too little is free; PSes last, as fewer of them hold the same rows."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A plan inside its bounds, and what was changed for it."""

    roles: tuple[RolePlan, ...]
    notes: tuple[str, ...] = ()


def clamped(plan: RolePlan, limits: RoleLimits) -> tuple[RolePlan, tuple[str, ...]]:
    """Counts between min and max, or pinned; the user's sizes as they are."""
    notes: list[str] = []
    replicas = plan.replicas
    if limits.pinned is not None:
        if replicas != limits.pinned:
            notes.append(f"{plan.role} pinned to {limits.pinned}")
        replicas = limits.pinned
    elif not limits.min <= replicas <= limits.max:
        replicas = min(max(replicas, limits.min), limits.max)
        notes.append(f"{plan.role} {plan.replicas} → {replicas} (limits {limits.min}..{limits.max})")
    if limits.cpu:
        notes += [f"{plan.role} CPU {limits.cpu:g} as asked"] if limits.cpu != plan.cpu else []
    bounded = replace(
        plan,
        replicas=replicas,
        cpu=limits.cpu or plan.cpu,
        memory_bytes=limits.memory_bytes or plan.memory_bytes,
        gpu=limits.gpu,
        gpu_kind=limits.gpu_kind if limits.gpu else "",
    )
    return bounded, tuple(notes)


def fitted(
    roles: Sequence[RolePlan], limits: Mapping[str, RoleLimits], free: Resources, quota: Resources | None = None
) -> Bounded:
    """Fewer replicas until the plan fits what is free, and what is left of the quota; pins and minima always hold, and
    so do sizes.

    What is free now is a moment, and a size is for the job's life (and for the jobs that are planned like it): cores
    that are taken are shared with whoever has them. When even the least plan is too large it is returned, with a note
    that says so: the job starts all the same, and is slower or, where memory does not suffice, killed for it and
    started again.
    """
    current = {plan.role: plan for plan in roles}
    rooms = {"what is free": free} | ({"what is left of the owner's quota": quota} if quota is not None else {})
    notes: list[str] = []

    def over() -> tuple[str, Resources]:
        """Of what there is too little, and by how much."""
        wanted = total(tuple(current.values()))
        for name, room in rooms.items():
            if not wanted.within(room):
                return name, wanted.plus(room, -1.0)
        return "", Resources()

    for role in sorted(current, key=_shrink_order):
        plan, bound = current[role], limits.get(role, RoleLimits(role))
        least = plan.replicas if bound.pinned is not None else min(bound.min, plan.replicas)
        name, short = over()
        whose = name
        while name and current[role].replicas > least and _would_help(plan, short):
            current[role] = replace(current[role], replicas=current[role].replicas - 1)
            whose, (name, short) = name, over()
        if current[role].replicas != plan.replicas:
            notes.append(f"{role} {plan.replicas} → {current[role].replicas} ({whose})")
    if over()[0] == "what is free":
        notes.append("more than what is free: it starts all the same, and may be slow or run out of memory")
    return Bounded(tuple(current[plan.role] for plan in roles), tuple(notes))


def _would_help(plan: RolePlan, short: Resources) -> bool:
    """Whether one process less frees any of what is lacking."""
    one = total([replace(plan, replicas=1)])
    return (
        (short.cpu > 0 and one.cpu > 0)
        or (short.memory_bytes > 0 and one.memory_bytes > 0)
        or any(short.gpus.get(kind, 0.0) > 0 for kind, many in one.gpus.items() if many)
    )


def _shrink_order(role: str) -> tuple[int, str]:
    return (SHRINK_FIRST.index(role) if role in SHRINK_FIRST else 0, role)
