"""The gateway with HNs of other machines: processes over TCP, that come, go, and load what they are told."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio

from recmesh.runtime.errors import MeshError, Unavailable
from recmesh.runtime.ops import Cell, Tone
from recmesh.runtime.tls import Tls
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from services.gateway.config import child_environment, mesh_environment
from services.gateway.ops.serving import ServingView
from services.gateway.ops.view import View
from services.gateway.peers.mesh import Mesh
from services.gateway.runtimes.pool import Runtimes
from services.gateway.runtimes.process import Limits
from tests.support import split_models
from tests.support.certificates import certificates
from tests.support.fresh_models import fresh_torch_model
from tests.support.gateway import Gateway, gateway, http
from tests.support.snapshots import Snapshots

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

ROOT = Path(__file__).resolve().parents[3]
LOAD_S = 240.0
INPUTS = [
    {"name": "x", "datatype": "FP32", "shape": [1], "data": [0.5]},
    {"name": "id", "datatype": "INT64", "shape": [1], "data": [3]},
]


@contextmanager
def hn(
    mesh: dict[str, str], *options: str, listen: str = "tcp:127.0.0.1:0"
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address, once it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "recmesh.serving.hn", "--listen", listen, *options], stdout=subprocess.PIPE, text=True,
        cwd=ROOT, env={**child_environment(os.environ), **mesh, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready, _, address = process.stdout.readline().strip().partition(" ")
        assert ready == "ready"
        yield address, process
    finally:
        process.kill()
        process.communicate(timeout=10)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def model(storage: Path) -> Path:
    return split_models.torch_model(storage / "m" / "1", post=True)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The mesh's token and certificates, as its processes have them."""
    tls: Tls = certificates(tmp_path_factory.mktemp("certificates"))
    files = {"CERT": tls.cert, "KEY": tls.key, "CA": tls.ca}
    return {
        "RECMESH_API_KEY": "the mesh's", "RECMESH_TLS_SERVER_NAME": "localhost",
        **{f"RECMESH_TLS_{name}": str(path) for name, path in files.items()},
    }  # fmt: skip


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[ExitStack]:
    with ExitStack() as made:
        yield made


def runtimes_of(mesh: dict[str, str], *hns: str) -> Runtimes:
    return Runtimes(
        environment=child_environment(os.environ), limits=Limits(backoff_s=(0.1,)), log=print, hns=hns,
        mesh_environment=mesh_environment(mesh),
    )  # fmt: skip


async def answered(client: httpx.AsyncClient) -> float:
    reply = await client.post("/v2/models/m/infer", json={"inputs": INPUTS})
    assert reply.status_code == 200, reply.text
    value: float = reply.json()["outputs"][0]["data"][0]
    return value


@pytest.mark.long
async def test_an_hn_may_be_killed_under_load_and_no_request_fails(
    stack: ExitStack, mesh: dict[str, str], storage: Path, model: Path
) -> None:
    root = ("--root", str(storage), "--admission", "--set", "grant_min_s=30")    # however slow the machine is
    (first, victim), (second, _) = (stack.enter_context(hn(mesh, *root)) for _ in range(2))
    runtimes = runtimes_of(mesh, first, second)
    served = gateway(storage, runtimes=runtimes)
    await served.models.start()
    try:
        async with http(served) as client:
            body = {"name": "m", "uri": "m/1", "framework": "torch", "serving": {"split": "always"}}
            assert (await client.post("/v1/models", json=body)).status_code == 201
            await served.settled()
            expected = split_models.expected(3, 0.5)
            assert await answered(client) == expected
            answers: list[float] = []
            ended = asyncio.Event()

            async def load() -> None:
                while not ended.is_set():
                    answers.append(await answered(client))

            async def more(count: int) -> None:
                enough = len(answers) + count
                async with asyncio.timeout(180.0):
                    while len(answers) < enough and not any(each.done() for each in loads):  # noqa: ASYNC110 (others' work)
                        await asyncio.sleep(0.01)
                for each in loads:
                    if each.done():
                        await each               # raises what failed

            loads = [asyncio.create_task(load()) for _ in range(6)]
            await more(60)

            async def granting() -> bool:
                return all(state and state["admission"]["granted"] for state in await states(runtimes, first, second))

            async def shown() -> bool:
                windows.update(await queues(served, runtimes))
                return all(name in windows and windows[name][6] for name in (f"HN {first}", f"HN {second}"))

            async def has_model() -> bool:
                [state] = await states(runtimes, first)
                return bool(state and state["models"])

            async def is_gone() -> bool:
                windows.update(await queues(served, runtimes))
                cell = windows[f"HN {first}"][1]
                return isinstance(cell, Cell) and cell.tone is Tone.BAD

            windows: dict[str, Sequence[Any]] = {}
            await until(granting)
            await until(shown)
            [status] = runtimes.status()
            assert status.framework == "torch CN"
            assert set(windows) == {f"CN {status.pid}", f"HN {first}", f"HN {second}"}
            assert all(row[2].endswith("iB") and " of " in row[6] for name, row in windows.items() if name[0] == "H")
            victim.send_signal(signal.SIGKILL)
            await more(200)
            await until(is_gone)
            with hn(mesh, *root, listen=first):  # it comes back, empty, and is told what to load
                await until(has_model)
                await more(60)
                ended.set()
                await asyncio.gather(*loads)
            assert set(answers) == {expected}
    finally:
        await served.models.stop()
        await runtimes.stop()


@pytest.mark.long
async def test_a_model_that_follows_its_job_is_of_one_version_while_an_hn_dies_and_comes_back(
    stack: ExitStack, mesh: dict[str, str], tmp_path: Path
) -> None:
    job = Snapshots(tmp_path / "checkpoints" / "job")
    job.commit(1, {1: 1.0}, -1.0)
    folder = await asyncio.to_thread(fresh_torch_model, tmp_path / "sum", job)
    root = ("--root", str(tmp_path), "--admission", "--set", "grant_min_s=30")
    (first, victim), (second, _) = (stack.enter_context(hn(mesh, *root)) for _ in range(2))
    runtimes = runtimes_of(mesh, first, second)
    settings = ServingSettings.parse({"split": "always", "freshness": {"poll_s": 0.02}})
    item, seen, ended = Tensor.of("item", np.array([1, 99], np.int64)), [0], asyncio.Event()

    async def load() -> None:
        while not ended.is_set():
            tensors, times = await runtimes.infer(
                "torch", "sum/1", [item], ["predictions"], timeout_s=60.0, priority=100
            )
            assert tensors[0].array.tolist() == [0.0, -times.fresh_version], "row and parameter are of two versions"
            seen.append(times.fresh_version)

    async def holding() -> dict[str, list[int]]:
        told = await runtimes.freshen("torch", "sum/1", "status", 0, settings=settings, timeout_s=30.0)
        found: dict[str, list[int]] = told["status"]["hns"]
        return found

    async def until(version: int, *hns: str) -> None:
        async with asyncio.timeout(120.0):
            while True:
                for each in loads:
                    if each.done():
                        await each               # raises what failed
                held = await holding() if hns else {}
                if max(seen) >= version and all(version in held.get(each, ()) for each in hns):
                    return
                await asyncio.sleep(0.02)

    loads: list[asyncio.Task[None]] = []
    try:
        await runtimes.load("torch", "sum/1", folder, settings=settings, timeout_s=LOAD_S)
        loads += [asyncio.create_task(load()) for _ in range(4)]
        await until(1, first, second)
        for version in range(2, 9):
            await asyncio.to_thread(job.commit, version, {1: float(version)}, -float(version), base=version - 1)
            if version == 5:
                victim.send_signal(signal.SIGKILL)
            await until(version)
        assert list(await holding()) == [second]
        with hn(mesh, *root, listen=first):      # it comes back, empty, and is told what to load and to hold
            await until(8, first, second)
            await asyncio.to_thread(job.commit, 9, {1: 9.0}, -9.0, base=8)
            await until(9, first, second)
            ended.set()
            await asyncio.gather(*loads)
        assert max(seen) == 9
    finally:
        for each in loads:
            each.cancel()
        await runtimes.stop()


@pytest.mark.long
async def test_an_hn_says_which_models_it_has_and_loads_from_its_folders_alone(
    stack: ExitStack, mesh: dict[str, str], model: Path, tmp_path: Path
) -> None:
    fixed, _ = stack.enter_context(hn(mesh, "--model", f"m/1={model}"))
    elsewhere, _ = stack.enter_context(hn(mesh, "--root", str(tmp_path)))
    runtimes = runtimes_of(mesh)
    try:
        await runtimes.load("torch", "m/1", model, settings=ServingSettings(hns=(fixed,)), timeout_s=LOAD_S)
        assert runtimes.serves("torch", "m/1")
        with pytest.raises(Unavailable, match=r"m/2.* is not loaded"):
            await runtimes.load("torch", "m/2", model, settings=ServingSettings(hns=(fixed,)), timeout_s=3.0)
        with pytest.raises(MeshError) as refused:
            await runtimes.load("torch", "m/3", model, settings=ServingSettings(hns=(elsewhere,)), timeout_s=30.0)
        assert refused.value.reason == "OUTSIDE_ROOTS"
    finally:
        await runtimes.stop()


@pytest.mark.long
async def test_why_a_model_waits_for_its_hn_or_is_not_let_in_is_told_at_once(
    stack: ExitStack, mesh: dict[str, str], storage: Path, model: Path
) -> None:
    stranger, _ = stack.enter_context(hn(mesh | {"RECMESH_API_KEY": "another's"}, "--root", str(storage)))
    nobody = "tcp:127.0.0.1:1"
    runtimes = runtimes_of(mesh)
    served = gateway(storage, runtimes=runtimes)
    await served.models.start()
    try:
        async with http(served) as client:
            async def registered(name: str, hns: list[str]) -> None:
                body = {"name": name, "uri": "m/1", "framework": "torch", "serving": {"hns": hns}}
                assert (await client.post("/v1/models", json=body)).status_code == 201

            async def seen(name: str) -> tuple[str, str]:
                told = (await client.get(f"/v1/models/{name}")).json()
                return told["state"], told["reason"]

            async def says_why() -> bool:
                return bool((await seen("waits"))[1])

            await registered("strange", [stranger])
            await served.settled()
            state, why = await seen("strange")
            assert state == "failed"
            assert why.startswith("BAD_TOKEN: ") and stranger in why and "RECMESH_API_KEY" in why
            index = (await client.post("/v2/repository/index")).json()
            assert [item["reason"] for item in index if item["name"] == "strange"] == [why]
            refused = (await client.post("/v2/models/strange/infer", json={"inputs": INPUTS})).json()
            assert why in refused["error"]
            await registered("waits", [nobody, stranger])
            await until(says_why)
            state, why = await seen("waits")
            assert state == "loading" and why.startswith("NO_HN: ") and "refused" in why and "RECMESH_API_KEY" in why
            waiting = await client.post("/v2/models/waits/infer", json={"inputs": INPUTS})
            assert (waiting.status_code, waiting.json()["reason"]) == (503, "MODEL_LOADING")
            assert why in waiting.json()["error"]
    finally:
        await served.models.stop()
        await runtimes.stop()


@pytest.mark.long
async def test_connections_to_hns_of_unloaded_models_end(
    stack: ExitStack, mesh: dict[str, str], model: Path
) -> None:
    models = [part for key in ("m/1", "m/2") for part in ("--model", f"{key}={model}")]
    one, other = (stack.enter_context(hn(mesh, *models))[0] for _ in range(2))
    runtimes = runtimes_of(mesh)

    async def connected() -> set[str]:
        [server] = [server for group in runtimes._servers.values() for server in group.fleets["cn"].servers]
        told: Any = await server.ask({"op": "ping"}, timeout_s=60.0)
        return set(told["hns"])

    try:
        for key, address in (("m/1", one), ("m/2", other)):
            await runtimes.load("torch", key, model, settings=ServingSettings(hns=(address,)), timeout_s=LOAD_S)
        assert await connected() == {one, other}
        await runtimes.unload("torch", "m/2")
        assert await connected() == {one}
        await runtimes.load("torch", "m/1", model, settings=ServingSettings(hns=(other,)), timeout_s=LOAD_S)
        assert await connected() == {other}
        with pytest.raises(MeshError):
            nowhere = ServingSettings(hns=("tcp:127.0.0.1:1",))
            await runtimes.load("torch", "m/2", model, settings=nowhere, timeout_s=1.0)
        assert await connected() == {other}
    finally:
        await runtimes.stop()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """A process that is busy may not say at once how it is."""
    async with asyncio.timeout(180.0):
        while not await condition():  # noqa: ASYNC110 (other processes are waited for)
            await asyncio.sleep(0.05)


async def queues(served: Gateway, runtimes: Runtimes) -> dict[str, Sequence[Any]]:
    """Rows of the page, by process."""
    mesh = Mesh({}, token=None, tls=None)
    view = View(served.models, served.observation, runtimes, mesh, served.scaling, dashboards={})
    return {str(row[0]): row for row in await ServingView(view).queues({})}


async def states(runtimes: Runtimes, *addresses: str) -> list[Any]:
    """Of HNs, as the CN tells them; None of one that is not there, or has not told."""
    [(_, told)] = await runtimes.told()
    hns = told.get("status", {}).get("hns", {})
    return [hns.get(address, {}).get("status") for address in addresses]
