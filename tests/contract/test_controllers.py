"""One suite for resource controllers: processes of this machine, pods of a Kubernetes with simulated nodes, containers
of a YARN, a plug-in, and two clusters as one."""

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal, Protocol

import pytest
import pytest_asyncio

from recmesh.runtime.errors import FailedPrecondition
from recmesh.runtime.kube import Access, connect
from recmesh.runtime.yarn.board import Board
from recmesh.runtime.yarn.client import YarnClient
from recmesh.spec.job import TrainingJob
from services.jobmaster.cluster import Controller, RoleProcess, StartOrder
from services.jobmaster.cluster.kubernetes import KubernetesController, PodSettings
from services.jobmaster.cluster.local import LocalController
from services.jobmaster.cluster.plugged import Place, plugged
from services.jobmaster.cluster.several import Member, SeveralClusters
from services.jobmaster.cluster.yarn import YarnController, YarnSettings
from services.jobmaster.domain.exits import Exit
from tests.support.installed import installed
from tests.support.kube import KubeCluster
from tests.support.yarn import MASTER, USER, YarnCluster

pytestmark = [pytest.mark.asyncio, pytest.mark.integration]

Fate = Literal["", "Completed", "Error"]
"""What becomes of a process: empty, it lives until it is ended; else it ends with 0 or 1 after half a second."""
SCRIPT = """
import os, sys, time
fate = os.environ["FATE"]
time.sleep(0.3 if fate else 3600)
sys.exit(fate == "Error")
"""


class Somewhere(Protocol):
    """Where a controller's processes are, as long as the test lasts."""

    async def controller(self) -> Controller:
        """Another jobmaster's."""
        ...


class ThisMachine:
    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder, self._stack = folder, stack

    async def controller(self) -> Controller:
        made = LocalController(self._folder, command=(sys.executable, "-S", "-E", "-c", SCRIPT))
        self._stack.push_async_callback(made.stop_watching)
        return made


class Pods:
    def __init__(self, cluster: KubeCluster, stack: AsyncExitStack) -> None:
        self._cluster, self._stack, self._namespace = cluster, stack, cluster.namespace()

    async def controller(self) -> Controller:
        client = await connect(Access(self._cluster.kubeconfig), field_manager="test")
        self._stack.push_async_callback(client.close)
        made = KubernetesController(client, PodSettings(namespace=self._namespace, image="registry.local/pause:1"))
        self._stack.push_async_callback(made.stop_watching)
        return made


class Plugged:
    """As a package that is installed beside the mesh."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder, self._stack = folder, stack
        stack.enter_context(installed(folder, {"niced": "tests.support.niced:Niced"}))

    async def controller(self) -> Controller:
        command = json.dumps([sys.executable, "-S", "-E", "-c", SCRIPT])
        made = plugged("niced", Place(self._folder, str(self._folder), {"command": command}))
        self._stack.push_async_callback(made.stop_watching)
        return made


class TwoMachines:
    """Two clusters of this machine's processes, behind one controller."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder, self._stack = folder, stack

    async def controller(self) -> Controller:
        command = (sys.executable, "-S", "-E", "-c", SCRIPT)
        made = SeveralClusters([
            Member(name, LocalController(self._folder / name, command=command, cores=4)) for name in ("east", "west")
        ])
        self._stack.push_async_callback(made.stop_watching)
        return made


class Containers:
    def __init__(self, cluster: YarnCluster, folder: Path, stack: AsyncExitStack) -> None:
        self._cluster, self._folder, self._stack = cluster, folder, stack
        self._prefix = f"t{uuid.uuid4().hex[:8]}-"
        stack.push_async_callback(self._delete)

    async def controller(self) -> Controller:
        client = self._client()
        self._stack.push_async_callback(client.close)
        made = YarnController(client, Board(str(self._folder)), YarnSettings(
            prefix=self._prefix, python=sys.executable, command=(sys.executable, "-S", "-E", "-c", SCRIPT),
            memory_bytes=256 << 20, properties=MASTER, look_s=0.3,
        ))  # fmt: skip
        self._stack.push_async_callback(made.stop_watching)
        return made

    def _client(self) -> YarnClient:
        return YarnClient([self._cluster.url], user=USER, calls_per_s=100, burst=100)

    async def _delete(self) -> None:
        client = self._client()
        await asyncio.gather(*map(client.delete_service, Board(str(self._folder)).services()), return_exceptions=True)
        await client.close()


PLACES = ["local", "kubernetes", pytest.param("yarn", marks=pytest.mark.slow), "plugged", "several"]


@pytest_asyncio.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Somewhere]:
    async with AsyncExitStack() as stack:
        if request.param == "local":
            yield ThisMachine(tmp_path, stack)
        elif request.param == "yarn":
            yield Containers(request.getfixturevalue("yarn_cluster"), tmp_path, stack)
        elif request.param == "several":
            yield TwoMachines(tmp_path, stack)
        elif request.param == "plugged":
            yield Plugged(tmp_path, stack)
        else:
            yield Pods(request.getfixturevalue("simulated_cluster"), stack)


@pytest_asyncio.fixture
async def controller(place: Somewhere) -> AsyncIterator[Controller]:
    made = await place.controller()
    await made.find_again()
    yield made
    for job_id in await made.jobs():
        for process in await made.processes(job_id):
            if process.exit is None:
                await made.stop(job_id, process.name, grace_s=0)


def order(name: str = "worker-0-1", *, job_id: str = "ads", fate: Fate = "") -> StartOrder:
    role, index, _ = name.split("-")
    template = {"metadata": {"annotations": {"test.recmesh.dev/fate": fate}}} if fate else {}
    return StartOrder(job_id, name, role, int(index), {"FATE": fate}, template=template)


async def one(controller: Controller, name: str = "worker-0-1", job_id: str = "ads") -> RoleProcess | None:
    return next((process for process in await controller.processes(job_id) if process.name == name), None)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(120):        # YARN starts a master for each service, on a busy machine, too
        while not await condition():  # noqa: ASYNC110  # any condition
            await asyncio.sleep(0.02)


async def until_ended(controller: Controller, name: str = "worker-0-1", job_id: str = "ads") -> Exit:
    found: list[Exit] = []

    async def has_ended() -> bool:
        process = await one(controller, name, job_id)
        found.extend([process.exit] if process is not None and process.exit is not None else [])
        return bool(found)

    await until(has_ended)
    return found[0]


async def test_a_process_is_started_once_for_its_name(controller: Controller) -> None:
    first, again, other = await asyncio.gather(
        controller.start(order()), controller.start(order()), controller.start(order("ps-0-1"))
    )
    assert first.handle == again.handle != other.handle
    assert (await controller.start(order())).handle == first.handle
    assert sorted(process.name for process in await controller.processes("ads")) == ["ps-0-1", "worker-0-1"]
    assert await controller.jobs() == ["ads"]


@pytest.mark.parametrize(("fate", "code"), [("Completed", 0), ("Error", 1)])
async def test_an_end_is_told_with_its_code(controller: Controller, fate: Fate, code: int) -> None:
    changed: list[str] = []
    controller.watch(changed.append)
    assert (await controller.start(order(fate=fate))).exit is None
    end = await until_ended(controller)
    assert (end.code, end.signal, end.oom, end.cause) == (code, None, False, "")

    async def is_told() -> bool:
        return "ads" in changed

    await until(is_told)


async def test_what_is_stopped_ends_by_a_signal_and_stays_known(controller: Controller) -> None:
    await controller.start(order())
    await controller.start(order("worker-1-1"))
    await controller.stop("ads", "worker-0-1", grace_s=0)
    end = await until_ended(controller)
    assert end.signal is not None and end.cause == ""
    left = await one(controller, "worker-1-1")
    assert left is not None and left.exit is None
    await controller.stop("ads", "worker-0-1", grace_s=0)       # it has ended: nothing happens
    await controller.stop("ads", "worker-9-1", grace_s=0)       # there is none


async def test_what_drains_ends(controller: Controller) -> None:
    await controller.start(order())
    await controller.drain("ads", "worker-0-1")
    assert (await until_ended(controller)).cause == ""


async def test_another_jobmaster_finds_what_lives_and_the_truth_of_what_ended(place: Somewhere) -> None:
    first = await place.controller()
    await first.find_again()
    lives = await first.start(order("worker-0-1"))
    await first.start(order("worker-1-1", fate="Error"))
    await first.stop_watching()

    second = await place.controller()
    await second.find_again()
    assert await second.jobs() == ["ads"]
    assert (await until_ended(second, "worker-1-1")).code == 1
    found = await one(second, "worker-0-1")
    assert found is not None and (found.handle, found.exit) == (lives.handle, None)
    assert (await second.start(order("worker-0-1"))).handle == lives.handle
    await second.stop("ads", "worker-0-1", grace_s=0)
    await until_ended(second)


async def test_one_that_stood_by_finds_what_another_started_meanwhile(place: Somewhere) -> None:
    first, second = await place.controller(), await place.controller()
    await first.find_again()
    await second.find_again()
    lives = await first.start(order())
    await second.find_again()
    assert [process.handle for process in await second.processes("ads")] == [lives.handle]
    assert (await second.start(order())).handle == lives.handle
    await second.stop("ads", "worker-0-1", grace_s=0)
    await until_ended(second)
    await until_ended(first)


async def test_a_job_is_forgotten_when_its_processes_have_ended(controller: Controller) -> None:
    await controller.start(order())
    await controller.start(order(job_id="other"))
    with pytest.raises(FailedPrecondition):
        await controller.forget("ads")
    await controller.stop("ads", "worker-0-1", grace_s=0)
    await until_ended(controller)
    await controller.forget("ads")
    assert await controller.processes("ads") == []
    assert await controller.jobs() == ["other"]
    await controller.find_again()
    assert await controller.jobs() == ["other"]
    left = await one(controller, job_id="other")
    assert left is not None and left.exit is None

    async def can_start() -> bool:      # the name is free again
        return (await controller.start(order())).exit is None

    await until(can_start)


async def test_of_what_is_not_there_nothing_is_told(controller: Controller) -> None:
    assert await controller.processes("nobody") == []
    assert await controller.tail("nobody", "worker-0-1", lines=5) == []
    assert not await controller.resize("nobody", "worker-0-1", cpu=1.0, memory_bytes=1 << 30)
    await controller.drain("nobody", "worker-0-1")


async def test_what_is_free_is_told_and_an_ordinary_job_is_taken(controller: Controller) -> None:
    free = await controller.capacity()
    assert free.cpu >= 0 and free.memory_bytes > 0
    spec = {
        "name": "ads", "model": {"zoo": "wide_deep"},
        "data": {"source": {"files": ["a.parquet"]}, "features": [{"name": "user"}]},
    }
    assert controller.refusals(TrainingJob.parse(spec)) == []
    half = spec | {"roles": {"worker": {"gpu": 0.5}}}
    assert [item.path for item in controller.refusals(TrainingJob.parse(half))] == ["roles.worker.gpu"]
