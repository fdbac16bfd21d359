"""KServe's client, REST and gRPC, against a server: `python oip_kserve.py HTTP GRPC RUNS` prints cells as JSON.

Needs kserve in the interpreter's environment, and nothing of recmesh but `oip_cells`.
"""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

from bench.peers.oip_cells import Answer, Ask, Refused, Report, ready

NAMES = {
    "float32": "FP32", "float64": "FP64", "float16": "FP16", "int64": "INT64", "int32": "INT32", "object": "BYTES",
}


def request(ask: Ask, *, binary: bool) -> InferRequest:
    """The client's own request."""
    inputs = []
    for name, array in ask.inputs.items():
        tensor = InferInput(name, list(array.shape), NAMES[array.dtype.name])
        tensor.set_data_from_numpy(array, binary_data=binary)
        inputs.append(tensor)
    parameters: dict[str, Any] = {}
    if ask.timeout_us:
        parameters["timeout"] = ask.timeout_us
    if ask.priority:
        parameters["priority"] = ask.priority
    return InferRequest(
        ask.model, inputs, request_id=ask.id or None, parameters=parameters or None,
        model_version=ask.version or None,
    )  # fmt: skip


def answer(result: Any) -> Answer:
    """The client's own answer."""
    outputs = {item.name: item.as_numpy() for item in result.outputs}
    return Answer(outputs, result.id or "", result.model_version or "")


class Rest:
    """JSON or binary tensors over HTTP."""

    def __init__(self, base: str, client: Any, *, binary: bool) -> None:
        self.name = f"kserve/http/{'binary' if binary else 'json'}"
        self.leaves_out = frozenset(
            {"version", "unknown_version", "client_deadline", "deflate"} | (set() if binary else {"fp16"})
        )
        self._base, self._client, self._binary = base, client, binary

    async def infer(self, ask: Ask) -> Answer:
        headers = {"Accept-Encoding": ask.compression or "identity"}
        told: dict[str, str] = {}
        try:
            result = await self._client.infer(
                self._base, request(ask, binary=self._binary), model_name=ask.model, headers=headers,
                response_headers=told,
            )  # fmt: skip
        except httpx.HTTPStatusError as error:
            raise Refused(str(error.response.status_code), str(error)) from None
        if ask.compression:
            assert told.get("content-encoding") == ask.compression, f"the answer came as {told.get('content-encoding')}"
        return answer(result)


class Rpc:
    """Typed or raw contents over gRPC."""

    def __init__(self, address: str, *, raw: bool) -> None:
        self.name = f"kserve/grpc/{'raw' if raw else 'typed'}"
        self.leaves_out = frozenset({"deflate"} | (set() if raw else {"fp16"}))
        self._raw = raw
        self._plain = InferenceGRPCClient(address, retries=0)
        options = [("grpc.default_compression_algorithm", grpc.Compression.Gzip.value)]
        self._packed = InferenceGRPCClient(address, channel_args=options, retries=0)

    async def infer(self, ask: Ask) -> Answer:
        client = self._packed if ask.compression else self._plain
        asked = request(ask, binary=self._raw)
        asked.id = asked.id or ""
        try:
            return answer(await client.infer(asked, timeout=ask.client_timeout_s or 60.0))
        except grpc.RpcError as error:
            raise Refused(error.code().name, str(error.details())) from None

    async def close(self) -> None:
        await self._plain.close()
        await self._packed.close()


async def server(report: Report, name: str, live: Any, is_ready: Any, model_ready: Any, unknown: Any) -> None:
    """What is asked of the server itself."""

    async def live_cell() -> None:
        assert await live()

    async def ready_cell() -> None:
        assert await is_ready()

    async def model_cell() -> None:
        assert await model_ready()

    async def unknown_cell() -> None:
        try:
            found = await unknown()
        except (httpx.HTTPStatusError, grpc.RpcError):
            return
        assert not found

    checks = {"live": live_cell, "server_ready": ready_cell, "model_ready": model_cell, "nobody_ready": unknown_cell}
    for what, check in checks.items():
        await report.cell(f"{name}/{what}", check)


async def main(http: str, rpc: str, runs: Path) -> None:
    logging.getLogger("kserve").setLevel(logging.CRITICAL)
    logging.getLogger("kserve.trace").setLevel(logging.CRITICAL)
    ready(http)
    report = Report()
    base = f"http://{http}"
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    await server(
        report, "kserve/http", lambda: client.is_server_live(base), lambda: client.is_server_ready(base),
        lambda: client.is_model_ready(base, "adder"), lambda: client.is_model_ready(base, "nobody"),
    )  # fmt: skip
    for binary in (False, True):
        await report.encoding(Rest(base, client, binary=binary), runs)
    plain = InferenceGRPCClient(rpc, retries=0)
    await server(
        report, "kserve/grpc", plain.is_server_live, plain.is_server_ready,
        lambda: plain.is_model_ready("adder"), lambda: plain.is_model_ready("nobody"),
    )  # fmt: skip
    await plain.close()
    for raw in (False, True):
        caller = Rpc(rpc, raw=raw)
        await report.encoding(caller, runs)
        await caller.close()
    report.show()


if __name__ == "__main__":
    np.seterr(all="raise")
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
