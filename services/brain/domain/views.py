"""Between what jobs tell and what planners see: a job's view, its overheads, and decisions as plans of roles."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from recmesh.plugins.planning import Allocation, Bounds, JobView, Overheads, Proposal, Resources, Throughput
from services.brain.domain.model import (
    KEPT,
    TAKEN_BACK,
    Change,
    Fit,
    FitPoint,
    FrontPoint,
    Job,
    Profile,
    RoleLimits,
    RolePlan,
)
from services.brain.domain.throughput.learn import learn, learn_kinds
from services.brain.domain.throughput.learned import Learned, Unknown
from services.brain.domain.throughput.observations import Observation, observations
from services.brain.domain.throughput.pool import pooled

UNLIMITED_CPU = 1.0
"""A process without a limit counts as one core, and keeps having none."""
PS_MARGIN = 1.5
"""Of what parameter servers use: their share after a change, rows to come, and the copies that snapshots make."""
MEMORY_ROOM = 1.2
"""Of what they use, parameter servers must have at least, where fewer of them hold the same rows."""
AVOID_S = 3600.0
"""A plan that was taken back is not proposed again for so long: what made it slow may still be there."""


ANY_GPU = "gpu"
"""The kind of an accelerator whose user names none."""

_Shape = tuple[int, float, int, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Cores that brain may choose for one process where the user named none."""

    least: float = 0.5
    most: float = 8.0


def learned(
    profiles: Sequence[Profile], *, now: float, prior: Throughput | None = None, prior_name: str = ""
) -> tuple[Throughput | None, Fit]:
    """A model of the job's speed on what it runs on now, or why there is none; and what people see of it.

    prior: what is known of a similar job. What the job showed on other hardware serves as well.
    """
    if not profiles:
        return None, Fit(unknown="it has sent no profile yet")
    newest = profiles[-1]
    alike = [each for each in profiles if each.is_synchronous == newest.is_synchronous]
    seen = [
        each
        for kind in sorted({profile.hardware for profile in alike})
        for each in observations((one for one in alike if one.hardware == kind), hardware=_kind_of(kind))
    ]
    here = [each for each in seen if each.hardware == _kind_of(newest.hardware)]
    if not here:
        return None, Fit(unknown="its speed was not steady yet")
    model = learn_kinds(seen, now=now, prior=prior)[_kind_of(newest.hardware)]
    if isinstance(model, Unknown):
        return None, Fit(unknown=model.reason, points=_measured(here))
    fit = fit_of(model)
    return model, replace(fit, notes=(*fit.notes, f"begun from {prior_name}")) if prior_name else fit


def of_similar(jobs: Sequence[Sequence[Profile]], like: Profile, *, now: float) -> Throughput | None:
    """A model of what several jobs of one model have shown together, of the batch, mode and hardware of `like`; None
    while that is too little."""
    def fits(each: Profile) -> bool:
        return (each.batch_size, each.is_synchronous, each.hardware) == (
            like.batch_size, like.is_synchronous, like.hardware
        )  # fmt: skip

    kind = _kind_of(like.hardware)
    seen = pooled([observations(filter(fits, profiles), hardware=kind) for profiles in jobs])
    model = learn(seen, now=now)
    return model if isinstance(model, Learned) else None


def _kind_of(hardware: str) -> str:
    """CPU has no name among accelerators."""
    return "" if hardware == "cpu" else hardware


def fit_of(model: Learned) -> Fit:
    """What was measured beside what the model says of it."""
    predicted = model.of_observations
    points = tuple(
        FitPoint(
            each.workers, each.ps, each.worker_cpu, each.ps_cpu, each.samples_per_s, float(rate), float(sd), each.at
        )
        for each, rate, sd in zip(model.observations, predicted.rate, predicted.log_sd, strict=True)
    )  # fmt: skip
    return Fit(model.form, model.error, dict(model.coefficients), points, (*model.unidentified, *model.notes))


def _measured(seen: Sequence[Observation]) -> tuple[FitPoint, ...]:
    return tuple(
        FitPoint(each.workers, each.ps, each.worker_cpu, each.ps_cpu, each.samples_per_s, 0.0, 0.0, each.at)
        for each in seen
    )


def view(
    job: Job,
    limits: Sequence[RoleLimits],
    now: Mapping[str, RolePlan],
    *,
    throughput: Throughput | None,
    rate: float,
    remaining: float,
    overheads: Overheads,
    sizes: Sizes,
    fit: Fit,
    ps_bytes: int = 0,
    front: tuple[Allocation, ...] = (),
) -> JobView:
    """What a planner sees of a job that trains. ps_bytes: what its largest parameter server uses."""
    bounds = {each.role: each for each in limits}
    worker, ps = now["worker"], now["ps"]
    return JobView(
        job_id=job.job_id,
        now=Allocation(
            worker.replicas, ps.replicas, worker.cpu or UNLIMITED_CPU, ps.cpu or UNLIMITED_CPU,
            worker.memory_bytes, ps.memory_bytes, worker.gpu, (worker.gpu_kind or ANY_GPU) if worker.gpu else "",
        ),
        bounds=Bounds(
            workers=_counts(bounds.get("worker"), worker), ps=_servers(bounds.get("ps"), ps, ps_bytes),
            worker_cpu=_cores(bounds.get("worker"), worker, sizes), ps_cpu=_cores(bounds.get("ps"), ps, sizes),
        ),
        throughput=throughput, rate=rate, remaining=remaining, deadline=job.deadline or None, owner=job.payer,
        priority=job.priority, overheads=overheads, front=front,
        ps_state_bytes=PS_MARGIN * ps_bytes * ps.replicas,
        measured=(
            *(Allocation(each.workers, each.ps, each.worker_cpu, each.ps_cpu) for each in fit.points),
            *(throughput.shown_before if isinstance(throughput, Learned) else ()),
        ),
    )  # fmt: skip


def _counts(bound: RoleLimits | None, plan: RolePlan) -> tuple[int, int]:
    if bound is None:
        return plan.replicas, plan.replicas
    if bound.pinned is not None:
        return bound.pinned, bound.pinned
    return max(1, bound.min), max(1, bound.min, bound.max)


def _servers(bound: RoleLimits | None, plan: RolePlan, used: int) -> tuple[int, int]:
    """Where the user named their memory, not fewer than can hold what all of them use now."""
    least, most = _counts(bound, plan)
    if bound is None or bound.pinned is not None or not bound.memory_bytes:
        return least, most
    needed = math.ceil(MEMORY_ROOM * used * plan.replicas / bound.memory_bytes) if used else plan.replicas
    return max(least, min(needed, plan.replicas, most)), most


def _cores(bound: RoleLimits | None, plan: RolePlan, sizes: Sizes) -> tuple[float, float]:
    fixed = bound.cpu if bound is not None and bound.cpu else 0.0
    if not plan.cpu:
        return UNLIMITED_CPU, UNLIMITED_CPU
    if fixed:
        return fixed, fixed
    return min(sizes.least, plan.cpu), max(sizes.most, plan.cpu)


def roles_of(
    allocation: Allocation, now: Mapping[str, RolePlan], limits: Sequence[RoleLimits]
) -> tuple[RolePlan, ...]:
    """The allocation as a plan. Processes without a limit keep having none, and the memory that a user named stays."""
    worker, ps = now["worker"], now["ps"]
    named = {each.role for each in limits if each.memory_bytes}
    return (
        replace(
            ps, replicas=allocation.ps, cpu=allocation.ps_cpu if ps.cpu else 0.0,
            memory_bytes=allocation.ps_memory_bytes if ps.memory_bytes and "ps" not in named else ps.memory_bytes,
        ),
        replace(worker, replicas=allocation.workers, cpu=allocation.worker_cpu if worker.cpu else 0.0),
    )  # fmt: skip


def overheads_of(changes: Sequence[Change], *, default: Overheads) -> Overheads:
    """Medians of what changes cost, by what they changed; a kind of which nothing is known keeps its default.

    One that was never carried out, or never measured, cost no training, and says nothing of what it would have cost.
    """
    found: dict[str, list[float]] = {"worker": [], "ps": [], "size": []}
    for change in changes:
        if change.verdict in (KEPT, TAKEN_BACK) and change.rate_after > 0:
            found[_changed(change)].append(change.overhead_s)
    return Overheads(
        workers_s=median(found["worker"] or [default.workers_s]),
        ps_s=median(found["ps"] or [default.ps_s]),
        resize_s=median(found["size"] or [default.resize_s]),
    )


def _changed(change: Change) -> str:
    """Of several, the one that costs most as a rule: slots that move."""
    before, after = ({plan.role: plan for plan in roles} for roles in (change.before, change.after))
    for role in ("ps", "worker"):
        if role in before and role in after and before[role].replicas != after[role].replicas:
            return role
    return "size"


def total(roles: Sequence[RolePlan]) -> Resources:
    """What all processes of a plan may use together."""
    gpus: dict[str, float] = {}
    for plan in roles:
        if plan.gpu:
            kind = plan.gpu_kind or ANY_GPU
            gpus[kind] = gpus.get(kind, 0.0) + plan.replicas * plan.gpu
    return Resources(
        sum(plan.replicas * plan.cpu for plan in roles), sum(plan.replicas * plan.memory_bytes for plan in roles), gpus
    )


def is_avoided(job_id: str, roles: Sequence[RolePlan], changes: Sequence[Change], *, now: float) -> bool:
    """These numbers and cores of all roles were tried lately, and taken back. Bytes vary a little from look to look."""
    alike = (each for each in changes if each.job_id == job_id and _cores_of(each.after) == _cores_of(roles))
    last = max(alike, key=lambda each: each.at, default=None)
    return last is not None and last.verdict == TAKEN_BACK and now - last.at <= AVOID_S


def _cores_of(roles: Sequence[RolePlan]) -> set[tuple[str, int, float]]:
    return {(plan.role, plan.replicas, plan.cpu) for plan in roles}


def _avoided(job_id: str, changes: Sequence[Change], *, now: float) -> set[_Shape]:
    """The newest verdict on an allocation counts. A change of other sizes alone says nothing of it."""
    avoided: set[_Shape] = set()
    for change in sorted(changes, key=lambda each: each.at):
        is_own = change.job_id == job_id and now - change.at <= AVOID_S
        if is_own and _shape(change.after) != _shape(change.before):
            (avoided.add if change.verdict == TAKEN_BACK else avoided.discard)(_shape(change.after))
    return avoided


def without_avoided(proposal: Proposal, changes: Sequence[Change], *, now: float) -> Proposal:
    """The proposal without what was tried lately and taken back."""
    avoided = _avoided(proposal.job.job_id, changes, now=now)
    left = tuple(each for each in proposal.candidates if _shape_of(each.allocation) not in avoided)
    if len(left) == len(proposal.candidates):
        return proposal
    return replace(proposal, candidates=left, why=proposal.why or "all that seems better was tried and taken back")


def within_bounds(proposal: Proposal) -> Proposal:
    """The proposal without what its job's user does not allow; says so, as its planner is not to propose that."""
    left = tuple(each for each in proposal.candidates if proposal.job.bounds.hold(each.allocation))
    beyond = len(proposal.candidates) - len(left)
    if not beyond:
        return proposal
    words = f"{beyond} of {len(proposal.candidates)} proposed sizes lie outside of the job's limits and are left out"
    return replace(proposal, candidates=left, why="; ".join(filter(None, (proposal.why, words))))


def _shape(roles: Sequence[RolePlan]) -> _Shape:
    by_role = {plan.role: plan for plan in roles}
    worker, ps = by_role.get("worker"), by_role.get("ps")
    if worker is None or ps is None:
        return (0, 0.0, 0, 0.0)
    return worker.replicas, worker.cpu or UNLIMITED_CPU, ps.replicas, ps.cpu or UNLIMITED_CPU


def _shape_of(allocation: Allocation) -> _Shape:
    return allocation.workers, allocation.worker_cpu, allocation.ps, allocation.ps_cpu


def front_of(proposal: Proposal, chosen: Allocation | None) -> tuple[FrontPoint, ...]:
    """What was considered, for people."""
    return tuple(
        FrontPoint(
            each.allocation.workers, each.allocation.ps, each.allocation.worker_cpu, each.allocation.ps_cpu,
            each.cost, each.gain, each.rate, each.reason.name, each.why, is_chosen=each.allocation == chosen,
        )
        for each in proposal.candidates
    )  # fmt: skip
