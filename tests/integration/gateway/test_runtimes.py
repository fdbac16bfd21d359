"""Model servers as real processes: both frameworks, death, hanging, broken models."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import pytest_asyncio

from recmesh.runtime.errors import DeadlineExceeded, InvalidArgument, MeshError, Unavailable
from recmesh.serving.settings import ServingSettings
from services.gateway.config import child_environment
from services.gateway.domain.tensors import Tensor
from services.gateway.runtimes.pool import Runtimes
from services.gateway.runtimes.process import Limits, ModelServer
from tests.support.oip_models import torch_model

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]

LOAD_S = 240.0
SETTINGS = ServingSettings()


@pytest_asyncio.fixture
async def runtimes() -> AsyncIterator[Runtimes]:
    made = Runtimes(environment=child_environment(os.environ), limits=Limits(backoff_s=(0.1,)), log=print)
    yield made
    await made.stop()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return torch_model(tmp_path_factory.mktemp("models") / "1")


async def predict(runtimes: Runtimes, key: str, *, framework: str = "torch") -> list[float]:
    inputs = [Tensor.of("x", np.array([1.5], np.float32)), Tensor.of("id", np.array([2], np.int64))]
    tensors, _times = await runtimes.infer(
        framework, key, inputs, ["predictions"], timeout_s=60.0, priority=100
    )
    values: list[float] = tensors[0].array.tolist()
    return values


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(180.0):
        while not condition():  # noqa: ASYNC110 (another process is what is waited for)
            await asyncio.sleep(0.02)


@pytest.mark.long
async def test_a_killed_model_server_comes_back_with_its_models(runtimes: Runtimes, model: Path) -> None:
    await runtimes.load("torch", "m/1", model, settings=SETTINGS, timeout_s=LOAD_S)
    assert await predict(runtimes, "m/1") == [3.5]
    pid = runtimes.status()[0].pid
    os.kill(pid, signal.SIGSTOP)
    in_flight = asyncio.create_task(predict(runtimes, "m/1"))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="signal 9"):
        await in_flight
    await until(lambda: runtimes.serves("torch", "m/1"))
    assert await predict(runtimes, "m/1") == [3.5]
    assert (runtimes.status()[0].restarts, runtimes.status()[0].pid == pid) == (1, False)


@pytest.mark.long
async def test_a_model_that_is_gone_after_a_crash_is_reported_and_the_others_serve(
    runtimes: Runtimes, model: Path, tmp_path: Path
) -> None:
    other = torch_model(tmp_path / "other", bias=1.0)
    lost: list[tuple[str, str]] = []
    runtimes.lost = lambda _framework, key, reason: lost.append((key, reason))
    await runtimes.load("torch", "m/1", model, settings=SETTINGS, timeout_s=LOAD_S)
    await runtimes.load("torch", "other/1", other, settings=SETTINGS, timeout_s=LOAD_S)
    (other / "model.pt2").unlink()
    os.kill(runtimes.status()[0].pid, signal.SIGKILL)
    await until(lambda: bool(lost) and runtimes.serves("torch", "m/1"))
    assert lost == [("other/1", "the model folder has no model.pt2")]
    assert await predict(runtimes, "m/1") == [3.5]


async def test_a_broken_model_is_refused_while_the_other_serves(
    runtimes: Runtimes, model: Path, tmp_path: Path
) -> None:
    await runtimes.load("torch", "m/1", model, settings=SETTINGS, timeout_s=LOAD_S)
    broken = tmp_path / "broken"
    broken.mkdir()
    card = (model / "model.json").read_text()
    (broken / "model.json").write_text(card.replace('"predictions"', '"scores"'))
    (broken / "model.pt2").write_bytes((model / "model.pt2").read_bytes())
    with pytest.raises(InvalidArgument, match="scores"):
        await runtimes.load("torch", "broken/1", broken, settings=SETTINGS, timeout_s=LOAD_S)
    (broken / "model.pt2").write_bytes(b"no zip")
    with pytest.raises(MeshError):
        await runtimes.load("torch", "broken/1", broken, settings=SETTINGS, timeout_s=LOAD_S)
    assert await predict(runtimes, "m/1") == [3.5]


async def test_the_last_unloaded_model_ends_the_process(runtimes: Runtimes, model: Path) -> None:
    await runtimes.load("torch", "m/1", model, settings=SETTINGS, timeout_s=LOAD_S)
    pid = runtimes.status()[0].pid
    await runtimes.unload("torch", "m/1")
    await until(lambda: not psutil.pid_exists(pid))
    assert runtimes.status() == []


@pytest.mark.long
async def test_a_savedmodel_is_served_with_its_strings_and_one_that_hangs_stops_no_other(
    runtimes: Runtimes, tmp_path: Path
) -> None:
    pytest.importorskip("tensorflow")
    folder = tmp_path / "tf"
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "import sys, pathlib; from tests.support.oip_models import tensorflow_model;"
        "tensorflow_model(pathlib.Path(sys.argv[1]))", str(folder),
    )  # fmt: skip
    assert await made.wait() == 0
    await runtimes.load("tensorflow", "t/1", folder, settings=SETTINGS, timeout_s=LOAD_S)
    city = np.array([b"Oslo", "Malmö".encode()], dtype=object)
    inputs = [
        Tensor.of("x", np.array([1.0, 2.0], np.float32)),
        Tensor.of("id", np.array([3, 4], np.int64)),
        Tensor.of("tags.lengths", np.array([[1, 1], [0, 1]], np.int64)),
        Tensor.of("city", city),
    ]
    outputs = ["shout", "predictions", "city_bytes"]
    await runtimes.load("tensorflow", "hangs/1", folder, settings=SETTINGS, timeout_s=LOAD_S)
    endless = Tensor.of("id", np.array([3, 1 << 60], np.int64))
    with pytest.raises(DeadlineExceeded):
        await runtimes.infer(
            "tensorflow", "hangs/1", [inputs[0], endless, *inputs[2:]], outputs, timeout_s=0.5, priority=100
        )
    tensors, times = await runtimes.infer(
        "tensorflow", "t/1", inputs, outputs, timeout_s=60.0, priority=100
    )
    assert [item.name for item in tensors] == outputs
    assert tensors[0].array.tolist() == [b"OSLO", b"MALM" + "ö".encode()]
    assert tensors[1].array.tolist() == [6.0, 7.0]
    assert tensors[2].array.tolist() == [4, 6]
    assert times.compute_ns > 0


async def test_a_process_that_dies_of_a_version_starts_with_the_one_that_it_is_told_to_hold(tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    server = ModelServer(
        "picky", command=["tests.support.picky_server"], limits=Limits(backoff_s=(0.02,)), log=print,
        environment={**child_environment(os.environ), "POISON": str(poison)}, lost=lambda *_: None,
    )  # fmt: skip
    try:
        await server.load("m/1", tmp_path, settings=SETTINGS, part="whole", timeout_s=60.0)
        poison.touch()
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: server.restarts > 1)
        held, told = ServingSettings.parse({"freshness": {"held": 7}}), None
        async with asyncio.timeout(60.0):
            while told is None:
                with contextlib.suppress(Unavailable):
                    told = await server.freshen("m/1", "rollback", 7, settings=held, timeout_s=60.0)
        assert told["status"]["version"] == 7 and server.serves("m/1")
    finally:
        await server.stop()
