"""Compressed bodies, and callers that go away."""

import asyncio
import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from recmesh.runtime.errors import InvalidArgument, ResourceExhausted
from services.gateway.domain.models import Registration
from services.gateway.rest.encoding import chosen, packed, unpacked
from tests.support.gateway import Gateway, gateway, http, rest_app

pytestmark = pytest.mark.asyncio
PATH = "/v2/models/tiny/infer"


async def serving(root: Path) -> Gateway:
    made = gateway(root)
    await made.models.start()
    await made.models.register(Registration("tiny", "1", made.folder(), "torch", load=True))
    await made.settled()
    return made


def body(rows: int = 1) -> bytes:
    inputs = [
        {"name": "x", "datatype": "FP32", "shape": [rows], "data": [1.5] * rows},
        {"name": "id", "datatype": "INT64", "shape": [rows], "data": [2] * rows},
    ]
    return orjson.dumps({"inputs": inputs})


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_requests_and_answers_may_be_compressed(tmp_path: Path, encoding: str, pack: Any) -> None:
    made = await serving(tmp_path)
    async with http(made) as client:
        headers = {"Content-Encoding": encoding, "Accept-Encoding": encoding}
        answer = await client.post(PATH, content=pack(body(1000)), headers=headers)
        assert answer.headers["content-encoding"] == encoding
        assert answer.json()["outputs"][0]["data"] == [3.5] * 1000
        small = await client.post(PATH, content=body(), headers={"Accept-Encoding": encoding})
        assert "content-encoding" not in small.headers


async def test_binary_answers_keep_the_size_of_the_plain_header(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    document = {**orjson.loads(body(2000)), "parameters": {"binary_data_output": True}}
    async with http(made) as client:
        answer = await client.post(PATH, json=document, headers={"Accept-Encoding": "gzip"})
    size = int(answer.headers["Inference-Header-Content-Length"])
    assert answer.headers["content-encoding"] == "gzip"
    assert np.frombuffer(answer.content[size:], np.float32).tolist() == [3.5] * 2000


async def test_no_content_type_is_json(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    async with http(made) as client:
        answer = await client.post(PATH, content=body())
    assert "content-type" not in answer.request.headers and answer.status_code == 200


@pytest.mark.parametrize(
    ("accept", "name"),
    [("", ""), ("gzip", "gzip"), ("deflate", "deflate"), ("deflate, gzip", "gzip"), ("gzip;q=0", ""),
     ("br, *;q=0.1", ""),
     ("gzip;q=0.2, deflate;q=0.9", "deflate"), ("x-gzip", "gzip"), ("gzip;q=x", "")],
)  # fmt: skip
async def test_the_client_s_liking_decides(accept: str, name: str) -> None:
    assert chosen(accept) == name


async def test_what_is_packed_in_a_thread_is_unpacked_there() -> None:
    data = np.random.default_rng(0).bytes(200_000)
    content, headers = await packed(data, "gzip")
    assert await unpacked(content, headers["Content-Encoding"], limit=len(data)) == data


async def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    with pytest.raises(ResourceExhausted):
        await unpacked(gzip.compress(bytes(50 << 20)), "gzip", limit=1 << 20)


@pytest.mark.parametrize(
    "content", [b"plain", gzip.compress(b"x" * 100)[:-9], gzip.compress(b"x") + b"more"], ids=["plain", "cut", "more"]
)
async def test_damaged_bodies_are_refused(content: bytes) -> None:
    with pytest.raises(InvalidArgument, match="is not gzip"):
        await unpacked(content, "gzip", limit=1 << 20)


async def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="'br'"):
        await unpacked(b"", "br", limit=1)


async def test_a_caller_that_closes_its_connection_ends_its_request(tmp_path: Path) -> None:
    made = await serving(tmp_path)
    made.runtimes.hold = asyncio.Event()
    gone = asyncio.Event()
    first = True

    async def receive() -> dict[str, Any]:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": PATH,
        "raw_path": PATH.encode(), "query_string": b"", "headers": [(b"host", b"127.0.0.1:8000")], "scheme": "http",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000), "root_path": "",
    }  # fmt: skip
    asking = asyncio.create_task(rest_app(made)(scope, receive, send))
    await made.runtimes.running.wait()
    gone.set()
    async with asyncio.timeout(10.0):
        await asking
    statistics = made.observation.statistics["tiny", "1"]
    assert (statistics.fail.count, statistics.success.count) == (1, 0)
    assert made.observation.recent[-1].error.startswith("CANCELLED")
    assert sent[0]["status"] == 499
