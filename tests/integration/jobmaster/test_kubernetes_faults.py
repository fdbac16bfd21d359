"""Pods when things go wrong around them, with a real API server and simulated nodes: an image that cannot be had, two
controllers at once, an API server that goes away and comes back, a scheduler for groups."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import FailedPrecondition
from recmesh.runtime.kube import PODS
from recmesh.spec.policies import PodGroupPolicy
from services.jobmaster.cluster import Group
from services.jobmaster.cluster.kubernetes.groups import KINDS
from tests.integration.jobmaster.test_kubernetes import World, fate, order, training_job, world, world_of

__all__ = ["world"]

pytestmark = [pytest.mark.asyncio, pytest.mark.integration]

PODS_AT_ONCE = [f"worker-{index}-1" for index in range(10)]
GROUPS = Path(__file__).with_name("pod-groups.yaml")


async def names(world: World) -> Counter[str]:
    found, _ = await world.client.list(PODS, namespace=world.namespace)
    return Counter(pod["metadata"]["name"] for pod in found)


async def test_an_image_that_cannot_be_had_is_told_in_the_kubelets_words(world: World) -> None:
    await world.controller.start(order(annotations={"test.recmesh.dev/stuck": "true"}))
    state = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.local/none:1"'}}
    container = {"name": "role", "image": "registry.local/none:1", "imageID": "", "ready": False, "restartCount": 0}
    status = {"containerStatuses": [{**container, "state": state}]}
    await world.client.patch(
        PODS, "ads-worker-0-1", {"status": status}, namespace=world.namespace, subresource="status"
    )
    process = await world.until(lambda process: bool(process.waiting))
    assert process.waiting == 'ImagePullBackOff: Back-off pulling image "registry.local/none:1"'
    assert not process.begun and process.exit is None


async def test_two_controllers_at_once_make_each_pod_once_and_both_see_its_end(world: World) -> None:
    async with world_of(world.cluster, world.namespace) as second:
        both = (world.controller, second.controller)
        await asyncio.gather(*(each.start(order(name)) for name in PODS_AT_ONCE for each in both))
        assert await names(world) == Counter(f"ads-{name}" for name in PODS_AT_ONCE)
        for each in (world, second):
            await each.until(lambda process: process.begun, "worker-3-1")
        await asyncio.gather(*(each.stop("ads", "worker-3-1", grace_s=0) for each in both))
        ends = [await each.end("worker-3-1") for each in (world, second)]
        assert {end.signal for end in ends} == {9}
        rest = sorted(process.name for process in await second.controller.processes("ads") if process.exit is None)
        assert rest == sorted({*PODS_AT_ONCE} - {"worker-3-1"})


async def test_an_api_server_that_goes_away_costs_no_pod_and_no_end(world: World) -> None:
    await world.controller.start(order("ps-0-1"))
    await world.until(lambda process: process.begun, "ps-0-1")
    world.cluster.control("kill", "kube-apiserver")
    starting = [asyncio.create_task(world.controller.start(order(name))) for name in PODS_AT_ONCE[:3]]
    lasting = asyncio.create_task(world.controller.start(order("worker-9-1", annotations=fate("OOMKilled"))))
    await asyncio.sleep(0.5)
    assert not any(task.done() for task in starting), "a start waits for the API server"
    assert (await world.one("ps-0-1")).exit is None, "nobody was seen to end"
    world.cluster.control("start", "kube-apiserver")
    await asyncio.gather(*starting, lasting)
    assert (await world.end("worker-9-1")).oom
    assert (await names(world)).most_common(1)[0][1] == 1
    for name in PODS_AT_ONCE[:3]:
        await world.until(lambda process: process.begun, name)
    world.cluster.kubectl("delete", "pod", "ads-ps-0-1", "-n", world.namespace, "--wait=false")
    assert (await world.end("ps-0-1")).cause == "deleted"


POLICIES: dict[str, dict[str, Any]] = {
    "coscheduling": {"coscheduling": {"schedule_timeout_s": 30}}, "volcano": {"volcano": {"priority_class": "high"}},
}
SPECS: dict[str, dict[str, Any]] = {
    "coscheduling": {"scheduleTimeoutSeconds": 30}, "volcano": {"priorityClassName": "high", "queue": "default"},
}
"""As the API server has them, with the defaults of their schemas."""


async def test_pods_that_are_placed_together_have_a_group_of_their_scheduler(world: World) -> None:
    world.cluster.kubectl("delete", "--ignore-not-found", "-f", str(GROUPS))
    gang = {name: PodGroupPolicy.parse(policy) for name, policy in POLICIES.items()}
    with pytest.raises(FailedPrecondition, match=r"no PodGroup of scheduling.volcano.sh"):
        await world.controller.start(order(group=Group(gang["volcano"], 3)))
    world.cluster.kubectl("apply", "-f", str(GROUPS))
    world.cluster.kubectl("wait", "--for=condition=Established", "--timeout=20s", "-f", str(GROUPS))
    owner = training_job(world, "x")
    try:
        for scheduler, policy in gang.items():
            kind, job_id = KINDS[scheduler], f"job-{scheduler}"
            world.client.calls.clear()
            for least, name in ((3, "ps-0-1"), (3, "worker-0-1"), (2, "worker-1-1")):
                made = order(name, group=Group(policy, least), owner=owner)
                await world.controller.start(replace(made, job_id=job_id))
                found = await world.client.get(kind, job_id, namespace=world.namespace)
                assert found["spec"] == SPECS[scheduler] | {"minMember": least}
            owners = (await world.client.get(kind, job_id, namespace=world.namespace))["metadata"]["ownerReferences"]
            assert [(each["kind"], each["uid"]) for each in owners] == [("TrainingJob", owner.uid)]
            assert world.client.calls["apply", "podgroups"] == 2, "once for each size of the group"
            pod = await world.client.get(PODS, f"{job_id}-ps-0-1", namespace=world.namespace)
            told = {**pod["metadata"].get("annotations", {}), **pod["metadata"]["labels"]}
            mark = {"coscheduling": "scheduling.x-k8s.io/pod-group", "volcano": "scheduling.k8s.io/group-name"}
            assert told[mark[scheduler]] == job_id
            assert pod["spec"]["schedulerName"] == world.settings.schedulers[scheduler]
        async with world_of(world.cluster, world.namespace) as later:       # it has not made the groups, and ends them
            for scheduler in gang:
                job_id = f"job-{scheduler}"
                for process in await later.controller.processes(job_id):
                    await later.controller.stop(job_id, process.name, grace_s=0)
                    await later.until(lambda process: process.exit is not None, process.name, job_id=job_id)
                await later.controller.forget(job_id)
                assert (await world.client.list(KINDS[scheduler], namespace=world.namespace))[0] == []
    finally:
        world.cluster.kubectl("delete", "--ignore-not-found", "-f", str(GROUPS))

