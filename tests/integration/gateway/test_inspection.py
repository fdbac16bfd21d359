"""Saved programs are read by a process of their own; what they are served as is what they say of themselves."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from recmesh.runtime.errors import DeadlineExceeded, InvalidArgument
from services.gateway.config import child_environment
from services.gateway.domain.inference import InferRequest
from services.gateway.domain.models import Registration
from services.gateway.domain.tensors import Tensor
from services.gateway.runtimes.inspection import Inspection
from services.gateway.runtimes.pool import Runtimes
from services.gateway.runtimes.process import Limits
from tests.support.gateway import gateway
from tests.support.oip_models import tensorflow_model

pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
READ_S = 240.0


def inspection(timeout_s: float = READ_S) -> Inspection:
    return Inspection(child_environment(os.environ), timeout_s=timeout_s)


def bought(file: Path) -> None:
    """(x, ids) to x + ids and the shape (B, 2), exported with no thought of us."""
    import torch

    class Model(torch.nn.Module):  # type: ignore[misc]  # torch is not analysed
        def forward(self, x: torch.Tensor, ids: torch.Tensor) -> Any:
            return x + ids.to(torch.float32), torch.stack([x, x], 1)

    batch = torch.export.Dim("batch", min=1)
    example = (torch.zeros(3), torch.zeros(3, dtype=torch.int64))
    program = torch.export.export(Model(), example, dynamic_shapes=({0: batch}, {0: batch}))
    file.parent.mkdir(parents=True)
    torch.export.save(program, str(file))


@pytest.mark.long
async def test_a_pt2_by_its_path_is_served(tmp_path: Path) -> None:
    bought(tmp_path / "bought" / "ctr.pt2")
    runtimes = Runtimes(environment=child_environment(os.environ), limits=Limits(), log=print)
    made = gateway(tmp_path, runtimes=runtimes, inspect=inspection().inspect)
    await made.models.start()
    await made.models.register(Registration("ctr", "", "bought/ctr.pt2", "torch", load=True))
    await made.settled()
    record, card, _ = await made.inference.metadata("ctr")
    inputs = Tensor.of("x", np.array([1.5, 2], np.float32)), Tensor.of("ids", np.array([2, 3]))
    assert record.state == "ready", record.reason
    answer = await made.models.infer(InferRequest("ctr", "", inputs))
    await made.models.stop()
    await runtimes.stop()
    assert [(item.name, item.datatype.name, item.shape) for item in (*card.inputs, *card.outputs)] == [
        ("x", "FP32", (-1,)), ("ids", "INT64", (-1,)), ("output_0", "FP32", (-1,)), ("output_1", "FP32", (-1, 2)),
    ]
    assert answer.outputs[0].array.tolist() == [3.5, 5.0]


@pytest.mark.slow
async def test_a_saved_model_by_its_path_is_served(tmp_path: Path) -> None:
    folder = tensorflow_model(tmp_path / "made")
    (folder / "model.json").unlink()
    runtimes = Runtimes(environment=child_environment(os.environ), limits=Limits(), log=print)
    made = gateway(tmp_path, runtimes=runtimes, inspect=inspection().inspect)
    await made.models.start()
    await made.models.register(Registration("ctr", "", "made/saved_model", "tensorflow", load=True))
    await made.settled()
    record, card, _ = await made.inference.metadata("ctr")
    assert record.state == "ready", record.reason
    inputs = (
        Tensor.of("x", np.array([1.0], np.float32)), Tensor.of("id", np.array([2])),
        Tensor.of("tags_lengths", np.array([[3, 4]])), Tensor.of("city", np.array(["Oslo"], object)),
    )
    answer = await made.models.infer(InferRequest("ctr", "", inputs))
    await made.models.stop()
    await runtimes.stop()
    assert {item.name: item.array.tolist() for item in answer.outputs} == {
        "city_bytes": [4], "predictions": [10.0], "shout": [b"OSLO"],
    }
    assert {item.name: item.shape for item in card.inputs}["tags_lengths"] == (-1, -1)


async def test_a_file_that_is_no_program_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "ctr.pt2").write_bytes(b"no archive")
    with pytest.raises(InvalidArgument, match="is no archive of torch"):
        await inspection().inspect("torch", tmp_path / "ctr.pt2")


async def test_reading_ends_with_its_time(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with pytest.raises(DeadlineExceeded, match="was not read within"):
        await inspection(0.01).inspect("torch", tmp_path / "ctr.pt2")
    assert set(psutil.Process().children()) == before
