"""Ensembles: what is refused, and how steps run."""

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from recmesh.runtime import deadline
from recmesh.runtime.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, MeshError
from services.gateway.domain.inference import InferRequest
from services.gateway.domain.models import Registration
from services.gateway.domain.tensors import Tensor
from tests.support.gateway import CARD, Gateway, gateway, http

pytestmark = pytest.mark.asyncio

FIRST = {"model": "tiny", "inputs": {"x": "x", "id": "id"}, "outputs": {"predictions": "sum"}}
SECOND = {
    "model": "tiny", "version": "1", "inputs": {"x": "sum", "id": "id"}, "outputs": {"predictions": "predictions"}
}  # fmt: skip
"""x + id + id"""


def card(*steps: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**CARD, "framework": "ensemble", "steps": list(steps or (FIRST, SECOND)), **changes}


def request(value: float = 1.0, **parameters: Any) -> InferRequest:
    x, ids = np.array([value], np.float32), np.array([2], np.int64)
    return InferRequest("both", "", (Tensor.of("x", x), Tensor.of("id", ids)), id="9", parameters=parameters)


async def serving(root: Path) -> Gateway:
    made = gateway(root)
    await made.models.start()
    await made.models.register(Registration("tiny", "1", made.folder(), "torch", load=True))
    await made.settled()
    return made


async def add(made: Gateway, document: dict[str, Any], name: str = "both") -> None:
    uri = made.folder(name, card=document)
    await made.models.register(Registration(name, "1", uri, "ensemble", load=True))
    await made.settled()


async def test_steps_hand_tensors_on_whatever_their_order_in_the_file(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    await add(made, card(SECOND, FIRST))
    response = await made.models.infer(request())
    assert (response.model, response.id, response.outputs[0].name) == ("both", "9", "predictions")
    assert response.outputs[0].array.tolist() == [5.0]


async def test_steps_that_wait_for_nothing_run_side_by_side(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    other = {**FIRST, "outputs": {"predictions": "other"}}
    last = {"model": "tiny", "inputs": {"x": "sum", "id": "id"}, "outputs": {"predictions": "predictions"}}
    outputs = [{"name": name, "dtype": "float32", "shape": [-1]} for name in ("predictions", "other")]
    await add(made, card(FIRST, other, last, outputs=outputs))
    made.runtimes.hold = asyncio.Event()
    asking = asyncio.create_task(made.models.infer(request()))
    async with asyncio.timeout(10.0):
        while len(made.runtimes.ran) < 2:  # noqa: ASYNC110 (nobody signals a run)
            await asyncio.sleep(0)
    made.runtimes.hold.set()
    assert [item.array.tolist() for item in (await asking).outputs] == [[5.0], [3.0]]


@pytest.mark.parametrize(
    ("document", "path", "why"),
    [
        (card({**FIRST, "model": "nobody"}, SECOND), "model.json.steps[0].model", "not registered"),
        (card({**FIRST, "inputs": {"x": "x", "id": "x"}}, SECOND), "model.json.steps[0].inputs.id", "is FP32"),
        (card({**FIRST, "inputs": {"x": "x"}}, SECOND), "model.json.steps[0].inputs", "'id' gets nothing"),
        (card({**FIRST, "outputs": {"score": "sum"}}, SECOND), "model.json.steps[0].outputs", "no output 'score'"),
        (card(FIRST), "model.json.outputs", "nothing makes 'predictions'"),
        (card(FIRST, SECOND, SECOND), "model.json.steps[2].outputs", "comes from steps[1]"),
        (card({**FIRST, "inputs": {"x": "predictions", "id": "id"}}, SECOND), "model.json.inputs", "no step reads"),
        (card({**FIRST, "inputs": {"x": "gone", "id": "id"}}, SECOND), "model.json.steps[0].inputs", "makes gone"),
        (card({**FIRST, "extra": 1}, SECOND), "model.json.steps[0].extra", "not known"),
        (card(steps=[]), "model.json.steps", "1 to 64"),
    ],
)  # fmt: skip
async def test_an_ensemble_that_does_not_fit_is_not_registered(
    tmp_path: Path, document: dict[str, Any], path: str, why: str
) -> None:
    made = await serving(tmp_path)
    with pytest.raises(InvalidArgument) as caught:
        await add(made, document)
    found = {item.path: item.reason for item in caught.value.violations}
    assert why in found.get(path, ""), found


async def test_steps_in_a_circle_are_refused_by_name(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    one = {**FIRST, "inputs": {"x": "predictions", "id": "id"}}
    reads_x = {**FIRST, "outputs": {"predictions": "unused"}}
    with pytest.raises(InvalidArgument) as caught:
        await add(made, card(one, SECOND, reads_x))
    assert "in a circle: steps[0] (tiny), steps[1] (tiny)" in str(caught.value)


async def test_an_ensemble_that_runs_itself_through_another_is_refused(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    await add(made, card())
    outer = {"model": "both", "inputs": {"x": "x", "id": "id"}, "outputs": {"predictions": "predictions"}}
    await add(made, card(outer), "outer")
    assert (await made.models.infer(InferRequest("outer", "", request().inputs))).outputs[0].array.tolist() == [5.0]
    inner = {"model": "outer", "inputs": {"x": "x", "id": "id"}, "outputs": {"predictions": "predictions"}}
    folder = made.root / "models" / "both" / "2"
    folder.mkdir()
    (folder / "model.json").write_text(json.dumps(card(inner)))
    with pytest.raises(InvalidArgument, match="runs itself: both → outer → both"):
        await made.models.register(Registration("both", "2", "models/both/2", "ensemble", load=True))


async def test_an_ensemble_serves_as_long_as_all_its_models_do(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    await add(made, card())
    assert made.models.serving.is_ready("both")
    await made.models.unload("tiny")
    assert not made.models.serving.is_ready("both")
    with pytest.raises(FailedPrecondition, match="a step of the ensemble"):
        await made.models.infer(request())
    with pytest.raises(MeshError, match="tiny, tiny version 1, which do not serve"):
        await made.models.load("both")


async def test_one_deadline_is_over_for_all_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await serving(tmp_path)
    await add(made, card())
    left: list[float] = []
    inner = made.runtimes.infer

    async def timed(*args: Any, timeout_s: float, **kwargs: Any) -> Any:
        left.append(timeout_s)
        monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 60.0))
        return await inner(*args, timeout_s=timeout_s, **kwargs)

    made.runtimes.infer = timed
    with pytest.raises(DeadlineExceeded):
        await made.models.infer(request(timeout=60_000_000))
    assert len(left) == 1 and 0 < left[0] <= 60.0


async def test_the_ensemble_s_time_is_its_caller_s_also_where_it_is_longer_than_usual(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    await add(made, card())
    left: list[float] = []
    inner = made.runtimes.infer

    async def timed(*args: Any, timeout_s: float, **kwargs: Any) -> Any:
        left.append(timeout_s)
        return await inner(*args, timeout_s=timeout_s, **kwargs)

    made.runtimes.infer = timed
    await made.models.infer(request(timeout=100_000_000))
    assert len(left) == 2 and min(left) > 60


async def test_ensembles_in_ensembles_do_not_multiply_without_end(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    names = ["sum", *(f"t{index}" for index in range(1, 16))]
    steps = [{**FIRST, "outputs": {"predictions": name}} for name in names]
    outputs = [{"name": "sum", "dtype": "float32", "shape": [-1]}]
    await add(made, card(*steps, outputs=outputs), name="once")
    twice = [{**FIRST, "model": "once", "outputs": {"sum": name}} for name in names]
    with pytest.raises(InvalidArgument) as caught:
        await add(made, card(*twice, outputs=outputs), name="twice")
    assert "more than 256 runs" in caught.value.violations[0].reason


async def test_the_configuration_shows_the_steps_and_unloading_may_take_them_along(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    await add(made, card())
    async with http(made) as client:
        config = (await client.get("/v2/models/both/config")).json()
        assert [item["model_name"] for item in config["ensemble_scheduling"]["step"]] == ["tiny", "tiny"]
        body = {"parameters": {"unload_dependents": True}}
        assert (await client.post("/v2/repository/models/both/unload", json=body)).status_code == 200
        assert (await client.get("/v2/models/tiny/ready")).status_code == 503
