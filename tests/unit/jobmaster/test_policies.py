"""What users say of ends, of pods that are left, and of pods that are placed together."""

import asyncio
from typing import Any

import pytest

from recmesh.runtime.errors import InvalidArgument
from recmesh.spec.job import TrainingJob
from recmesh.spec.policies import PodFailurePolicy, PodGroupPolicy
from services.jobmaster.cluster import Group
from services.jobmaster.cluster.kubernetes.groups import group_object, membership
from services.jobmaster.domain import plan
from services.jobmaster.domain.exits import Exit, judge
from services.jobmaster.domain.failures import ruled, shell_code
from services.jobmaster.domain.job import Intent, RolePlan, RoleState
from tests.support.job_world import JobWorld, spec

RUNNING = RoleState(role="worker", index=0, stage="running")
DRAINING = RoleState(role="worker", index=0, stage="draining")


def rule(action: str, *codes: int, **more: Any) -> dict[str, Any]:
    return {"action": action, **({"on_exit_codes": {"values": list(codes)}} if codes else {}), **more}


NOT_42 = {"operator": "NotIn", "values": [42]}
DISRUPTED = [{"type": "DisruptionTarget"}]


@pytest.mark.parametrize(("rules", "exit", "action", "counts"), [
    ([], Exit(code=1), "", True),
    ([rule("Ignore", 1, 2)], Exit(code=1), "Ignore", False),
    ([rule("Ignore", 1, 2)], Exit(code=3), "", True),
    ([rule("FailJob", 137)], Exit(signal=9), "FailJob", True),
    ([rule("FailJob", 137)], Exit(signal=9, oom=True), "FailJob", True),
    ([rule("FailJob", on_exit_codes=NOT_42)], Exit(code=1), "FailJob", True),
    ([rule("FailJob", on_exit_codes=NOT_42)], Exit(code=42), "", True),
    ([rule("FailJob", on_exit_codes=NOT_42)], Exit(reason="nobody saw how"), "", True),
    ([rule("Ignore", 1, roles=["ps"])], Exit(code=1), "", True),
    ([rule("Ignore", 1, roles=["ps", "worker"])], Exit(code=1), "Ignore", False),
    ([rule("Count", 75)], Exit(code=75), "Count", True),
    ([], Exit(code=75), "", False),
    ([rule("Count", on_pod_conditions=DISRUPTED)], Exit(code=137, cause="evicted"), "Count", True),
    ([rule("Count", on_pod_conditions=DISRUPTED)], Exit(cause="deleted"), "", False),
    ([rule("Ignore", 1), rule("FailJob", 1)], Exit(code=1), "Ignore", False),
])
def test_the_first_rule_that_fits_decides(
    rules: list[dict[str, Any]], exit: Exit, action: str, counts: bool
) -> None:
    verdict = ruled(PodFailurePolicy.parse({"rules": rules}), "worker", exit, judge(RUNNING, exit))
    assert (verdict.action, verdict.counts) == (action, counts)


def test_ends_that_were_asked_for_are_nobodys_failure() -> None:
    policy = PodFailurePolicy.parse({"rules": [rule("FailJob", on_exit_codes={"operator": "NotIn", "values": [1]})]})
    for role, exit in ((DRAINING, Exit(signal=15)), (DRAINING, Exit(code=75)), (RUNNING, Exit(code=0))):
        assert ruled(policy, "worker", exit, judge(role, exit)).action == ""
    assert (shell_code(Exit(signal=15)), shell_code(Exit(code=3)), shell_code(Exit())) == (143, 3, None)


def test_a_mistake_that_counts_may_be_tried_again() -> None:
    exit = Exit(code=64)
    assert judge(RUNNING, exit).is_mistake
    policy = PodFailurePolicy.parse({"rules": [rule("Count", 64)]})
    assert not ruled(policy, "worker", exit, judge(RUNNING, exit)).is_mistake


@pytest.mark.parametrize(("given", "path"), [
    ({"rules": [{"action": "Ignore"}]}, "rules.0"),
    ({"rules": [rule("Ignore", 1, on_pod_conditions=DISRUPTED)]}, "rules.0"),
    ({"rules": [rule("Ignore", 0)]}, "rules.0.on_exit_codes.values.0"),
    ({"rules": [rule("Retry", 1)]}, "rules.0.action"),
])
def test_wrong_rules_are_named(given: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        PodFailurePolicy.parse(given)
    assert [item.path for item in refused.value.violations] == [path]


# -- lives -----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_an_exit_code_fails_the_job_at_once_or_never(world: JobWorld) -> None:
    world.shards.total = 2000
    policy = {"rules": [rule("FailJob", 42), rule("Ignore", 43, roles=["worker"])]}
    job_id = await world.submit(spec(backoff_limit=0, pod_failure_policy=policy))
    run = world.jobs.run_of(job_id)
    for attempt in range(1, 4):
        await world.until(lambda: world.phase(job_id) == "Running" and run.status.samples > 0)
        name = f"worker-0-{attempt}"
        await world.until(lambda name=name: name in world.cluster.started)      # type: ignore[misc]  # name is of this round
        world.cluster.kill(job_id, name, Exit(code=43))
    await world.until(lambda: "worker-0-4" in world.cluster.started)
    assert run.status.failures == 0
    world.cluster.kill(job_id, "ps-0-1", Exit(code=42, last_line="no licence"))
    await world.until_phase(job_id, "Failed")
    assert run.status.reason == "PodFailurePolicy"
    assert run.status.message == "ps 0: exit code 42: no licence (pod_failure_policy.rules.0)"
    assert world.cluster.alive(job_id) == []


@pytest.mark.asyncio
@pytest.mark.looptime
@pytest.mark.parametrize(("policy", "left"), [("Running", True), ("All", False), ("None", True)])
async def test_what_is_left_of_a_job_that_has_ended(world: JobWorld, policy: str, left: bool) -> None:
    job_id = await world.submit(spec(clean_pod_policy=policy))
    await world.until_phase(job_id, "Succeeded")
    await world.until(lambda: world.jobs.run_of(job_id).status.recorded)
    await asyncio.sleep(5)
    found = world.cluster.processes_of.get(job_id, {})
    assert bool(found) == left
    by_themselves = {process.exit.code for process in found.values() if process.exit is not None}
    assert (by_themselves == {0}) == (policy == "None")
    await world.jobs.delete(job_id)
    assert not world.cluster.processes_of.get(job_id)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_process_that_does_not_end_by_itself_is_ended(world: JobWorld) -> None:
    world.shards.total = 2000
    job_id = await world.submit(spec(clean_pod_policy="None"))
    run = world.jobs.run_of(job_id)
    await world.until(lambda: run.status.samples > 0)
    world.cluster.processes_of[job_id]["ps-0-1"].silent = True
    await world.jobs.stop(job_id, reason="", finish=False)
    await world.until_phase(job_id, "Stopped")
    exits = {name: process.exit for name, process in world.cluster.processes_of[job_id].items()}
    assert exits["ps-0-1"] == Exit(signal=15, reason="signal 15") and exits["ps-1-1"] == Exit(code=0)


# -- groups ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("roles", "count"), [
    ({}, 2),
    ({"ps": {"replicas": 2}, "worker": {"replicas": 4}}, 6),
    ({"worker": {"min": 2, "max": 6}}, 3),
    ({"worker": {"min": 0}}, 2),
    ({"data": {"min": 1, "max": 4}, "evaluator": {"max": 1}}, 3),
])
def test_a_group_is_what_a_job_cannot_begin_without(roles: dict[str, Any], count: int) -> None:
    job = TrainingJob.parse(spec(roles=roles))
    planned = {"ps": RolePlan(replicas=1), "worker": RolePlan(replicas=5)}
    assert plan.least(job, Intent(), planned) == count
    pinned = Intent(replicas={"worker": 5})
    workers = plan.pin(job, Intent(), "worker") or max(1, job.roles.worker.min)
    assert plan.least(job, pinned, planned) == count + 5 - workers


def test_objects_of_both_schedulers() -> None:
    names = {"coscheduling": "second", "volcano": "volcano"}
    group = Group(PodGroupPolicy.parse({"coscheduling": {"schedule_timeout_s": 30}}), 3)
    made = group_object(group, metadata={"name": "ads"})
    assert (made["apiVersion"], made["spec"]) == (
        "scheduling.x-k8s.io/v1alpha1", {"minMember": 3, "scheduleTimeoutSeconds": 30}
    )
    assert membership(group, name="ads", schedulers=names) == (
        {"labels": {"scheduling.x-k8s.io/pod-group": "ads"}}, {"schedulerName": "second"}
    )
    group = Group(PodGroupPolicy.parse({"volcano": {"queue": "ads", "priority_class": "high"}}), 3)
    made = group_object(group, metadata={"name": "ads"})
    assert (made["apiVersion"], made["spec"]) == (
        "scheduling.volcano.sh/v1beta1", {"minMember": 3, "queue": "ads", "priorityClassName": "high"}
    )
    assert membership(group, name="ads", schedulers=names) == (
        {"annotations": {"scheduling.k8s.io/group-name": "ads"}}, {"schedulerName": "volcano"}
    )
    wrongs: list[dict[str, Any]] = [{}, {"coscheduling": {}, "volcano": {}}]
    for wrong in wrongs:
        with pytest.raises(InvalidArgument, match="coscheduling or volcano"):
            PodGroupPolicy.parse(wrong)
