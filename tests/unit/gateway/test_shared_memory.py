"""Tensors in shared memory: what is taken, and who may."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from recmesh.pb import inference_pb2 as pb
from recmesh.pb import inference_pb2_grpc
from recmesh.runtime.errors import AlreadyExists, InvalidArgument, MeshError, NotFound, PermissionDenied
from services.gateway.domain import regions
from services.gateway.domain.access import is_local_peer
from services.gateway.domain.models import Registration
from services.gateway.domain.regions import Place, Region
from services.gateway.rpc.server import server
from services.gateway.store.shared_memory import SharedRegions, regions_for
from tests.support.gateway import Gateway, gateway, http, open_to


class Object:
    """A shared memory object, as another process would make it."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.path = Path("/dev/shm") / name
        self.path.write_bytes(bytes(size))

    def get(self, start: int, end: int) -> bytes:
        return self.path.read_bytes()[start:end]

    def put(self, data: bytes) -> None:
        with self.path.open("r+b") as file:
            file.write(data)


@pytest.fixture
def memory() -> Iterator[Object]:
    made = Object(f"oip-test-{os.getpid()}", 256)
    yield made
    made.path.unlink()


@pytest.fixture
def store(memory: Object) -> Iterator[SharedRegions]:
    made = SharedRegions()
    made.register(Region("r", memory.name, 16, 100))
    yield made
    made.unregister()


def test_reads_and_writes_are_at_the_region_s_offset(store: SharedRegions, memory: Object) -> None:
    store.write(Place("r", 4, 8), b"12345678")
    assert memory.get(20, 28) == b"12345678"
    assert store.read(Place("r", 6, 2)) == b"34"


@pytest.mark.parametrize("place", [Place("r", 90, 11), Place("r", 101, 0), Place("r", 0, 101)])
def test_nothing_is_read_beyond_the_region(store: SharedRegions, place: Place) -> None:
    with pytest.raises(InvalidArgument, match="outside of it"):
        store.read(place)


def test_an_output_that_does_not_fit_is_refused_and_nothing_written(store: SharedRegions, memory: Object) -> None:
    with pytest.raises(InvalidArgument, match="needs 9 bytes, but 8"):
        store.write(Place("r", 0, 8), b"123456789")
    assert memory.get(0, 256) == bytes(256)


@pytest.mark.parametrize(
    ("region", "kind"),
    [
        (Region("r", "k", 0, 1), AlreadyExists), (Region("q", "k", 0, 0), InvalidArgument),
        (Region("q", "k", -1, 1), InvalidArgument), (Region("q", "../etc/passwd", 0, 1), InvalidArgument),
        (Region("q", "/a/b", 0, 1), InvalidArgument), (Region("q", "..", 0, 1), InvalidArgument),
        (Region("q", "recmesh-part.1", 0, 1), InvalidArgument), (Region("", "k", 0, 1), InvalidArgument),
        (Region("q", "nothing-of-this-name", 0, 1), NotFound), (Region("q", "k", 0, 1 << 40), InvalidArgument),
    ],
)  # fmt: skip
def test_wrong_regions_are_refused(
    store: SharedRegions, memory: Object, region: Region, kind: type[MeshError]
) -> None:
    chosen = Region(region.name, memory.name if region.key == "k" else region.key, region.offset, region.size_bytes)
    with pytest.raises(kind):
        store.register(chosen)


def test_a_region_larger_than_its_object_is_refused(memory: Object) -> None:
    with pytest.raises(InvalidArgument, match="not all there"):
        SharedRegions().register(Region("q", memory.name, 200, 100_000))


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(PermissionDenied):
        SharedRegions(tmp_path).register(Region("q", "link", 0, 6))


def test_an_object_that_was_shortened_is_an_error_and_ends_nothing(store: SharedRegions, memory: Object) -> None:
    os.truncate(memory.path, 18)
    with pytest.raises(InvalidArgument, match="shorter"):
        store.read(Place("r", 0, 10))
    with pytest.raises(InvalidArgument, match="shorter"):
        store.write(Place("r", 0, 10), bytes(10))


def test_there_is_a_bound_on_regions(store: SharedRegions, memory: Object) -> None:
    for number in range(regions.MAX_REGIONS - 1):
        store.register(Region(f"r{number}", memory.name, 0, 1))
    with pytest.raises(MeshError, match="64 shared memory regions"):
        store.register(Region("last", memory.name, 0, 1))


@pytest.mark.parametrize(
    ("access", "local", "allowed"),
    [("loopback", True, True), ("loopback", False, False), ("any", False, True), ("off", True, False)],
)  # fmt: skip
def test_who_may_use_it(store: SharedRegions, access: Any, local: bool, allowed: bool) -> None:
    found = regions_for(store, access, local=local)
    if allowed:
        assert list(found.status()) == ["r"]
    else:
        with pytest.raises(PermissionDenied):
            found.status()
        with pytest.raises(PermissionDenied):
            found.read(Place("r", 0, 1))


@pytest.mark.parametrize(
    ("peer", "local"),
    [("ipv4:127.0.0.1:5", True), ("ipv6:%5B::1%5D:5", True), ("unix:", True), ("ipv4:10.0.0.1:5", False)],
)  # fmt: skip
def test_local_peers_of_grpc(peer: str, local: bool) -> None:
    assert is_local_peer(peer) is local


async def serving(root: Path) -> Gateway:
    made = gateway(root)
    await made.models.start()
    await made.models.register(Registration("tiny", "1", made.folder(), "torch", load=True))
    await made.settled()
    return made


def parameters(offset: int, size: int) -> dict[str, Any]:
    return {"shared_memory_region": "r", "shared_memory_offset": offset, "shared_memory_byte_size": size}


@pytest.mark.asyncio
async def test_over_rest(tmp_path: Path, memory: Object) -> None:
    made = await serving(tmp_path)
    memory.put(np.array([1.5, 2.5], np.float32).tobytes())
    async with http(made) as client:
        base = "/v2/systemsharedmemory"
        answer = await client.post(f"{base}/region/r/register", json={"key": memory.name, "byte_size": 256})
        assert answer.status_code == 200, answer.text
        assert (await client.get(f"{base}/region/r/status")).json()[0]["byte_size"] == 256
        document = {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [2], "parameters": parameters(0, 8)},
                {"name": "id", "datatype": "INT64", "shape": [2], "data": [10, 20]},
            ],
            "outputs": [{"name": "predictions", "parameters": parameters(64, 8)}],
        }
        told = (await client.post("/v2/models/tiny/infer", json=document)).json()
        assert told["outputs"][0]["parameters"] == parameters(64, 8) and "data" not in told["outputs"][0]
        assert np.frombuffer(memory.get(64, 72), np.float32).tolist() == [11.5, 22.5]
        assert (await client.post(f"{base}/unregister")).status_code == 200
        assert (await client.get(f"{base}/status")).json() == []
        assert (await client.post("/v2/models/tiny/infer", json=document)).status_code == 404
    async with http(made, shared="off") as client:
        assert (await client.get("/v2/systemsharedmemory/status")).status_code == 403


@pytest.mark.asyncio
async def test_over_grpc_and_a_stream_answers_in_order_with_errors_of_their_own(
    tmp_path: Path, memory: Object
) -> None:
    made = await serving(tmp_path)
    listening = server("127.0.0.1:0", made.models, made.inference, made.regions, token="m", access=open_to(), tls=None)
    await listening.start()
    async with grpc.aio.insecure_channel(listening.address) as channel:
        stub: Any = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        await stub.SystemSharedMemoryRegister(
            pb.SystemSharedMemoryRegisterRequest(name="r", key=memory.name, byte_size=256)
        )
        status = await stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest())
        assert status.regions["r"].byte_size == 256
        memory.put(np.array([1.5], np.float32).tobytes())

        async def asks() -> Any:
            for number in range(100):
                yield message(number)

        call = stub.ModelStreamInfer(asks(), timeout=60)
        answers = [answer async for answer in call]
        config = await stub.ModelConfig(pb.ModelConfigRequest(name="tiny"))
        await stub.SystemSharedMemoryUnregister(pb.SystemSharedMemoryUnregisterRequest(name="r"))
    await listening.stop()
    assert [answer.infer_response.id for answer in answers] == [str(number) for number in range(100)]
    assert [number for number, answer in enumerate(answers) if answer.error_message] == [50]
    assert answers[50].error_message.startswith("NOT_FOUND")
    assert np.frombuffer(answers[7].infer_response.raw_output_contents[0], np.float32).tolist() == [8.5]
    assert [(item.name, item.data_type) for item in config.config.input] == [("x", pb.TYPE_FP32), ("id", pb.TYPE_INT64)]


def message(number: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="nobody" if number == 50 else "tiny", id=str(number))
    x = request.inputs.add(name="x", datatype="FP32", shape=[1])
    x.parameters["shared_memory_region"].string_param = "r"
    x.parameters["shared_memory_byte_size"].int64_param = 4
    request.inputs.add(name="id", datatype="INT64", shape=[1])
    request.raw_input_contents.append(np.array([number], np.int64).tobytes())
    return request
