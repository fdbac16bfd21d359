"""Role processes in containers of a real YARN: what the suite of all controllers does not ask."""

import asyncio
import json
import os
import sys
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from recmesh.runtime.errors import FailedPrecondition, NotFound
from recmesh.runtime.yarn.board import Board
from recmesh.runtime.yarn.client import YarnClient
from services.jobmaster.cluster import Amounts, RoleProcess, StartOrder
from services.jobmaster.cluster.yarn import YarnController, YarnSettings
from tests.support.yarn import MASTER, USER, YarnCluster

pytestmark = [pytest.mark.asyncio, pytest.mark.integration, pytest.mark.slow]

SIZE = 256 << 20
POLITE = 'trap "echo drained; exit 0" TERM; echo hello at $RECMESH_PS_ADDRESS; while :; do sleep 0.1; done'


@dataclass
class World:
    cluster: YarnCluster
    client: YarnClient
    controller: YarnController
    name: str

    async def start(self, name: str, what: str = "exec sleep 600", *, memory_bytes: int = SIZE) -> RoleProcess:
        role, index, _ = name.split("-")
        sizes = {role: Amounts(1, SIZE) for role in ("ps", "worker")}
        return await self.controller.start(StartOrder(
            "ads", name, role, int(index), {"WHAT": what}, cpu=1, memory_bytes=memory_bytes, sizes=sizes,
        ))  # fmt: skip

    async def find(self, name: str) -> RoleProcess:
        return next(each for each in await self.controller.processes("ads") if each.name == name)

    async def until(self, name: str, condition: Callable[[RoleProcess], bool]) -> RoleProcess:
        async with asyncio.timeout(60):
            while not condition(await self.find(name)):  # noqa: ASYNC110  # any condition
                await asyncio.sleep(0.1)
        return await self.find(name)

    async def until_counts(self, **counts: int) -> None:
        """Until YARN itself has these, and no other containers."""
        found: dict[str, int] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                while found != counts:
                    told = await self.client.service(self.name)
                    found = {each["name"].replace("-", "_"): each["number_of_containers"]
                             for each in told["components"] if each["number_of_containers"]}
                    await asyncio.sleep(0.3)
        assert found == counts


@pytest_asyncio.fixture
async def world(yarn_cluster: YarnCluster, tmp_path: Path) -> AsyncIterator[World]:
    client = YarnClient([yarn_cluster.url], user=USER, calls_per_s=100, burst=100)
    settings = YarnSettings(
        prefix=f"t{uuid.uuid4().hex[:8]}-", python=sys.executable, command=("sh", "-c", 'eval "$WHAT"'),
        properties=MASTER, look_s=0.3,
    )  # fmt: skip
    controller = YarnController(client, Board(str(tmp_path)), settings)
    await controller.find_again()
    yield World(yarn_cluster, client, controller, f"{settings.prefix}ads")
    await controller.stop_watching()
    with suppress(NotFound):
        await client.delete_service(f"{settings.prefix}ads")
    await client.close()


def began(process: RoleProcess) -> bool:
    return process.begun


def ended(process: RoleProcess) -> bool:
    return process.exit is not None


async def test_ends_are_told_apart_and_counts_follow(world: World) -> None:
    before = await world.controller.capacity()
    first = await world.start("worker-0-1", POLITE)
    assert not first.begun
    await world.start("worker-1-1", "exec /no/such/trainer")
    await world.start("worker-2-1", "echo no such column >&2; exit 64")
    await world.start("ps-0-1", "exec sleep 601")
    wrong = (await world.until("worker-2-1", ended)).exit
    assert wrong is not None and (wrong.code, wrong.last_line, wrong.cause) == (64, "no such column", "")
    missing = (await world.until("worker-1-1", ended)).exit
    assert missing is not None and missing.code == 127 and "/no/such/trainer" in missing.last_line

    await world.until("ps-0-1", began)
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == ["sleep", "601"]:
            os.kill(process.pid, 9)
    killed = (await world.until("ps-0-1", ended)).exit
    assert killed is not None and (killed.signal, killed.oom, killed.cause) == (9, False, "")

    running = await world.until("worker-0-1", began)
    assert (running.waiting, running.handle) == ("", first.handle)
    await world.until_counts(worker=1)                              # the others were taken away, by name
    assert not await world.controller.resize("ads", "worker-0-1", cpu=2, memory_bytes=2 * SIZE)
    await world.start("worker-1-2", memory_bytes=SIZE + 1)          # larger: of another component
    await world.start("worker-3-1")
    with pytest.raises(FailedPrecondition, match="up to 4 times"):
        await world.start("worker-4-1", memory_bytes=4 * SIZE + 1)
    await world.until("worker-1-2", began)
    await world.until_counts(worker=2, worker_m2=1)
    world.controller._room = None
    assert (await world.controller.capacity()).memory_bytes < before.memory_bytes

    assert "hello at " in "".join(await world.controller.tail("ads", "worker-0-1", lines=5))
    await world.controller.drain("ads", "worker-0-1")
    drained = (await world.until("worker-0-1", ended)).exit
    assert drained is not None and (drained.code, drained.signal) == (0, None)
    assert await world.controller.tail("ads", "worker-0-1", lines=1) == ["drained"]
    await world.controller.stop("ads", "worker-3-1", grace_s=0.1)
    stopped = (await world.until("worker-3-1", ended)).exit
    assert stopped is not None and stopped.signal in (9, 15)
    await world.until_counts(worker_m2=1)


async def test_a_service_that_others_end_is_told_of_and_made_again(world: World) -> None:
    first = await world.start("worker-0-1")
    await world.until("worker-0-1", began)
    application = first.handle.partition("/")[0]
    await asyncio.to_thread(put, f"{world.cluster.url}/ws/v1/cluster/apps/{application}/state", {"state": "KILLED"})
    end = (await world.until("worker-0-1", ended)).exit
    assert end is not None and end.cause == "deleted"
    second = await world.start("worker-0-2")
    assert second.handle.partition("/")[0] != application
    await world.until("worker-0-2", began)
    await world.controller.stop("ads", "worker-0-2", grace_s=0)
    await world.until("worker-0-2", ended)
    await world.controller.forget("ads")
    assert await world.controller.jobs() == []
    with pytest.raises(NotFound):
        await world.client.service(world.name)


async def test_processes_outlive_their_services_master(world: World) -> None:
    first = await world.start("worker-0-1")
    await world.until("worker-0-1", began)
    application = first.handle.partition("/")[0]
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if "ServiceMaster" in line and application in line:
            os.kill(process.pid, 9)
    await world.start("worker-1-1")         # for the next master to give
    await world.until("worker-1-1", began)
    found = await world.find("worker-0-1")
    assert (found.exit, found.handle) == (None, first.handle)
    await world.until_counts(worker=2)


def put(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(
        f"{url}?user.name={USER}", json.dumps(body).encode(), {"Content-Type": "application/json"}, method="PUT"
    )
    urllib.request.urlopen(request, timeout=20).close()
