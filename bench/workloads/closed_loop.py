"""`python -m bench.workloads.closed_loop JSON`: clients that each ask again as soon as they are answered.

With one client a server has one request at a time, with several what it makes of many at once. A line of JSON says
when the warm-up is over, a second one what came of the time after it.
"""

import asyncio
import gc
import json
import sys
import time
from typing import Any

import grpc
import numpy as np
import uvloop

from bench.workloads import wide_deep
from bench.workloads.open_loop import answer_in
from recmesh.pb import inference_pb2_grpc


class Told:
    """Seconds of each answer, and how many were none."""

    def __init__(self) -> None:
        self.latency_s: list[float] = []
        self.failed = 0

    def add(self, seconds: float, *, good: bool) -> None:
        """One answer."""
        self.latency_s.append(seconds)
        self.failed += not good

    def document(self, wall_s: float) -> dict[str, Any]:
        """What the parent is told."""
        ms = 1e3 * np.array(self.latency_s or [np.nan])
        return {
            "answers": len(self.latency_s), "failed": self.failed, "wall_s": wall_s,
            "p50_ms": float(np.percentile(ms, 50)), "p99_ms": float(np.percentile(ms, 99)),
        }  # fmt: skip


class RestClient(asyncio.Protocol):
    """A connection."""

    def __init__(self, told: Told, requests: list[bytes]) -> None:
        self.told = told
        self._requests = requests
        self._next = 0
        self._sent = 0.0
        self._buffer = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport
        self._ask()

    def data_received(self, data: bytes) -> None:
        """Parts of an answer."""
        self._buffer += data
        answer = answer_in(self._buffer)
        if answer is not None:
            status, size = answer
            self._buffer = self._buffer[size:]
            self.told.add(time.perf_counter() - self._sent, good=status == 200)
            self._ask()

    def _ask(self) -> None:
        self._next = (self._next + 1) % len(self._requests)
        self._sent = time.perf_counter()
        self._transport.write(self._requests[self._next])


async def rest(task: dict[str, Any]) -> list[RestClient]:
    """The clients, at work."""
    host, _, port = task["address"].rpartition(":")
    requests = wide_deep.http_requests(task["model"], task["rows"], binary=task["binary"], host=task["address"])
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: RestClient(Told(), requests), host, int(port))
        for _ in range(task["clients"])
    ]
    return [client for _, client in made]


class GrpcClient:
    """Calls on a channel."""

    def __init__(self, told: Told, stub: Any, requests: list[Any]) -> None:
        self.told = told
        self._stub = stub
        self._requests = requests
        self._task = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        while True:
            for request in self._requests:
                sent = time.perf_counter()
                try:
                    await self._stub.ModelInfer(request)
                    good = True
                except grpc.RpcError:
                    good = False
                self.told.add(time.perf_counter() - sent, good=good)


async def by_grpc(task: dict[str, Any]) -> list[GrpcClient]:
    """The clients, at work."""
    stub = inference_pb2_grpc.GRPCInferenceServiceStub(grpc.aio.insecure_channel(task["address"]))
    requests = wide_deep.grpc_requests(task["model"], task["rows"])
    return [GrpcClient(Told(), stub, requests) for _ in range(task["clients"])]


async def work(task: dict[str, Any]) -> None:
    """Warm up, and measure."""
    clients: list[Any] = await (by_grpc(task) if task["protocol"] == "grpc" else rest(task))
    await asyncio.sleep(task["warm_up_s"])
    told = Told()
    for client in clients:
        client.told = told
    gc.disable()
    began = time.perf_counter()
    print(json.dumps({"begun": True}), flush=True)
    await asyncio.sleep(task["seconds"])
    wall_s, ended = time.perf_counter() - began, told
    for client in clients:
        client.told = Told()
    print(json.dumps(ended.document(wall_s)), flush=True)


def main() -> None:
    """Until the time is over; connections are broken off then."""
    uvloop.run(work(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
