"""Sizes of a running job's processes by what they use (Primus, equations 2 and 3), where its user left them to brain.

The planner comes first: it knows what cores bring. What it leaves alone may still be larger than it is used, or at its
edge; that is seen over a window in which nothing was changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from services.brain.domain.executors import oom, vertical
from services.brain.domain.executors.vertical import Limits, Sizing, Use
from services.brain.domain.model import Job, Profile, RoleLimits, RolePlan

GIB = 1 << 30
LEAST_MEMORY = GIB // 4
"""A Python process with a framework does not start with less."""
MOST_MEMORY = 1024 * GIB
PLANNED = ("worker", "ps")
"""Roles of whose cores a planner knows what they bring."""
USUAL_DIM = 16
"""Of a job that does not tell."""
CHANGED = (vertical.Reason.GROW, vertical.Reason.SHRINK, vertical.Reason.FORECAST)


@dataclass(frozen=True, slots=True)
class Resizing:
    """Other sizes for the same numbers of processes."""

    roles: tuple[RolePlan, ...]
    why: str
    grows: bool
    """At least one size becomes larger."""


def resized(
    job: Job, now: Mapping[str, RolePlan], limits: Sequence[RoleLimits], profiles: Sequence[Profile], *,
    cores: Limits, window_s: float, at: float, grows: bool = True,
) -> Resizing | None:  # fmt: skip
    """None where nothing changes: too little was seen, the user fixed it, or the change would be for crumbs.

    cores: of one process, where the user named none. window_s: how long the present sizes must have been watched.
    grows: workers and servers may get more cores, too; where a model tells what these bring, a planner says so.
    """
    seen = _window(now, profiles, window_s=window_s, at=at)
    if not seen:
        return None
    bounds = {each.role: each for each in limits}
    roles, told, is_more = [], [], False
    for name, plan in now.items():
        bound = bounds.get(name, RoleLimits(name))
        most = cores.most if grows or name not in PLANNED else plan.cpu
        cpu, memory = _sizings(job, name, plan, bound, seen, cores=Limits(cores.least, most))
        new = plan
        if cpu is not None and cpu.reason in CHANGED and cpu.size != plan.cpu:
            new = replace(new, cpu=round(cpu.size, 3))
            told.append(f"{name} {plan.cpu:g} → {new.cpu:g} cores ({cpu.why})")
        if memory is not None and memory.reason in CHANGED and int(memory.size) != plan.memory_bytes:
            new = replace(new, memory_bytes=int(memory.size))
            told.append(f"{name} {plan.memory_bytes / GIB:.2f} → {new.memory_bytes / GIB:.2f} GiB ({memory.why})")
        is_more |= new.cpu > plan.cpu or new.memory_bytes > plan.memory_bytes
        roles.append(new)
    return Resizing(tuple(roles), "; ".join(told), is_more) if told else None


def _sizings(
    job: Job, name: str, plan: RolePlan, bound: RoleLimits, seen: Sequence[Profile], *, cores: Limits
) -> tuple[Sizing | None, Sizing | None]:
    uses = [use for each in seen if (use := each.use(name)) is not None]
    if len(uses) < len(seen) or any((use.has.replicas, use.has.cpu) != (plan.replicas, plan.cpu) for use in uses):
        return None, None       # it came, or has changed, within the window
    cpu = memory = None
    if plan.cpu and not bound.cpu:
        most = Limits(min(cores.least, plan.cpu), max(cores.most, plan.cpu))
        cpu = vertical.cpu(_use(plan.cpu, [use.cpu_max for use in uses]), most)
    if plan.memory_bytes and not bound.memory_bytes:
        foreseen = _foreseen(job, plan, seen) if name == "ps" else 0.0
        most = Limits(min(LEAST_MEMORY, plan.memory_bytes), MOST_MEMORY)
        memory = vertical.memory(
            _use(plan.memory_bytes, [use.memory_bytes for use in uses]), most, foreseen=foreseen
        )
    return cpu, memory


def _use(held: float, values: Sequence[float]) -> Use:
    known = [each for each in values if each > 0]
    return Use(held, _spread(known), max(known, default=0.0))


def _spread(values: Sequence[float]) -> tuple[float, ...]:
    """N+1 of them at about equal distances, the newest among them."""
    wanted = vertical.CPU.window + 1
    if len(values) <= wanted:
        return tuple(values)
    last = len(values) - 1
    return tuple(values[round(index * last / (wanted - 1))] for index in range(wanted))


def _window(
    now: Mapping[str, RolePlan], profiles: Sequence[Profile], *, window_s: float, at: float
) -> list[Profile]:
    """Profiles of the present configuration over the whole window, oldest first; none where it is younger."""
    worker, ps = now["worker"], now["ps"]
    shape = (worker.replicas, ps.replicas, worker.cpu, ps.cpu)
    alike = []
    for each in reversed(sorted(profiles, key=lambda one: one.at)):
        if (each.workers, each.ps, each.worker_cpu_limit, each.ps_cpu_limit) != shape:
            break
        alike.append(each)
        if each.at <= at - window_s:
            return alike[::-1]
    return []


def _foreseen(job: Job, plan: RolePlan, seen: Sequence[Profile]) -> float:
    """Bytes that the largest parameter server will want; rows are taken to be spread evenly, the rest is static."""
    dim, newest = job.dim or USUAL_DIM, seen[-1]
    table = oom.Table(dim=dim, state_values=dim)
    rows = tuple(oom.Rows(each.samples, each.rows // plan.replicas) for each in seen[:: max(1, len(seen) // 10)])
    static = max(0.0, newest.ps_memory_bytes - newest.rows / plan.replicas * table.row_bytes)
    server = oom.Server("ps", static, float(plan.memory_bytes), (oom.Growth(table, rows),))
    progress = oom.Progress(newest.samples, newest.samples + newest.remaining, newest.samples_per_s)
    return oom.size_for_all(oom.needs([server], progress))
