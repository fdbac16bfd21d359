"""Cores and memory that follow use, where the user left them to brain."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from services.brain.domain.executors.vertical import Limits
from services.brain.domain.model import Job, Profile, RoleLimits, RolePlan, RoleUse
from services.brain.domain.resizing import Resizing, resized

GIB = 1 << 30
MIB = 1 << 20
NOW: Mapping[str, RolePlan] = {"worker": RolePlan("worker", 4, 4.0, 8 * GIB), "ps": RolePlan("ps", 2, 2.0, 8 * GIB)}
FREE = [RoleLimits("worker", 1, 8), RoleLimits("ps", 1, 4)]


def watched(*, seconds: float = 700.0, now: Mapping[str, RolePlan] = NOW, **used: Any) -> list[Profile]:
    worker, ps = now["worker"], now["ps"]
    uses = {"worker_cpu_max": 3.4, "ps_cpu_max": 1.7, "worker_memory_bytes": 6 * GIB, "ps_memory_bytes": 6 * GIB} | {
        name: value for name, value in used.items() if name != "roles"
    }
    like = Profile(
        "job", 0.0, worker.replicas, ps.replicas, worker_cpu_limit=worker.cpu, ps_cpu_limit=ps.cpu,
        samples_per_s=1000.0, ps_memory_bytes=uses["ps_memory_bytes"], roles=(
            RoleUse(worker, uses["worker_cpu_max"], uses["worker_memory_bytes"]),
            RoleUse(ps, uses["ps_cpu_max"], uses["ps_memory_bytes"]), *used.get("roles", ()),
        ),
    )  # fmt: skip
    return [replace(like, at=5.0 * step, samples=5000 * step) for step in range(int(seconds / 5.0) + 1)]


def size(
    profiles: Sequence[Profile], *, limits: Sequence[RoleLimits] = FREE, job: Job | None = None
) -> Resizing | None:
    found = resized(
        job or Job("job"), NOW, limits, profiles, cores=Limits(0.5, 8.0), window_s=600.0, at=profiles[-1].at
    )
    assert found is None or found.why
    return found


def role(found: Resizing | None, name: str) -> RolePlan:
    assert found is not None
    return next(plan for plan in found.roles if plan.role == name)


def test_what_is_used_as_it_should_be_stays() -> None:
    assert size(watched()) is None


def test_what_is_hardly_used_is_given_back_and_counts_stay() -> None:
    found = size(watched(worker_cpu_max=1.0, worker_memory_bytes=GIB))
    worker = role(found, "worker")
    assert worker.cpu == pytest.approx(1.2) and GIB < worker.memory_bytes < 1.5 * GIB and worker.replicas == 4
    assert role(found, "ps") == NOW["ps"] and found is not None and not found.grows


def test_what_is_used_to_its_edge_grows() -> None:
    found = size(watched(worker_cpu_max=4.0, ps_memory_bytes=int(7.9 * GIB)))
    assert role(found, "worker").cpu > 4.4 and role(found, "ps").memory_bytes > 9 * GIB
    assert found is not None and found.grows


def test_memory_of_servers_grows_before_their_rows_need_it() -> None:
    rows = [replace(each, rows=each.samples * 4, remaining=10**9) for each in watched(ps_memory_bytes=2 * GIB)]
    found = size(rows, job=Job("job", dim=16))
    assert role(found, "ps").memory_bytes > 8 * GIB


def test_what_the_user_named_stays() -> None:
    named = [RoleLimits("worker", 1, 8, cpu=4.0, memory_bytes=8 * GIB), *FREE[1:]]
    assert size(watched(worker_cpu_max=1.0, worker_memory_bytes=GIB), limits=named) is None


def test_nothing_is_said_before_a_whole_window_of_the_present_sizes() -> None:
    assert size(watched(seconds=500.0, worker_cpu_max=1.0)) is None
    before = {**NOW, "worker": replace(NOW["worker"], replicas=3)}
    changed = [*watched(now=before, worker_cpu_max=1.0)[:60], *watched(worker_cpu_max=1.0)[60:]]
    assert size(changed) is None


def test_any_role_is_sized_by_what_it_uses() -> None:
    """Executors get more cores also where a planner says what workers' and servers' bring."""
    now = {**NOW, "data": RolePlan("data", 3, 2.0, 2 * GIB), "evaluator": RolePlan("evaluator", 1, 4.0, 8 * GIB)}
    others = (RoleUse(now["data"], 2.0, int(1.6 * GIB)), RoleUse(now["evaluator"], 0.6, GIB))

    def found(**changed: Any) -> Resizing | None:
        return resized(
            Job("job"), now, [*FREE, RoleLimits("data", 1, 8)], watched(worker_cpu_max=4.0, roles=others, **changed),
            cores=Limits(0.5, 8.0), window_s=600.0, at=700.0, grows=False,
        )  # fmt: skip

    assert role(found(), "data").cpu == pytest.approx(2.3) and role(found(), "data").replicas == 3
    evaluator = role(found(), "evaluator")
    assert evaluator.cpu == pytest.approx(0.7) and evaluator.memory_bytes == pytest.approx(1.2 * GIB, abs=MIB)
    assert role(found(), "worker") == NOW["worker"]


def test_a_role_whose_number_has_just_changed_is_left_alone() -> None:
    now = {**NOW, "data": RolePlan("data", 4, 1.0, 2 * GIB)}
    before = RoleUse(replace(now["data"], replicas=3), 1.0, GIB // 4)
    seen = watched(roles=(before,))
    assert resized(Job("job"), now, FREE, seen, cores=Limits(0.5, 8.0), window_s=600.0, at=700.0) is None
    fresh = [*watched()[:-3], *watched(roles=(RoleUse(now["data"], 0.1, GIB // 4),))[-3:]]
    assert resized(Job("job"), now, FREE, fresh, cores=Limits(0.5, 8.0), window_s=600.0, at=700.0) is None
