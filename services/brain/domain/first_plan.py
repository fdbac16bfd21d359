"""A job's first plan."""

from collections.abc import Sequence

from recmesh.plugins.planning import Resources
from services.brain.domain.defaults import default
from services.brain.domain.limits import clamped, fitted
from services.brain.domain.model import History, Job, Plan, RoleLimits, RolePlan
from services.brain.domain.warmstart import WarmStart, blended, most_similar

ALWAYS = ("ps", "worker")


def first_plan(
    job: Job, limits: Sequence[RoleLimits], free: Resources, past: Sequence[History], rule: WarmStart, *,
    quota: Resources | None = None,
) -> Plan:  # fmt: skip
    """From similar jobs where there are any, else the defaults; within limits, what is free, and the owner's quota.

    Roles that no past job had get the default. A role whose max is 0 gets none.
    """
    bounds = {each.role: each for each in limits}
    for role in ALWAYS:
        bounds.setdefault(role, RoleLimits(role))
    similar = most_similar(job, past, rule)
    chosen = [history for _, history in similar]
    roles: list[RolePlan] = []
    notes: list[str] = []
    for role, bound in bounds.items():
        if bound.max == 0 and not bound.pinned:
            continue
        plan, changes = clamped(blended(chosen, role, rule) or default(role), bound)
        if plan.replicas == 0:
            continue
        roles.append(plan)
        notes += changes
    bounded = fitted(roles, bounds, free, quota)
    notes += bounded.notes
    names = [f"{each.job_id} ({each.similarity:.2f}: {each.why})" for each, _ in reversed(similar)]
    origin = (
        f"from {len(names)} similar job(s): {', '.join(names)}"
        if names
        else f"defaults: none of {len(past)} past job(s) is similar enough (likeness ≥ {rule.s_min:g})"
    )
    return Plan(
        roles=bounded.roles,
        source="similar" if similar else "default",
        explanation=origin + (f". Changed: {'; '.join(notes)}" if notes else ""),
        similar=tuple(each for each, _ in reversed(similar)),
    )
