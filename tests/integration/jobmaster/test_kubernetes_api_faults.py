"""Pods behind an API server that is slow, throttles, loses answers and connections, and forgets versions."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from recmesh.runtime.errors import DeadlineExceeded, Unavailable
from recmesh.runtime.kube import PODS, Access, KubeClient, connect
from services.jobmaster.cluster.kubernetes import KubernetesController, PodSettings
from tests.integration.jobmaster.test_kubernetes import World, fate, order
from tests.support.api_proxy import ApiProxy
from tests.support.kube import KubeCluster

pytestmark = [pytest.mark.asyncio, pytest.mark.integration]

NAMES = [f"worker-{index}-1" for index in range(10)]


class Behind(World):
    """A controller that reaches the API server through `proxy`; `direct` reaches it as everybody else does."""

    proxy: ApiProxy
    direct: KubeClient

    async def names(self) -> Counter[str]:
        found, _ = await self.direct.list(PODS, namespace=self.namespace)
        return Counter(pod["metadata"]["name"] for pod in found)

    async def delete(self, name: str) -> None:
        await self.direct.delete(PODS, f"ads-{name}", namespace=self.namespace, grace_s=0)

    async def soon(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110  # any condition
                await asyncio.sleep(0.02)


@pytest_asyncio.fixture
async def world(simulated_cluster: KubeCluster, tmp_path: Path) -> AsyncIterator[Behind]:
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(ApiProxy(simulated_cluster.kubeconfig, tmp_path).serving())
        direct = await connect(Access(simulated_cluster.kubeconfig), field_manager="other")
        client = await connect(Access(proxy.kubeconfig), field_manager="test", calls_per_s=200, burst=400)
        stack.push_async_callback(direct.close)
        stack.push_async_callback(client.close)
        namespace = await asyncio.to_thread(simulated_cluster.namespace)
        settings = PodSettings(namespace=namespace, image="registry.local/pause:1", grace_s=30, force_after_s=0.5)
        controller = KubernetesController(client, settings)
        stack.push_async_callback(controller.stop_watching)
        await controller.find_again()
        made = Behind(simulated_cluster, namespace, client, controller, settings)
        made.proxy, made.direct = proxy, direct
        await made.soon(lambda: proxy.watches)
        yield made


async def test_a_watch_that_breaks_off_again_and_again_misses_no_end(world: Behind) -> None:
    await asyncio.gather(*(world.controller.start(order(name)) for name in NAMES))
    for name in NAMES:
        await world.until(lambda process: process.begun, name)
    for name in NAMES:
        assert world.proxy.cut() == 1
        await world.delete(name)            # nobody watches now
        await world.soon(lambda: world.proxy.watches)
    for name in NAMES:
        assert (await world.end(name)).cause == "deleted"
    assert world.client.calls["list", "pods"] == 1, "the watch goes on where it broke off"


@pytest.mark.parametrize("how", ["status", "event"])
async def test_what_ended_behind_a_forgotten_version_is_known_by_a_list(world: Behind, how: str) -> None:
    for name in NAMES[:3]:
        await world.controller.start(order(name))
        await world.until(lambda process: process.begun, name)
    world.proxy.refusals["WATCH"] = [503, *([410] if how == "status" else [])]
    world.proxy.expired = 1 if how == "event" else 0
    world.proxy.cut()
    await world.delete(NAMES[0])
    # Within one list: a later watch could not tell of it, as it begins after the list.
    assert (await world.end(NAMES[0])).cause == "deleted"
    await world.soon(lambda: world.client.calls["list", "pods"] == 2)
    assert [each.exit is None for each in await world.controller.processes("ads")].count(True) == 2
    await world.delete(NAMES[1])
    assert (await world.end(NAMES[1])).cause == "deleted", "it is watched again"


async def test_lost_answers_make_no_pod_twice_and_lose_none(world: Behind) -> None:
    world.proxy.lost_answers["POST"] = 5
    began = [await world.controller.start(order(name)) for name in NAMES]
    assert [each.handle for each in began] == [f"ads-{name}" for name in NAMES]
    assert await world.names() == Counter(f"ads-{name}" for name in NAMES)
    for name in NAMES:
        await world.until(lambda process: process.begun, name)
    world.proxy.lost_answers["DELETE"] = 5
    await asyncio.gather(*(world.controller.stop("ads", name, grace_s=0) for name in NAMES))
    assert {(await world.end(name)).signal for name in NAMES} == {9}
    assert world.proxy.seen["POST", 0] == world.proxy.seen["DELETE", 0] == 5


async def test_a_slow_api_delays_and_does_no_more(world: Behind) -> None:
    world.proxy.delay_s = 1.0
    await asyncio.gather(*(world.controller.start(order(name, annotations=fate("OOMKilled"))) for name in NAMES))
    assert await world.names() == Counter(f"ads-{name}" for name in NAMES)
    assert all([(await world.end(name)).oom for name in NAMES])
    assert world.client.calls["create", "pods"] == len(NAMES), "each was asked for once"
    world.proxy.delay_s = 2.0
    with pytest.raises((DeadlineExceeded, Unavailable)):
        await world.client.list(PODS, namespace=world.namespace, timeout_s=1.0)


@pytest.mark.parametrize("status", [429, 503, 500])
async def test_calls_that_are_turned_away_come_again(world: Behind, status: int) -> None:
    world.proxy.refusals["POST"] = [status] * 15
    await asyncio.gather(*(world.controller.start(order(name)) for name in NAMES))
    assert await world.names() == Counter(f"ads-{name}" for name in NAMES)
    world.proxy.refusals["DELETE"] = [status] * 5
    await world.controller.stop("ads", NAMES[0], grace_s=0)
    assert (await world.end(NAMES[0])).signal == 9
    assert world.proxy.seen["POST", status] == 15 and world.proxy.seen["DELETE", status] == 5


async def test_a_deletion_that_is_refused_for_long_leaves_the_pod_known_as_living(world: Behind) -> None:
    await world.controller.start(order())
    await world.until(lambda process: process.begun)
    world.proxy.refusals["DELETE"] = [409]
    with pytest.raises(Exception, match="Conflict"):
        await world.controller.stop("ads", "worker-0-1", grace_s=0)
    assert (await world.one()).exit is None
    await world.controller.stop("ads", "worker-0-1", grace_s=0)
    assert (await world.end()).signal == 9


async def test_a_pod_that_another_deletion_took_at_the_same_moment_is_gone(world: Behind) -> None:
    await world.controller.start(order())
    world.proxy.unversioned = True
    await world.controller.drain("ads", "worker-0-1")
    assert (await world.end()).cause == ""


@pytest.mark.slow      # garbage of nodes is collected after 40 s
async def test_nodes_that_go_take_their_pods_and_others_begin_elsewhere(world: Behind) -> None:
    """The node is deleted under them: Kubernetes' own garbage collector ends what was there."""
    name = f"doomed-{world.namespace}"
    world.cluster.control("nodes", "1", "--prefix", name, "--cpu", "8", "--memory", "16Gi")
    here = {"spec": {"nodeSelector": {"kubernetes.io/hostname": f"{name}-0"}}}
    await asyncio.gather(*(world.controller.start(order(each, template=here)) for each in NAMES[:3]))
    await world.controller.start(order(NAMES[3]))
    for each in NAMES[:4]:
        await world.until(lambda process: process.begun, each)
    await asyncio.to_thread(world.cluster.kubectl, "delete", "node", f"{name}-0")
    ends = [await world.end(each) for each in NAMES[:3]]
    assert {end.cause for end in ends} == {"node lost"}, ends
    assert (await world.one(NAMES[3])).exit is None
    await world.controller.start(order("worker-0-2"))
    await world.until(lambda process: process.begun, "worker-0-2")
