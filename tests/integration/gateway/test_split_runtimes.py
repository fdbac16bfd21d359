"""Models in halves as real processes: both frameworks, death of either process, swaps, refusals."""

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import pytest_asyncio
from prometheus_client import generate_latest

from recmesh.runtime.errors import DataLoss, FailedPrecondition, Unavailable
from recmesh.serving.settings import ServingSettings
from recmesh.serving.tensors import Tensor
from services.gateway.config import child_environment
from services.gateway.runtimes.inspection import Inspection
from services.gateway.runtimes.pool import Runtimes
from services.gateway.runtimes.process import Limits
from tests.support import split_models
from tests.support.gateway import gateway, http

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

LOAD_S = 240.0
AUTO, NEVER = ServingSettings(), ServingSettings(split="never")


@pytest_asyncio.fixture
async def runtimes() -> AsyncIterator[Runtimes]:
    made = Runtimes(environment=child_environment(os.environ), limits=Limits(backoff_s=(0.1,)), log=print)
    yield made
    await made.stop()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return split_models.torch_model(tmp_path_factory.mktemp("models") / "1", post=True)


async def predict(runtimes: Runtimes, key: str, *, framework: str = "torch", id_: int = 3) -> float:
    inputs = [Tensor.of("x", np.array([0.5], np.float32)), Tensor.of("id", np.array([id_], np.int64))]
    tensors, times = await runtimes.infer(framework, key, inputs, ["predictions"], timeout_s=60.0, priority=100)
    assert times.compute_ns > 0
    return float(tensors[0].array[0])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(180.0):
        while not condition():  # noqa: ASYNC110 (another process is what is waited for)
            await asyncio.sleep(0.02)


def metrics() -> str:
    return generate_latest().decode()


def phases_in_metrics(model: str) -> dict[str, float]:
    """How many requests were counted in each phase of its histogram."""
    found = re.findall(
        rf'recmesh_gateway_infer_phase_seconds_count{{model="{model}",phase="(\w+)",version="1"}} (\S+)', metrics()
    )
    return {phase: float(count) for phase, count in found}


def pid(runtimes: Runtimes, which: str) -> int:
    return next(item.pid for item in runtimes.status() if item.framework.endswith(which))


async def under_way(runtimes: Runtimes, which: str) -> int:
    """Requests that the CN, or the HN, has been sent and has not answered."""
    [cn] = [server for group in runtimes._servers.values() for server in group.fleets["cn"].servers]
    if which == "CN":
        return cn.in_flight
    told: Any = await cn.ask({"op": "ping"}, timeout_s=60.0)
    return sum(hn["in_flight"] for hn in told["hns"].values())


@pytest.mark.long
async def test_either_process_may_be_killed_under_load_and_the_model_serves_again(
    runtimes: Runtimes, model: Path
) -> None:
    await runtimes.load("torch", "m/1", model, settings=AUTO, timeout_s=LOAD_S)
    expected = split_models.expected(3, 0.5)
    assert await predict(runtimes, "m/1") == expected
    for which, reason in (("HN", "HN_LOST"), ("CN", "RUNTIME_CRASHED")):
        victim = pid(runtimes, which)
        os.kill(victim, signal.SIGSTOP)
        in_flight = [asyncio.create_task(predict(runtimes, "m/1")) for _ in range(4)]
        async with asyncio.timeout(180.0):       # on their way: either answered never, or by nobody but the victim
            while await under_way(runtimes, which) < 4:  # noqa: ASYNC110 (other processes are waited for)
                await asyncio.sleep(0.02)
        os.kill(victim, signal.SIGKILL)
        for outcome in await asyncio.gather(*in_flight, return_exceptions=True):
            assert isinstance(outcome, Unavailable) and outcome.reason == reason
        await until(lambda: not runtimes.serves("torch", "m/1"))
        with pytest.raises(Unavailable):
            await predict(runtimes, "m/1")
        await until(lambda: runtimes.serves("torch", "m/1"))
        assert await predict(runtimes, "m/1") == expected
    both = [pid(runtimes, "HN"), pid(runtimes, "CN")]
    for each in both:
        os.kill(each, signal.SIGKILL)
    await until(lambda: not runtimes.serves("torch", "m/1"))
    await until(lambda: runtimes.serves("torch", "m/1"))
    assert await predict(runtimes, "m/1") == expected
    await runtimes.unload("torch", "m/1")
    await until(lambda: not any(map(psutil.pid_exists, both)) and runtimes.status() == [])


@pytest.mark.long
async def test_versions_whole_and_split_follow_each_other(runtimes: Runtimes, model: Path, tmp_path: Path) -> None:
    await runtimes.load("torch", "m/1", model, settings=NEVER, timeout_s=LOAD_S)
    assert [item.framework for item in runtimes.status()] == ["torch"]
    await runtimes.load("torch", "m/1", model, settings=AUTO, timeout_s=LOAD_S)
    await until(lambda: len(runtimes.status()) == 2)
    assert await predict(runtimes, "m/1") == split_models.expected(3, 0.5)
    other = tmp_path / "other"
    shutil.copytree(model, other)
    (other / "model.pt2").write_bytes(b"exported again")
    with pytest.raises(DataLoss, match="another model"):
        await runtimes.load("torch", "m/2", other, settings=AUTO, timeout_s=LOAD_S)
    shutil.rmtree(other / "split")
    with pytest.raises(FailedPrecondition, match=r"split/split\.json"):
        await runtimes.load("torch", "m/2", other, settings=ServingSettings(split="always"), timeout_s=LOAD_S)
    assert await predict(runtimes, "m/1") == split_models.expected(3, 0.5)
    assert pid(runtimes, "HN") and runtimes.status()[0].restarts == 0


@pytest.mark.long
async def test_what_recmesh_partition_made_is_registered_and_served_in_halves(
    runtimes: Runtimes, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    folder = tmp_path / "models" / "pooled" / "1"
    module = split_models.pooled_model(folder)
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "recmesh.cli.main", "partition", str(folder), "--batch", "6", "--length", "5"
    )
    assert await made.wait() == 0
    bags, lengths, xs = [[1, 2, 3], [4, 5, 0]], [3, 2], [0.5, -1.0]
    inputs = [
        {"name": "bag", "datatype": "INT64", "shape": [2, 3], "data": bags},
        {"name": "bag.lengths", "datatype": "INT64", "shape": [2], "data": lengths},
        {"name": "x", "datatype": "FP32", "shape": [2], "data": xs},
    ]
    given = {"bag": torch.tensor(bags), "bag.lengths": torch.tensor(lengths), "x": torch.tensor(xs)}
    expected = module(given)["predictions"].tolist()
    served = gateway(tmp_path, runtimes=runtimes)
    await served.models.start()
    async with http(served) as client:
        async def answered() -> list[float]:
            reply = await client.post("/v2/models/pooled/infer", json={"inputs": inputs})
            assert reply.status_code == 200, reply.text
            values: list[float] = reply.json()["outputs"][0]["data"]
            return values

        body = {"name": "pooled", "uri": "models/pooled/1", "framework": "torch",
                "serving": {"split": "always", "max_batch_size": 8}}  # fmt: skip
        registered = await client.post("/v1/models", json=body)
        assert (registered.status_code, registered.json()["serving"]) == (201, body["serving"])
        await served.settled()
        assert sorted(item.framework for item in runtimes.status()) == ["torch CN", "torch HN"]
        assert await answered() == expected
        assert phases_in_metrics("pooled") == {"queue": 1.0, "input": 1.0, "infer": 1.0, "output": 1.0}
        refused = await client.post("/v2/models/pooled/infer", json={"inputs": inputs[:1]})
        assert refused.status_code == 400
        assert f'failures_total{{model="pooled",reason="{refused.json()["reason"]}",version="1"}} 1.0' in metrics()
        told = {item.kind: said for item, said in await runtimes.told()}
        assert told["hn"]["answered"] == {"pooled/1": 2} and told["hn"]["idle"] and told["hn"]["admission"] is None
        assert told["hn"]["busy_s"]["pooled/1"] > 0 and told["cn"]["busy_s"] > 0
        (folder / "split" / "pre" / "model.pt2").write_bytes(b"damaged")
        assert (await client.post("/v1/models/pooled:load")).json()["reason"] == "BAD_SPLIT"
        assert await answered() == expected
    await served.models.stop()


@pytest.mark.long
async def test_a_model_that_serves_takes_halves_up_when_it_is_loaded_again_and_no_request_fails(
    runtimes: Runtimes, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    folder = tmp_path / "bought"
    split_models.bare_model(folder)
    inputs = [
        {"name": "id", "datatype": "INT64", "shape": [1], "data": [3]},
        {"name": "x", "datatype": "FP32", "shape": [1], "data": [0.5]},
    ]
    inspection = Inspection(environment=child_environment(os.environ), timeout_s=LOAD_S)
    served = gateway(tmp_path, runtimes=runtimes, inspect=inspection.inspect)
    await served.models.start()
    async with http(served) as client:
        answers: list[httpx.Response] = []
        ended = asyncio.Event()

        async def ask() -> None:
            while not ended.is_set():
                answers.append(await client.post("/v2/models/bought/infer", json={"inputs": inputs}))

        body = {"name": "bought", "uri": "bought"}
        assert (await client.post("/v1/models", json=body)).status_code == 201
        await served.settled()
        assert [item.way for item in runtimes.status()] == ["whole"]
        asking = [asyncio.create_task(ask()) for _ in range(4)]
        made = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "recmesh.cli.main", "partition", str(folder), "--batch", "6"
        )
        assert await made.wait() == 0
        loaded = await client.post("/v2/repository/models/bought/load")
        assert (loaded.status_code, "split" in {item.way for item in runtimes.status()}) == (200, True)
        enough = len(answers) + 20
        await until(lambda: len(answers) >= enough and {item.way for item in runtimes.status()} == {"split"})
        ended.set()
        await asyncio.gather(*asking)
        assert {answer.status_code for answer in answers} == {200}, {answer.text for answer in answers}
        assert {answer.json()["outputs"][0]["data"][0] for answer in answers} == {split_models.expected(3, 0.5)}
    await served.models.stop()


@pytest.mark.long
async def test_a_split_savedmodel_is_served(runtimes: Runtimes, tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    folder = tmp_path / "tf"
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys, pathlib; from tests.support.split_models import tensorflow_model;"
        "tensorflow_model(pathlib.Path(sys.argv[1]))", str(folder),
    )  # fmt: skip
    assert await made.wait() == 0
    always = ServingSettings(split="always", max_batch_size=8)
    await runtimes.load("tensorflow", "t/1", folder, settings=always, timeout_s=LOAD_S)
    values = await asyncio.gather(*(predict(runtimes, "t/1", framework="tensorflow", id_=each) for each in range(8)))
    assert values == [split_models.expected(each, 0.5) for each in range(8)]
