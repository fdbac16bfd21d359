"""tritonclient, HTTP and gRPC, against a server: `python oip_tritonclient.py HTTP GRPC RUNS` prints cells as JSON.

Needs tritonclient[all] in the interpreter's environment, and nothing of recmesh but `oip_cells`.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as sync_grpc
import tritonclient.grpc.aio as grpc_client
import tritonclient.http as sync_http
import tritonclient.http.aio as http_client
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from bench.peers.oip_cells import Answer, Ask, Refused, Report, adder, ready


class Http:
    """JSON or binary tensors over HTTP."""

    def __init__(self, client: Any, *, binary: bool) -> None:
        self.name = f"tritonclient/http/{'binary' if binary else 'json'}"
        self.leaves_out = frozenset({"client_deadline"} | (set() if binary else {"fp16"}))
        self._client = client
        self._binary = binary

    async def infer(self, ask: Ask) -> Answer:
        inputs = []
        for name, array in ask.inputs.items():
            tensor = http_client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array, binary_data=self._binary)
            inputs.append(tensor)
        names = {"adder": ["predictions"], "half": ["y"], "echo": ["text"], "slow": ["done"]}.get(ask.model, ["y"])
        outputs = [http_client.InferRequestedOutput(name, binary_data=self._binary) for name in names]
        try:
            result = await self._client.infer(
                ask.model, inputs, model_version=ask.version, outputs=outputs, request_id=ask.id,
                priority=ask.priority, timeout=ask.timeout_us or None,
                request_compression_algorithm=ask.compression or None,
                response_compression_algorithm=ask.compression or None,
            )  # fmt: skip
        except InferenceServerException as error:
            raise Refused(str(error.status()), str(error.message())) from None
        told = result.get_response()
        return Answer({name: result.as_numpy(name) for name in names}, told.get("id", ""), told["model_version"])


class Grpc:
    """Raw contents over gRPC."""

    name = "tritonclient/grpc/raw"
    leaves_out: frozenset[str] = frozenset()

    def __init__(self, client: Any) -> None:
        self._client = client

    async def infer(self, ask: Ask) -> Answer:
        try:
            result = await self._client.infer(
                ask.model, grpc_inputs(ask), model_version=ask.version, request_id=ask.id, priority=ask.priority,
                timeout=ask.timeout_us or None, client_timeout=ask.client_timeout_s or None,
                compression_algorithm=ask.compression or None,
            )  # fmt: skip
        except InferenceServerException as error:
            raise Refused(str(error.status()), str(error.message())) from None
        return grpc_answer(result)


def grpc_inputs(ask: Ask) -> list[Any]:
    inputs = []
    for name, array in ask.inputs.items():
        tensor = grpc_client.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def grpc_answer(result: Any) -> Answer:
    told = result.get_response()
    return Answer({item.name: result.as_numpy(item.name) for item in told.outputs}, told.id, told.model_version)


async def server(report: Report, client: Any, name: str) -> None:
    """What is asked of the server itself."""

    async def live() -> None:
        assert await client.is_server_live()

    async def server_ready() -> None:
        assert await client.is_server_ready()

    async def model_ready() -> None:
        assert await client.is_model_ready("adder")

    async def metadata() -> None:
        told = await client.get_model_metadata("adder")
        inputs = told["inputs"] if isinstance(told, dict) else told.inputs
        found = {(item["name"], item["datatype"]) if isinstance(item, dict) else (item.name, item.datatype)
                 for item in inputs}  # fmt: skip
        assert found == {("x", "FP32"), ("id", "INT64")}, found

    async def server_metadata() -> None:
        told = await client.get_server_metadata()
        assert told["extensions"] if isinstance(told, dict) else list(told.extensions)

    async def config() -> None:
        told = await client.get_model_config("adder")
        config = told if isinstance(told, dict) else told.config
        assert (config["name"] if isinstance(config, dict) else config.name) == "adder"
        assert len(config["input"] if isinstance(config, dict) else config.input) == 2

    async def statistics() -> None:
        told = await client.get_inference_statistics("adder")
        item = told["model_stats"][0] if isinstance(told, dict) else told.model_stats[0]
        assert (item["name"] if isinstance(item, dict) else item.name) == "adder"

    async def repository() -> None:
        told = await client.get_model_repository_index()
        rows = told if isinstance(told, list) else list(told.models)
        assert "adder" in {row["name"] if isinstance(row, dict) else row.name for row in rows}

    async def load_and_unload() -> None:
        await client.unload_model("half")
        assert not await client.is_model_ready("half")
        await client.load_model("half")
        assert await client.is_model_ready("half")

    checks = (live, server_ready, model_ready, metadata, server_metadata, config, statistics, repository,
              load_and_unload)  # fmt: skip
    for check in checks:
        await report.cell(f"{name}/{check.__name__}", check)


async def stream(report: Report, address: str) -> None:
    """Requests on one stream: answers in order, and a wrong one harms no other."""

    async def ordered() -> None:
        answers: asyncio.Queue[Any] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        client = sync_grpc.InferenceServerClient(address)
        try:
            client.start_stream(lambda result, error: loop.call_soon_threadsafe(answers.put_nowait, (result, error)))
            for number in range(20):
                ask = adder(2) if number != 7 else Ask("nobody", adder(2).inputs)
                client.async_stream_infer(ask.model, grpc_inputs(ask), request_id=str(number))
            for number in range(20):
                result, error = await answers.get()
                if number == 7:
                    assert error is not None and "nobody" in str(error), error
                else:
                    assert error is None and result.get_response().id == str(number), (number, error)
        finally:
            await asyncio.to_thread(client.stop_stream)
            client.close()

    await report.cell("tritonclient/grpc/raw/stream", ordered)


async def shared_memory(report: Report, client: Any, module: Any, name: str) -> None:
    """Inputs and outputs in shared memory."""

    async def both_ways() -> None:
        ask = adder(8)
        sizes = {key: array.nbytes for key, array in ask.inputs.items()}
        key = f"/oip-cells-{name.replace('/', '-')}"
        region = shm.create_shared_memory_region("cells", key, 4096)
        try:
            shm.set_shared_memory_region(region, list(ask.inputs.values()))
            await client.register_system_shared_memory("cells", key, 4096)
            inputs, at = [], 0
            for each, array in ask.inputs.items():
                tensor = module.InferInput(each, list(array.shape), np_to_triton_dtype(array.dtype))
                tensor.set_shared_memory("cells", sizes[each], offset=at)
                at += sizes[each]
                inputs.append(tensor)
            output = module.InferRequestedOutput("predictions")
            output.set_shared_memory("cells", 32, offset=2048)
            await client.infer("adder", inputs, outputs=[output])
            got = shm.get_contents_as_numpy(region, np.float32, [8], offset=2048)
            assert np.array_equal(got, ask.inputs["x"] + ask.inputs["id"].astype(np.float32)), got
            assert await client.get_system_shared_memory_status("cells")
            await client.unregister_system_shared_memory("cells")
        finally:
            shm.destroy_shared_memory_region(region)

    await report.cell(f"{name}/shared_memory", both_ways)


async def sync_clients(report: Report, http: str, grpc: str) -> None:
    """The clients that most programs use, beside the asynchronous ones."""

    def run(client: Any, module: Any) -> None:
        ask = adder(3)
        inputs = []
        for name, array in ask.inputs.items():
            tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        got = client.infer("adder", inputs).as_numpy("predictions")
        client.close()
        assert np.array_equal(got, ask.inputs["x"] + ask.inputs["id"].astype(np.float32)), got

    async def over_http() -> None:
        run(sync_http.InferenceServerClient(http), sync_http)       # gevent's loop lives in its own thread only

    async def over_grpc() -> None:
        await asyncio.to_thread(lambda: run(sync_grpc.InferenceServerClient(grpc), sync_grpc))

    await report.cell("tritonclient/http/sync", over_http)
    await report.cell("tritonclient/grpc/sync", over_grpc)


async def main(http: str, grpc: str, runs: Path) -> None:
    ready(http)
    report = Report()
    async with http_client.InferenceServerClient(http) as client:
        await server(report, client, "tritonclient/http")
        for binary in (False, True):
            await report.encoding(Http(client, binary=binary), runs)
        await shared_memory(report, client, http_client, "tritonclient/http")
    async with grpc_client.InferenceServerClient(grpc) as client:
        await server(report, client, "tritonclient/grpc")
        await report.encoding(Grpc(client), runs)
        await shared_memory(report, client, grpc_client, "tritonclient/grpc")
    await stream(report, grpc)
    await sync_clients(report, http, grpc)
    report.show()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
