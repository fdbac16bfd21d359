"""Role pods as real containers: exit codes, logs, notes, signals, memory and sizes are the kubelet's own."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from recmesh.runtime.kube import PODS, Access, KubeClient, connect
from recmesh.spec.quantity import MIB
from services.jobmaster.cluster import RoleProcess, StartOrder
from services.jobmaster.cluster.kubernetes import KubernetesController, PodSettings
from services.jobmaster.domain.exits import Exit, judge
from services.jobmaster.domain.job import RoleState
from tests.support.kube import KubeCluster, kube_cluster, tool

pytestmark = [pytest.mark.asyncio, pytest.mark.integration, pytest.mark.slow]

IMAGE = "registry.local/pause:1"
"""A busybox that is on the node already."""
RUNNING = RoleState(role="worker", index=0, stage="running")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    if not os.environ.get("KUBECONFIG"):
        tool()
        if os.geteuid() or not shutil.which("containerd"):
            pytest.skip("a node with containers needs root and containerd")
    with kube_cluster(tmp_path_factory.mktemp("kube") / "cluster", "--node") as made:
        yield made


class World:
    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.controller = KubernetesController(client, PodSettings(
            namespace=namespace, image=IMAGE, command=("sh", "-c", 'eval "$SCRIPT"'), grace_s=20, resize_wait_s=20.0,
        ))  # fmt: skip

    async def start(self, script: str, name: str = "worker-0-1", *, cpu: float = 0.0, memory_mib: int = 0,
                    image: str = "") -> None:  # fmt: skip
        role, index, _ = name.split("-")
        await self.controller.start(StartOrder(
            "ads", name, role, int(index), {"SCRIPT": script}, cpu=cpu, memory_bytes=memory_mib * MIB, image=image,
        ))  # fmt: skip

    async def until(self, condition: Callable[[RoleProcess], bool], name: str = "worker-0-1") -> RoleProcess:
        async with asyncio.timeout(60):
            while True:
                found = next(each for each in await self.controller.processes("ads") if each.name == name)
                if condition(found):
                    return found
                await asyncio.sleep(0.05)

    async def end(self, name: str = "worker-0-1") -> Exit:
        end = (await self.until(lambda process: process.exit is not None, name)).exit
        assert end is not None
        return end

    async def says(self, line: str, name: str = "worker-0-1") -> None:
        async with asyncio.timeout(60):
            while line not in await self.controller.tail("ads", name, lines=50):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@pytest_asyncio.fixture
async def world(cluster: KubeCluster) -> AsyncIterator[World]:
    namespace = cluster.namespace()
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    client = await connect(Access(cluster.kubeconfig), field_manager="test")
    made = World(client, namespace)
    await made.controller.find_again()
    yield made
    for process in await made.controller.processes("ads"):
        await made.controller.stop("ads", process.name, grace_s=0)
    await made.controller.stop_watching()
    await client.close()


async def test_an_end_has_its_code_its_last_line_and_the_batch_in_hand(world: World) -> None:
    note = 'echo "0 50 100" > $RECMESH_IN_HAND'
    # By one stream: the container runtime keeps no order between two.
    await world.start(f"exec >&2; echo at $RECMESH_PS_ADDRESS; {note}; echo no such column; exit 64")
    end = await world.end()
    assert (end.code, end.last_line, end.knows_batch, end.batch) == (64, "no such column", True, (0, 50, 100))
    first, *_ = await world.controller.tail("ads", "worker-0-1", lines=10)
    address = first.removeprefix("at ")
    assert address.count(".") == 3 and address.endswith(":0")
    assert judge(RUNNING, end).kind == "mistake"


async def test_a_process_that_eats_more_than_its_memory_is_killed_for_it(world: World) -> None:
    await world.start("exec tail /dev/zero", memory_mib=32)
    end = await world.end()
    assert end.oom and judge(RUNNING, end).kind == "oom"


async def test_a_drain_and_a_deletion_by_others_let_a_process_put_its_work_in_order(world: World) -> None:
    patient = "trap 'echo in order; exit 75' TERM; echo ready; while true; do sleep 0.1; done"
    await world.start(patient, "worker-0-1")
    await world.start(patient, "worker-1-1")
    await world.says("ready", "worker-0-1")
    await world.says("ready", "worker-1-1")
    await world.controller.drain("ads", "worker-0-1")
    await world.client.delete(PODS, "ads-worker-1-1", namespace=world.namespace)
    drained, deleted = await world.end("worker-0-1"), await world.end("worker-1-1")
    assert (drained.code, drained.cause) == (75, "")
    assert deleted.code == 75
    assert judge(RUNNING, deleted).kind == "retry"


async def test_one_that_ignores_sigterm_is_killed(world: World) -> None:
    await world.start("trap '' TERM; echo ready; while true; do sleep 0.1; done")
    await world.says("ready")
    await world.controller.stop("ads", "worker-0-1", grace_s=0)
    assert (await world.end()).signal == 9


async def test_a_pod_gets_another_size_while_it_runs(world: World) -> None:
    quota = "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null"
    await world.start(f"while true; do echo $({quota}); sleep 0.2; done", cpu=0.2, memory_mib=64)
    await world.until(lambda process: process.begun)
    assert await world.controller.resize("ads", "worker-0-1", cpu=0.4, memory_bytes=96 * MIB)
    async with asyncio.timeout(30):
        while not (await world.controller.tail("ads", "worker-0-1", lines=1))[0].startswith("40000"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    pod = await world.client.get(PODS, "ads-worker-0-1", namespace=world.namespace)
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0

    assert not await world.controller.resize("ads", "worker-0-1", cpu=1000.0, memory_bytes=96 * MIB)
    pod = await world.client.get(PODS, "ads-worker-0-1", namespace=world.namespace)
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "400m", "memory": "96Mi"}


async def test_an_image_that_is_not_there_is_told(world: World) -> None:
    await world.start("true", image="registry.local/nothing:1")
    process = await world.until(lambda process: bool(process.waiting))
    assert "Image" in process.waiting and not process.begun
    await world.controller.stop("ads", "worker-0-1", grace_s=0)
    assert (await world.end()).signal == 9
