"""What role pods are, and how their ends are told apart, with a real API server and simulated nodes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from recmesh.runtime.errors import InvalidArgument, Unavailable
from recmesh.runtime.kube import PODS, SECRETS, Access, KubeClient, connect
from services.jobmaster.cluster import Owner, RoleProcess, StartOrder
from services.jobmaster.cluster.kubernetes import KubernetesController, PodSettings
from services.jobmaster.domain.exits import Exit, judge
from services.jobmaster.domain.job import RoleState
from tests.support.kube import KubeCluster

pytestmark = [pytest.mark.asyncio, pytest.mark.integration]

GIB = 1 << 30


@dataclass
class World:
    cluster: KubeCluster
    namespace: str
    client: KubeClient
    controller: KubernetesController
    settings: PodSettings

    async def one(self, name: str = "worker-0-1", job_id: str = "ads") -> RoleProcess:
        return next(process for process in await self.controller.processes(job_id) if process.name == name)

    async def until(
        self, condition: Callable[[RoleProcess], bool], name: str = "worker-0-1", *, job_id: str = "ads"
    ) -> RoleProcess:
        async with asyncio.timeout(120):         # the garbage collector looks for new kinds every 30 s
            while True:
                process = await self.one(name, job_id)
                if condition(process):
                    return process
                await asyncio.sleep(0.02)

    async def end(self, name: str = "worker-0-1") -> Exit:
        end = (await self.until(lambda process: process.exit is not None, name)).exit
        assert end is not None
        return end

    async def pod(self, name: str = "worker-0-1") -> dict[str, Any]:
        return await self.client.get(PODS, f"ads-{name}", namespace=self.namespace)


@asynccontextmanager
async def world_of(cluster: KubeCluster, namespace: str = "") -> AsyncIterator[World]:
    namespace = namespace or cluster.namespace()
    client = await connect(Access(cluster.kubeconfig), field_manager="test", calls_per_s=200, burst=400)
    settings = PodSettings(
        namespace=namespace, image="registry.local/pause:1", grace_s=30, resize_wait_s=1.0, force_after_s=0.5
    )
    controller = KubernetesController(client, settings)
    try:
        await controller.find_again()
        yield World(cluster, namespace, client, controller, settings)
    finally:
        await controller.stop_watching()
        await client.close()


@pytest_asyncio.fixture
async def world(simulated_cluster: KubeCluster) -> AsyncIterator[World]:
    async with world_of(simulated_cluster) as made:
        yield made


def order(name: str = "worker-0-1", *, annotations: dict[str, str] | None = None, **more: Any) -> StartOrder:
    role, index, _ = name.split("-")
    template = {"metadata": {"annotations": annotations}} if annotations else {}
    return StartOrder("ads", name, role, int(index), {"RECMESH_ROLE": role}, **({"template": template} | more))


def fate(which: str) -> dict[str, str]:
    return {"test.recmesh.dev/fate": which}


ROLE = RoleState(role="worker", index=0, stage="running")


async def test_the_kernels_kill_for_memory_is_told_from_an_eviction(world: World) -> None:
    await world.controller.start(order("worker-0-1", annotations=fate("OOMKilled")))
    await world.controller.start(order("worker-1-1", annotations=fate("Evicted")))
    killed, evicted = await world.end("worker-0-1"), await world.end("worker-1-1")
    assert (killed.oom, killed.signal, killed.cause) == (True, 9, "")
    assert judge(ROLE, killed).kind == "oom"
    assert (evicted.oom, evicted.cause) == (False, "evicted")
    assert "The node was low on resource" in evicted.reason
    verdict = judge(ROLE, evicted)
    assert (verdict.kind, verdict.counts) == ("retry", False)


async def test_a_pod_that_others_delete_is_no_failure_of_the_job(world: World) -> None:
    await world.controller.start(order())
    await world.until(lambda process: process.begun)
    await world.client.delete(PODS, "ads-worker-0-1", namespace=world.namespace)
    end = await world.end()
    assert end.cause == "deleted"
    assert judge(ROLE, end).kind == "retry"


async def test_a_pod_that_makes_room_for_another_is_preempted(world: World) -> None:
    value = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    name = f"urgent-{world.namespace}"
    world.cluster.kubectl("create", "-f", "-", body=value | {"metadata": {"name": name}})
    for index in range(3):      # each fills one of the three nodes
        await world.controller.start(order(f"worker-{index}-1", cpu=7.0))
        await world.until(lambda process: process.begun, f"worker-{index}-1")
    urgent = {"spec": {"priorityClassName": name}}
    await world.controller.start(order("ps-0-1", cpu=6.0, template=urgent))
    await world.until(lambda process: process.begun, "ps-0-1")
    ends = [process.exit for process in await world.controller.processes("ads") if process.exit is not None]
    assert [end.cause for end in ends] == ["preempted"]
    assert "preempt" in ends[0].reason.lower()


async def test_a_pod_that_no_node_takes_says_so_in_the_schedulers_words(world: World) -> None:
    changed: list[str] = []
    world.controller.watch(changed.append)
    await world.controller.start(order(cpu=1000.0))
    process = await world.until(lambda process: bool(process.waiting))
    assert not process.begun and process.exit is None
    assert process.waiting.startswith("unschedulable: 0/") and "Insufficient cpu" in process.waiting
    assert "ads" in changed
    await world.controller.stop("ads", "worker-0-1", grace_s=0)
    assert (await world.end()).signal == 9


async def test_what_the_server_refuses_names_the_field(world: World) -> None:
    wrong = {"spec": {"tolerations": [{"key": "a", "operator": "Equals"}]}}
    with pytest.raises(InvalidArgument) as raised:
        await world.controller.start(order(template=wrong))
    assert any("tolerations" in str(violation) for violation in raised.value.violations)


async def test_a_pod_is_as_a_restricted_namespace_wants_it(world: World) -> None:
    world.cluster.kubectl("label", "namespace", world.namespace, "pod-security.kubernetes.io/enforce=restricted")
    template = {"spec": {
        "nodeSelector": {"type": "kwok"}, "volumes": [{"name": "data", "emptyDir": {}}],
        "containers": [{
            "name": "role", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "env": [{"name": "EXTRA", "value": "1"}],
        }],
    }}  # fmt: skip
    made = order(cpu=0.5, memory_bytes=GIB, gpu=1.0, template=template)
    env = {"RECMESH_TOKEN": "hidden", "PLAIN": "$(no)"}
    secret = replace(made, env=env, secrets=frozenset({"RECMESH_TOKEN", "no"}))
    await world.controller.start(secret)
    await world.until(lambda process: process.begun)
    pod = await world.pod()
    (container,) = pod["spec"]["containers"]
    amounts = {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "1"}
    assert container["resources"] == {"limits": amounts, "requests": amounts}
    assert pod["spec"]["restartPolicy"] == "Never"
    assert {item["name"] for item in pod["spec"]["volumes"]} >= {"work", "data"}
    given = {item["name"]: item for item in container["env"]}
    assert (given["EXTRA"]["value"], given["PLAIN"]["value"]) == ("1", "$$(no)")
    assert given["RECMESH_PS_ADDRESS"]["value"] == "$(RECMESH_POD_IP):0"
    assert "hidden" not in str(pod)
    held, _ = await world.client.list(SECRETS, namespace=world.namespace)
    assert given["RECMESH_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == held[0]["metadata"]["name"]
    free = await world.controller.capacity()
    assert free.gpus["gpu"] <= 5.0
    await world.controller.stop("ads", "worker-0-1", grace_s=0)
    await world.end()
    await world.controller.forget("ads")
    assert (await world.client.list(SECRETS, namespace=world.namespace))[0] == []
    assert (await world.client.list(PODS, namespace=world.namespace))[0] == []


def training_job(world: World, name: str) -> Owner:
    """The object of a job, of any content. (Pods that name an owner which is not there are deleted as garbage.)"""
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "trainingjobs.recmesh.dev"},
        "spec": {
            "group": "recmesh.dev", "scope": "Namespaced", "names": {"plural": "trainingjobs", "kind": "TrainingJob"},
            "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}],
        },
    }
    world.cluster.kubectl("apply", "-f", "-", body=definition)
    world.cluster.kubectl("wait", "--for=condition=Established", "crd/trainingjobs.recmesh.dev", "--timeout=20s")
    job = {"apiVersion": "recmesh.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name}}
    world.cluster.kubectl("create", "-n", world.namespace, "-f", "-", body=job)
    made = world.cluster.get("trainingjob", name, "-n", world.namespace)["metadata"]
    return Owner(world.namespace, made["name"], made["uid"])


@pytest.mark.long
async def test_pods_go_with_the_object_of_their_job(world: World) -> None:
    named = training_job(world, "ads")
    await world.controller.start(order())
    (owner,) = (await world.pod())["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("TrainingJob", "ads", True)
    assert owner["uid"] == named.uid
    other = replace(order(), job_id="other", owner=named)
    await world.controller.start(other)
    away = replace(order(), job_id="away", owner=replace(named, namespace="elsewhere"))
    await world.controller.start(away)
    world.cluster.kubectl("delete", "-n", world.namespace, "trainingjob", "ads")
    assert (await world.end()).cause == "deleted"
    pods, _ = await world.client.list(PODS, namespace=world.namespace)
    assert "ads-worker-0-1" not in {pod["metadata"]["name"] for pod in pods}
    await world.until(lambda process: process.exit is not None, job_id="other")
    assert (await world.controller.processes("away"))[0].exit is None


async def test_a_size_that_no_node_confirms_is_taken_back(world: World) -> None:
    await world.controller.start(order(cpu=1.0, memory_bytes=GIB))
    await world.until(lambda process: process.begun)
    assert await world.controller.resize("ads", "worker-0-1", cpu=None, memory_bytes=GIB), "it has that size"
    assert not await world.controller.resize("ads", "worker-0-1", cpu=2.0, memory_bytes=2 * GIB)
    (container,) = (await world.pod())["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}
    assert not await world.controller.resize("ads", "worker-0-1", cpu=0.0, memory_bytes=GIB), "a limit is for life"


async def test_a_size_that_its_node_finds_infeasible_is_taken_back_at_once(world: World) -> None:
    await world.controller.start(order(cpu=1.0, memory_bytes=GIB))
    await world.until(lambda process: process.begun)
    told = "Node didn't have enough capacity: cpu"

    async def kubelet() -> None:
        while (await world.pod())["spec"]["containers"][0]["resources"]["limits"]["cpu"] != "64":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        pending = {"type": "PodResizePending", "status": "True", "reason": "Infeasible", "message": told}
        body = {"status": {"conditions": [*(await world.pod())["status"].get("conditions", []), pending]}}
        await world.client.patch(PODS, "ads-worker-0-1", body, namespace=world.namespace, subresource="status")

    playing = asyncio.create_task(kubelet())
    world.controller._settings = replace(world.controller._settings, resize_wait_s=600.0)   # its answer ends the wait
    async with asyncio.timeout(60.0):
        assert not await world.controller.resize("ads", "worker-0-1", cpu=64.0, memory_bytes=GIB)
    await playing
    (container,) = (await world.pod())["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}


async def test_a_size_that_its_node_gives_is_kept(world: World) -> None:
    await world.controller.start(order(cpu=1.0, memory_bytes=GIB))
    await world.until(lambda process: process.begun)

    async def kubelet() -> None:
        amounts = {"cpu": "2", "memory": "1Gi"}
        while (await world.pod())["spec"]["containers"][0]["resources"]["limits"] != amounts:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        status = (await world.pod())["status"]["containerStatuses"]
        status[0]["resources"] = {"limits": amounts, "requests": amounts}
        body = {"status": {"containerStatuses": status}}
        await world.client.patch(PODS, "ads-worker-0-1", body, namespace=world.namespace, subresource="status")

    playing = asyncio.create_task(kubelet())
    assert await world.controller.resize("ads", "worker-0-1", cpu=2.0, memory_bytes=GIB)
    await playing


async def test_a_pod_on_a_node_that_is_gone_is_taken_for_dead(world: World) -> None:
    name = f"doomed-{world.namespace}"
    world.cluster.control("nodes", "1", "--prefix", name, "--cpu", "8", "--memory", "16Gi")
    await world.controller.start(order(template={"spec": {"nodeSelector": {"kubernetes.io/hostname": f"{name}-0"}}}))
    await world.until(lambda process: process.begun)
    world.cluster.kubectl("delete", "node", f"{name}-0")
    await world.controller.stop("ads", "worker-0-1", grace_s=0)
    assert (await world.end()).signal == 9


async def test_an_older_pod_of_the_name_that_is_still_going_is_waited_for(world: World) -> None:
    await world.controller.start(order(template={"metadata": {"annotations": {}}}))
    await world.until(lambda process: process.begun)
    hold = {"metadata": {"finalizers": ["test.recmesh.dev/hold"]}}
    await world.client.patch(PODS, "ads-worker-0-1", hold, namespace=world.namespace)
    await world.controller.stop("ads", "worker-0-1", grace_s=0)
    with pytest.raises(Unavailable, match="still going"):
        await world.controller.start(order())
    free = {"metadata": {"finalizers": None}}
    await world.client.patch(PODS, "ads-worker-0-1", free, namespace=world.namespace)
    assert (await world.end()).signal == 9


async def test_a_pod_costs_few_calls(world: World) -> None:
    names = [f"worker-{index}-1" for index in range(20)]
    world.client.calls.clear()
    await asyncio.gather(*(world.controller.start(order(name, annotations=fate("Completed"))) for name in names))
    for name in names:
        assert (await world.end(name)).code == 0
    await world.controller.forget("ads")
    assert world.client.calls.total() / len(names) <= 2, world.client.calls
