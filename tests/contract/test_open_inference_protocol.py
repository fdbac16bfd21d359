"""The Open Inference Protocol, over HTTP and gRPC, against a torch.export model in its own process."""

import os
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import numpy as np
import orjson
import pytest
import pytest_asyncio

from recmesh.pb import inference_pb2 as pb
from recmesh.pb import inference_pb2_grpc
from services.gateway.config import child_environment
from services.gateway.domain.models import Registration
from services.gateway.rpc.server import server
from services.gateway.runtimes.pool import Runtimes
from services.gateway.runtimes.process import Limits
from tests.support.gateway import Gateway, gateway, http, open_to
from tests.support.oip_models import torch_model

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

X = np.array([1.0, 2.5, -1.0], np.float32)
ID = np.array([3, 4, 2**53], np.int64)
SUM = (X + ID.astype(np.float32)).tolist()
HEADER = "Inference-Header-Content-Length"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """A gateway that serves the model `tiny`."""
    root = tmp_path_factory.mktemp("storage")
    torch_model(root / "models" / "tiny" / "1")
    runtimes = Runtimes(environment=child_environment(os.environ), limits=Limits(), log=print)
    made = gateway(root, runtimes=runtimes)
    await made.models.start()
    await made.models.register(Registration("tiny", "1", "models/tiny/1", "torch", load=True))
    await made.settled()
    yield made
    await made.models.stop()
    await runtimes.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rest(served: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with http(served) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(served: Gateway) -> AsyncIterator[Any]:
    listening = server(
        "127.0.0.1:0", served.models, served.inference, served.regions, token="mesh", access=open_to(), tls=None
    )
    await listening.start()
    async with grpc.aio.insecure_channel(listening.address) as channel:
        yield inference_pb2_grpc.GRPCInferenceServiceStub(channel)
    await listening.stop()


def body(**changes: Any) -> dict[str, Any]:
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [3], "data": X.tolist()},
        {"name": "id", "datatype": "INT64", "shape": [3], "data": ID.tolist()},
    ]
    return {"id": "7", "inputs": inputs, **changes}


async def test_rest_answers_with_json_and_echoes_the_id(rest: httpx.AsyncClient) -> None:
    response = await rest.post("/v2/models/tiny/infer", json=body())
    assert response.status_code == 200, response.text
    assert response.json() == {
        "model_name": "tiny", "model_version": "1", "id": "7",
        "outputs": [{"name": "predictions", "datatype": "FP32", "shape": [3], "data": SUM}],
    }  # fmt: skip


@pytest.mark.parametrize("how", ["request", "output"])
async def test_rest_carries_binary_tensors_both_ways(rest: httpx.AsyncClient, how: str) -> None:
    head: dict[str, Any] = {
        "inputs": [
            {"name": "id", "datatype": "INT64", "shape": [3], "parameters": {"binary_data_size": 24}},
            {"name": "x", "datatype": "FP32", "shape": [3], "data": X.tolist()},
        ],
    }
    if how == "request":
        head["parameters"] = {"binary_data_output": True}
    else:
        head["outputs"] = [{"name": "predictions", "parameters": {"binary_data": True}}]
    encoded = orjson.dumps(head)
    headers = {HEADER: str(len(encoded))}
    path = "/v2/models/tiny/versions/1/infer"
    response = await rest.post(path, content=encoded + ID.tobytes(), headers=headers)
    assert response.status_code == 200, response.text
    size = int(response.headers[HEADER])
    answered = orjson.loads(response.content[:size])
    assert answered["outputs"][0]["parameters"] == {"binary_data_size": 12}
    assert np.frombuffer(response.content[size:], np.float32).tolist() == SUM


@pytest.mark.parametrize(
    ("change", "status", "reason", "path"),
    [
        ({"inputs": []}, 400, "BAD_REQUEST", "inputs"),
        ({"inputs": body()["inputs"][:1]}, 400, "INPUT_MISMATCH", "inputs.id"),
        ({"outputs": [{"name": "scores"}]}, 400, "UNKNOWN_OUTPUT", "outputs.scores"),
        ({"parameters": {"timeout": "soon"}}, 400, "BAD_PARAMETER", "parameters.timeout"),
        ({"parameters": {"a": [1]}}, 400, "BAD_REQUEST", "parameters.a"),
        ({"id": 7}, 400, "BAD_REQUEST", "id"),
    ],
)
async def test_rest_names_what_is_wrong(
    rest: httpx.AsyncClient, change: dict[str, Any], status: int, reason: str, path: str
) -> None:
    response = await rest.post("/v2/models/tiny/infer", json=body(**change))
    problem = response.json()
    assert (response.status_code, problem["reason"]) == (status, reason), problem
    assert path in [item["path"] for item in problem["violations"]]
    assert path in problem["error"]


@pytest.mark.parametrize("header", ["x", "-1", "999999"])
async def test_a_wrong_header_size_is_refused(rest: httpx.AsyncClient, header: str) -> None:
    response = await rest.post("/v2/models/tiny/infer", json=body(), headers={HEADER: header})
    assert response.status_code == 400


async def test_binary_data_that_no_input_claims_are_refused(rest: httpx.AsyncClient) -> None:
    encoded = orjson.dumps(body())
    headers = {HEADER: str(len(encoded))}
    response = await rest.post("/v2/models/tiny/infer", content=encoded + b"1234", headers=headers)
    assert "belong to no input" in response.json()["error"]


@pytest.mark.parametrize("path", ["nope", "nope/ready", "nope/stats", "tiny/versions/9"])
async def test_unknown_models_are_not_found(rest: httpx.AsyncClient, path: str) -> None:
    response = await rest.get(f"/v2/models/{path}")
    assert (response.status_code, response.json()["reason"][:8]) == (404, "UNKNOWN_")


async def test_rest_describes_server_models_and_repository(rest: httpx.AsyncClient) -> None:
    assert (await rest.post("/v2/models/tiny/infer", json=body())).status_code == 200
    assert (await rest.get("/v2/health/live")).status_code == 200
    assert (await rest.get("/v2/health/ready")).status_code == 200
    assert (await rest.get("/v2")).json()["name"] == "recmesh"
    assert (await rest.get("/v2/models/tiny/ready")).status_code == 200
    described = (await rest.get("/v2/models/tiny/versions/1")).json()
    assert described["inputs"][1] == {"name": "id", "datatype": "INT64", "shape": [-1]}
    index = (await rest.post("/v2/repository/index", json={"ready": True})).json()
    assert [(item["name"], item["state"]) for item in index] == [("tiny", "READY")]
    statistics = (await rest.get("/v2/models/tiny/stats")).json()["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] >= 1


def message(*, raw: bool) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor
    request = pb.ModelInferRequest(model_name="tiny", id="9")
    request.inputs.append(tensor(name="x", datatype="FP32", shape=[3]))
    request.inputs.append(tensor(name="id", datatype="INT64", shape=[3]))
    if raw:
        request.raw_input_contents.extend([X.tobytes(), ID.tobytes()])
    else:
        request.inputs[0].contents.fp32_contents.extend(X.tolist())
        request.inputs[1].contents.int64_contents.extend(ID.tolist())
    return request


@pytest.mark.parametrize("raw", [True, False])
async def test_grpc_takes_raw_and_typed_contents(stub: Any, raw: bool) -> None:
    response = await stub.ModelInfer(message(raw=raw), timeout=30)
    assert (response.model_name, response.model_version, response.id) == ("tiny", "1", "9")
    assert (response.outputs[0].datatype, list(response.outputs[0].shape)) == ("FP32", [3])
    assert np.frombuffer(response.raw_output_contents[0], np.float32).tolist() == SUM


async def test_grpc_errors_have_a_code_and_name_the_tensor(stub: Any) -> None:
    unknown = message(raw=True)
    unknown.model_name = "nope"
    short = message(raw=True)
    short.raw_input_contents[0] = b"1"
    both = message(raw=True)
    both.inputs[0].contents.fp32_contents.append(1.0)
    misplaced = message(raw=False)
    misplaced.inputs[1].contents.uint_contents.append(1)
    fewer = message(raw=True)
    del fewer.raw_input_contents[1]
    for request, code, text in (
        (unknown, grpc.StatusCode.NOT_FOUND, "'nope'"),
        (short, grpc.StatusCode.INVALID_ARGUMENT, "inputs.x"),
        (both, grpc.StatusCode.INVALID_ARGUMENT, "'x'"),
        (misplaced, grpc.StatusCode.INVALID_ARGUMENT, "'id'"),
        (fewer, grpc.StatusCode.INVALID_ARGUMENT, "raw_input_contents"),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ModelInfer(request, timeout=30)
        assert caught.value.code() is code
        assert text in str(caught.value.details())


async def test_grpc_describes_server_models_and_repository(stub: Any) -> None:
    assert (await stub.ServerLive(pb.ServerLiveRequest())).live
    assert (await stub.ServerReady(pb.ServerReadyRequest())).ready
    assert (await stub.ModelReady(pb.ModelReadyRequest(name="tiny"))).ready
    described = await stub.ModelMetadata(pb.ModelMetadataRequest(name="tiny"))
    assert (described.platform, list(described.versions)) == ("pytorch_export", ["1"])
    index = await stub.RepositoryIndex(pb.RepositoryIndexRequest())
    assert [(item.name, item.version, item.state) for item in index.models] == [("tiny", "1", "READY")]
    statistics = await stub.ModelStatistics(pb.ModelStatisticsRequest(name="tiny"))
    assert statistics.model_stats[0].name == "tiny"


async def test_a_model_that_is_unloaded_and_loaded_by_the_repository_answers_again(
    rest: httpx.AsyncClient, stub: Any
) -> None:
    await stub.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="tiny"))
    assert (await rest.get("/v2/models/tiny/ready")).status_code == 503
    response = await rest.post("/v2/models/tiny/infer", json=body())
    assert (response.status_code, response.json()["reason"]) == (409, "MODEL_NOT_READY")
    loaded = await rest.post("/v2/repository/models/tiny/load", json={"parameters": {"version": "1"}})
    assert loaded.status_code == 200
    assert (await rest.post("/v2/models/tiny/infer", json=body())).status_code == 200
