"""Raw columns over REST and gRPC, transformed by the real process, to a model that adds its inputs."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import psutil
import pytest
import pytest_asyncio

from recmesh.client.rows import request_for
from recmesh.pb import inference_pb2 as pb
from recmesh.pb import inference_pb2_grpc
from recmesh.spec.dataset import DatasetSpec
from services.gateway.config import child_environment
from services.gateway.domain.models import Registration
from services.gateway.rpc.server import server
from services.gateway.runtimes.features import Features
from services.gateway.runtimes.process import Limits
from tests.support.gateway import CARD, Gateway, gateway, http, open_to

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

FEATURES: list[dict[str, Any]] = [
    {"name": "id", "column": "origin", "buckets": 1000},
    {"name": "x", "kind": "dense", "column": "distance", "transform": "log1p"},
]
ROWS: list[dict[str, Any]] = [
    {"origin": "JFK", "distance": 2475.0}, {"origin": "Ørsta", "distance": 12.5}, {"origin": None, "distance": None},
]
CARD_WITH_TRANSFORM = CARD | {"transform": {"version": 1, "features": FEATURES, "int_columns": []}}
COLUMNS = [
    {"name": "origin", "datatype": "BYTES", "shape": [3], "data": ["JFK", "Ørsta", ""]},
    {"name": "distance", "datatype": "FP64", "shape": [3], "data": [2475.0, 12.5, 0.0]},
    {"name": "distance.null", "datatype": "BOOL", "shape": [3], "data": [False, False, True]},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    features = Features(
        environment=child_environment(os.environ), limits=Limits(backoff_s=(0.1,)), functions=None, log=print
    )
    made = gateway(tmp_path_factory.mktemp("storage"), features=features)
    await made.models.start()
    for name, card in (("tiny", CARD_WITH_TRANSFORM), ("plain", CARD)):
        await made.models.register(Registration(name, "", made.folder(name, card=card), "torch", load=True))
    await made.settled()
    yield made
    await made.models.stop()
    await features.stop()


async def test_raw_columns_give_bit_for_bit_what_transformed_ones_give(served: Gateway) -> None:
    data = DatasetSpec.parse({"source": {"files": ["x"]}, "features": FEATURES})
    async with http(served) as client:
        metadata = (await client.get("/v2/models/tiny")).json()
        ready = (await client.post("/v2/models/tiny/infer", json=request_for(metadata, ROWS, data=data))).json()
        rows = await client.post("/v2/models/tiny/predict", json={"rows": ROWS, "id": "r1"})
        raw = await client.post(
            "/v2/models/tiny/versions/1/infer", json={"inputs": COLUMNS, "parameters": {"raw": True}}
        )
    assert raw.json()["outputs"] == rows.json()["outputs"] == ready["outputs"]
    assert rows.json()["id"] == "r1"
    assert metadata["raw_inputs"][0] == {
        "name": "origin", "datatypes": ["INT64", "BYTES", *metadata["raw_inputs"][0]["datatypes"][2:]], "shape": [-1],
        "features": ["id"],
    }


async def test_raw_columns_over_grpc_are_the_same(served: Gateway) -> None:
    listening = server(
        "127.0.0.1:0", served.models, served.inference, served.regions, token="mesh", access=open_to(), tls=None
    )
    await listening.start()
    async with http(served) as client:
        rows = (await client.post("/v2/models/tiny/predict", json={"rows": ROWS[:2]})).json()
    request = pb.ModelInferRequest(model_name="tiny")
    request.parameters["raw"].bool_param = True
    origin = request.inputs.add(name="origin", datatype="BYTES", shape=[2])
    origin.contents.bytes_contents.extend([b"JFK", "Ørsta".encode()])
    request.inputs.add(name="distance", datatype="FP64", shape=[2]).contents.fp64_contents.extend([2475.0, 12.5])
    async with grpc.aio.insecure_channel(listening.address) as channel:
        stub: Any = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = await stub.ModelInfer(request)
        described = await stub.ModelMetadata(pb.ModelMetadataRequest(name="tiny"))
    await listening.stop()
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == rows["outputs"][0]["data"]
    assert [item.name for item in described.raw_inputs] == ["origin", "distance"]


async def test_what_is_wrong_with_a_raw_request_is_said_by_column(served: Gateway) -> None:
    wrong = [COLUMNS[0] | {"datatype": "FP32", "data": [1.0, 2.0, 3.0]}, *COLUMNS[1:]]
    async with http(served) as client:
        column = await client.post("/v2/models/tiny/infer", json={"inputs": wrong, "parameters": {"raw": True}})
        field = await client.post("/v2/models/tiny/predict", json={"rows": [{"origin": "JFK", "distance": "far"}]})
        shape = await client.post("/v2/models/tiny/predict", json={"rows": [1]})
        none = await client.post("/v2/models/plain/predict", json={"rows": ROWS})
    assert (column.status_code, column.json()["violations"][0]["path"]) == (400, "inputs.origin")
    assert (field.status_code, field.json()["violations"][0]["path"]) == (400, "distance")
    assert (column.json()["reason"], field.json()["reason"]) == ("INPUT_MISMATCH", "INPUT_MISMATCH")
    assert (shape.status_code, shape.json()["violations"][0]["path"]) == (400, "rows[0]")
    assert (none.status_code, none.json()["reason"]) == (409, "NO_RAW_INPUTS")


async def test_a_killed_process_comes_back_with_its_transforms(served: Gateway) -> None:
    async with http(served) as client:
        assert (await client.post("/v2/models/tiny/predict", json={"rows": ROWS})).status_code == 200
        children = [each for each in psutil.Process().children() if "recmesh.serving.raw" in " ".join(each.cmdline())]
        os.kill(children[0].pid, signal.SIGKILL)
        async with asyncio.timeout(120):
            while True:
                answer = await client.post("/v2/models/tiny/predict", json={"rows": ROWS})
                if answer.status_code == 200:
                    break
                assert answer.status_code == 503, answer.text
                await asyncio.sleep(0.05)
    again = [each for each in psutil.Process().children() if "recmesh.serving.raw" in " ".join(each.cmdline())]
    assert [each.pid for each in again] != [children[0].pid]


async def test_the_process_ends_with_the_last_model_it_was_asked_for(tmp_path: Path) -> None:
    features = Features(environment=child_environment(os.environ), limits=Limits(), functions=None, log=print)
    made = gateway(tmp_path, features=features)
    await made.models.start()
    await made.models.register(Registration("tiny", "", made.folder(card=CARD_WITH_TRANSFORM), "torch", load=True))
    await made.settled()
    before = set(psutil.Process().children())
    async with http(made) as client:
        assert (await client.post("/v2/models/tiny/predict", json={"rows": ROWS})).status_code == 200
        (child,) = set(psutil.Process().children()) - before
        await client.post("/v1/models/tiny:unload")
    await features.stop()
    assert not child.is_running()


async def test_a_function_that_hangs_or_exits_keeps_no_other_model_waiting(tmp_path: Path) -> None:
    code = tmp_path / "functions"
    code.mkdir()
    (code / "raw_tricks.py").write_text(
        "import time\n\ndef hangs(values):\n    time.sleep(600)\n\ndef exits(values):\n    raise SystemExit(3)\n"
    )
    features = Features(environment=child_environment(os.environ), limits=Limits(), functions=code, log=print)
    made = gateway(tmp_path, features=features)
    await made.models.start()
    for name in ("tiny", "hangs", "exits"):
        first = FEATURES[0] if name == "tiny" else {**FEATURES[0], "function": f"raw_tricks:{name}"}
        card = CARD | {"transform": {"version": 1, "features": [first, FEATURES[1]], "int_columns": []}}
        await made.models.register(Registration(name, "", made.folder(name, card=card), "torch", load=True))
    await made.settled()
    async with http(made) as client:

        async def ask(name: str, timeout_s: float) -> httpx.Response:
            parameters = {"timeout": int(timeout_s * 1e6)}
            return await client.post(f"/v2/models/{name}/predict", json={"rows": ROWS, "parameters": parameters})

        assert (await ask("tiny", 60.0)).status_code == 200
        left = await ask("exits", 60.0)
        assert (left.status_code, "SystemExit" in left.text) == (500, True), left.text
        hanging = [asyncio.create_task(ask("hangs", 200.0)) for _ in range(3)]
        await asyncio.sleep(0.5)                 # they may come later: then nothing is proven, and nothing fails
        assert (await ask("tiny", 60.0)).status_code == 200
        for each in hanging:
            each.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
    await made.models.stop()
    await features.stop()


async def test_a_model_that_goes_while_its_transform_is_loaded_leaves_no_process(tmp_path: Path) -> None:
    features = Features(environment=child_environment(os.environ), limits=Limits(), functions=None, log=print)
    made = gateway(tmp_path, features=features)
    await made.models.start()
    await made.models.register(Registration("tiny", "", made.folder(card=CARD_WITH_TRANSFORM), "torch", load=True))
    await made.settled()
    before = set(psutil.Process().children())
    async with http(made) as client, asyncio.timeout(120):
        asked = asyncio.create_task(client.post("/v2/models/tiny/predict", json={"rows": ROWS}))
        while True:
            children = set(psutil.Process().children()) - before
            if features._loading and children:
                break
            await asyncio.sleep(0.01)
        (key,), (child,) = features._loading, children
        features.forget(key)
        await asked
    assert not features._loading and features._server is None
    await features.stop()
    assert not child.is_running()
