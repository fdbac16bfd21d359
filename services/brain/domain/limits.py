"""What the user allows and what is free bound every plan."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from services.brain.domain.model import Free, RoleLimits, RolePlan

LEAST_CPU = 0.1
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
    )
    return bounded, tuple(notes)


def fitted(roles: Sequence[RolePlan], limits: Mapping[str, RoleLimits], free: Free) -> Bounded:
    """Fewer replicas, then smaller ones, until the plan fits what is free; pins and minima always hold.

    When even the least plan is too large it is returned, with a note that says so: the job starts
    all the same, and is slower or, where memory does not suffice, killed for it and started again.
    """
    current = {plan.role: plan for plan in roles}
    notes: list[str] = []

    def over() -> bool:
        cpu = sum(plan.replicas * plan.cpu for plan in current.values())
        memory = sum(plan.replicas * plan.memory_bytes for plan in current.values())
        return (free.cpu is not None and cpu > free.cpu + 1e-9) or (
            free.memory_bytes is not None and memory > free.memory_bytes
        )

    for role in sorted(current, key=_shrink_order):
        plan, bound = current[role], limits.get(role, RoleLimits(role))
        least = plan.replicas if bound.pinned is not None else min(bound.min, plan.replicas)
        while over() and current[role].replicas > least:
            current[role] = replace(current[role], replicas=current[role].replicas - 1)
        if current[role].replicas != plan.replicas:
            notes.append(f"{role} {plan.replicas} → {current[role].replicas} (what is free)")
    if over() and free.cpu is not None:
        notes += _share_cpu(current, limits, free.cpu)
    if over():
        notes.append("more than what is free: it starts all the same, and may be slow or run out of memory")
    return Bounded(tuple(current[plan.role] for plan in roles), tuple(notes))


def _share_cpu(current: dict[str, RolePlan], limits: Mapping[str, RoleLimits], free_cpu: float) -> list[str]:
    """Scale the CPU of roles whose size is brain's to choose."""
    mine = [role for role in current if not limits.get(role, RoleLimits(role)).cpu]
    fixed = sum(plan.replicas * plan.cpu for role, plan in current.items() if role not in mine)
    wanted = sum(current[role].replicas * current[role].cpu for role in mine)
    if wanted <= 0:
        return []
    factor = min(1.0, max(0.0, (free_cpu - fixed) / wanted))
    notes = []
    for role in mine:
        old = current[role]
        cpu = max(LEAST_CPU, math.floor(old.cpu * factor * 10) / 10)
        if cpu < old.cpu:
            current[role] = replace(old, cpu=cpu)
            notes.append(f"{role} CPU {old.cpu:g} → {cpu:g} (what is free)")
    return notes


def _shrink_order(role: str) -> tuple[int, str]:
    return (SHRINK_FIRST.index(role) if role in SHRINK_FIRST else 0, role)
