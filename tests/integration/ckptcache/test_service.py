"""ckptcache as a process, over a real nats-server."""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TypeAlias

import httpx
import pytest

from recmesh.pb import ckptcache_pb2 as pb
from recmesh.pb import ckptcache_pb2_grpc as pb_grpc
from recmesh.runtime.bus import Bus
from recmesh.runtime.errors import DataLoss, FailedPrecondition, InvalidArgument, Unauthenticated
from recmesh.runtime.events import Event, catalog
from recmesh.runtime.rpc import channel
from tests.support.servers import NatsServer, nats, nats_server
from tests.support.service_process import ServiceProcess, service
from tests.support.waiting import until

__all__ = ["nats"]
pytestmark = [pytest.mark.integration, pytest.mark.asyncio]
MIB = 1 << 20
Stub: TypeAlias = "pb_grpc.CheckpointsAsyncStub"  # it exists for the type checker only


def environment(nats: NatsServer, folder: Path, **more: str) -> dict[str, str]:
    return {
        "RECMESH_NATS_URL": nats.url, "RECMESH_STORAGE_URI": str(folder / "storage"),
        "RECMESH_SHM_DIR": str(folder / "shm"), "RECMESH_API_KEY": "secret-of-the-mesh", **more,
    }  # fmt: skip


@pytest.fixture
def ckptcache(nats: NatsServer, tmp_path: Path) -> Iterator[ServiceProcess]:
    with service("ckptcache", tmp_path / "ckptcache", env=environment(nats, tmp_path)) as process:
        yield process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `shared`."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[ServiceProcess]:
    """For tests that leave nothing stored and end nothing."""
    with nats_server(folder / "nats") as server:
        with service("ckptcache", folder / "ckptcache", env=environment(server, folder)) as process:
            yield process


@contextlib.asynccontextmanager
async def connected(process: ServiceProcess, *, token: str = "secret-of-the-mesh") -> AsyncIterator[Stub]:
    async with channel(process.address(), token=token) as link:
        yield pb_grpc.CheckpointsStub(link)


def request(tmp_path: Path, number: int, ps: int, data: bytes) -> pb.StorePartRequest:
    """A part with two files, in shared memory."""
    half = len(data) // 2
    path = tmp_path / f"shm/{number}-{ps}"
    path.write_bytes(data)
    ranges = [("group-0.table-a.arrow", 0, half), ("group-0.dense.safetensors", half, len(data) - half)]
    files = [
        pb.PartFile(name=name, offset=at, size_bytes=size, sha256=hashlib.sha256(data[at : at + size]).hexdigest())
        for name, at, size in ranges
    ]
    return pb.StorePartRequest(
        job_id="job", gen=1, snapshot=number, ps=ps, shm_path=str(path), size_bytes=len(data), files=files,
        part_json=json.dumps({"ps": ps}),
    )  # fmt: skip


async def stored(stub: Stub, tmp_path: Path, number: int, *, size_bytes: int = 3 * MIB) -> None:
    await stub.Begin(pb.BeginRequest(job_id="job", gen=1, snapshot=number, ps=[0, 1]))
    for ps in (0, 1):
        await stub.StorePart(request(tmp_path, number, ps, os.urandom(size_bytes)))
    reply = await stub.Await(pb.AwaitRequest(job_id="job", snapshot=number, wait_s=30), timeout=40)
    assert (reply.state, reply.reason) == (pb.AwaitReply.STORED, "")


async def commit(stub: Stub, number: int) -> pb.Snapshot:
    done: pb.Snapshot = await stub.Commit(
        pb.CommitRequest(job_id="job", gen=1, snapshot=number, manifest_json='{"samples": 7}', keep=3)
    )
    return done


async def part_bytes(stub: Stub, uri: str) -> bytes:
    chunks = [chunk.data async for chunk in stub.FetchPart(pb.FetchPartRequest(part_uri=uri))]
    assert all(len(chunk) <= MIB for chunk in chunks)
    return b"".join(chunks)


async def test_a_snapshot_is_stored_committed_told_and_fetched(
    nats: NatsServer, ckptcache: ServiceProcess, tmp_path: Path
) -> None:
    heard: asyncio.Queue[Event[catalog.SnapshotStored]] = asyncio.Queue()
    bus = Bus(nats.url, "test")
    await bus.start()
    consumer = bus.consume("test", [catalog.SNAPSHOT_STORED], heard.put)
    await consumer.start()
    try:
        async with connected(ckptcache) as stub:
            await stored(stub, tmp_path, 1)
            done = await commit(stub, 1)
            assert (done.state, done.samples, list(done.tiers)) == ("committed", 7, ["memory", "storage"])
            for uri in done.parts:
                found = await stub.Locate(pb.LocateRequest(part_uri=uri))
                assert found.tier == "memory"
                assert await part_bytes(stub, uri) == Path(found.path).read_bytes()  # noqa: ASYNC240  # a test may block
            event = await asyncio.wait_for(heard.get(), 30)
            assert (event.entity_id, event.data.snapshot, event.data.parts) == ("job", 1, 2)
            assert [s.snapshot for s in (await stub.List(pb.ListRequest(job_id="job"))).snapshots] == [1]
    finally:
        await consumer.stop()
        await bus.stop()


async def test_a_caller_without_the_meshs_token_is_turned_away(shared: ServiceProcess) -> None:
    async with connected(shared, token="wrong") as stub:
        with pytest.raises(Unauthenticated):
            await stub.List(pb.ListRequest())


async def test_refusals_name_fields_and_reasons_on_the_wire(shared: ServiceProcess, folder: Path) -> None:
    async with connected(shared) as stub:
        with pytest.raises(InvalidArgument) as caught:
            await stub.Begin(pb.BeginRequest(job_id="../x", snapshot=0))
        assert [violation.path for violation in caught.value.violations] == ["job_id", "snapshot", "ps"]
        await stub.Begin(pb.BeginRequest(job_id="job", gen=1, snapshot=1, ps=[0]))
        wrong = request(folder, 1, 0, b"abcd")
        wrong.gen = 2
        with pytest.raises(FailedPrecondition) as refused:
            await stub.StorePart(wrong)
        assert refused.value.reason == "STALE_GEN"


async def test_a_streamed_part_is_stored(ckptcache: ServiceProcess, tmp_path: Path) -> None:
    async with connected(ckptcache) as stub:
        await stub.Begin(pb.BeginRequest(job_id="job", gen=1, snapshot=1, ps=[0]))
        data = os.urandom(5 * MIB)
        header = request(tmp_path, 1, 0, data)
        header.shm_path = ""

        async def chunks() -> AsyncIterator[pb.PartChunk]:
            yield pb.PartChunk(header=header)
            for start in range(0, len(data), MIB):
                yield pb.PartChunk(data=data[start : start + MIB])

        await stub.StreamPart(chunks(), timeout=30)
        reply = await stub.Await(pb.AwaitRequest(job_id="job", snapshot=1, wait_s=30), timeout=40)
        assert reply.state == pb.AwaitReply.STORED
        done = await commit(stub, 1)
        assert await part_bytes(stub, done.parts[0]) == data


async def test_a_long_poll_ends_before_its_callers_deadline(shared: ServiceProcess) -> None:
    async with connected(shared) as stub:
        await stub.Begin(pb.BeginRequest(job_id="job", gen=1, snapshot=1, ps=[0]))
        reply = await stub.Await(pb.AwaitRequest(job_id="job", snapshot=1, wait_s=60), timeout=1.5)
        assert (reply.state, list(reply.missing)) == (pb.AwaitReply.COLLECTING, [0])
        reply = await stub.Await(pb.AwaitRequest(job_id="job", snapshot=9, wait_s=60), timeout=5)
        assert reply.state == pb.AwaitReply.UNKNOWN


@pytest.mark.long
async def test_kill_9_while_parts_are_written_leaves_no_snapshot_that_looks_complete(
    nats: NatsServer, ckptcache: ServiceProcess, tmp_path: Path
) -> None:
    folder = tmp_path / "storage/checkpoints/job"
    async with connected(ckptcache) as stub:
        await stored(stub, tmp_path, 1)
        before = await commit(stub, 1)
        await stored(stub, tmp_path, 2)
    for number in range(3, 7):  # killed at whatever point it has come to
        async with connected(ckptcache) as stub:
            await stub.Begin(pb.BeginRequest(job_id="job", gen=1, snapshot=number, ps=[0, 1]))
            for ps in (0, 1):
                await stub.StorePart(request(tmp_path, number, ps, os.urandom((number - 2) * 12 * MIB)))
            part = folder / f"{number:08d}/ps-000"
            await asyncio.to_thread(until, part.exists)
        ckptcache.kill()
        await asyncio.to_thread(ckptcache.start)
        async with connected(ckptcache) as stub:
            reply = await stub.Await(pb.AwaitRequest(job_id="job", snapshot=number))
            if reply.state == pb.AwaitReply.STORED:  # the disk was quicker than the kill
                assert (await stub.Get(pb.GetRequest(job_id="job", snapshot=number))).state == "stored"
            else:
                assert reply.state == pb.AwaitReply.FAILED
                assert not (folder / f"{number:08d}").exists()
            newest = await stub.Get(pb.GetRequest(job_id="job", verify=True), timeout=30)
            assert (newest.snapshot, newest.manifest_json) == (1, before.manifest_json)
    leftovers = [path for path in folder.rglob(".tmp-*")]
    assert leftovers == []
    async with connected(ckptcache) as stub:  # stored before the kill, so jobmaster may still commit it
        assert (await commit(stub, 2)).state == "committed"
        assert (await stub.Get(pb.GetRequest(job_id="job", verify=True), timeout=30)).snapshot == 2


async def test_nats_may_restart_between_stored_and_committed(
    nats: NatsServer, ckptcache: ServiceProcess, tmp_path: Path
) -> None:
    async with connected(ckptcache) as stub:
        await stored(stub, tmp_path, 1)
        nats.restart()
        await commit(stub, 1)
        assert (await stub.Get(pb.GetRequest(job_id="job"))).state == "committed"


async def test_damage_is_found_told_and_passed_over(
    nats: NatsServer, ckptcache: ServiceProcess, tmp_path: Path
) -> None:
    async with connected(ckptcache) as stub:
        for number in (1, 2):
            await stored(stub, tmp_path, number)
            await commit(stub, number)
        victim = tmp_path / "storage/checkpoints/job/00000002/ps-001/group-0.dense.safetensors"
        with victim.open("r+b") as file:
            file.seek(1000)
            file.write(b"damage")
        assert (await stub.Get(pb.GetRequest(job_id="job", verify=True), timeout=30)).snapshot == 1
        with pytest.raises(DataLoss):
            await stub.Get(pb.GetRequest(job_id="job", snapshot=2))
    bus = Bus(nats.url, "test")
    await bus.start()
    try:
        subject = catalog.SNAPSHOT_DAMAGED.subject
        async for _, event in bus.events(subject, to_end=False):
            assert (event.data.snapshot, event.data.part) == (2, "ps-001")
            break
    finally:
        await bus.stop()


async def test_sigterm_ends_it_cleanly(nats: NatsServer, ckptcache: ServiceProcess) -> None:
    async with connected(ckptcache) as stub:
        await stub.List(pb.ListRequest())
    assert await asyncio.to_thread(ckptcache.stop) == 0
    ckptcache.start()
    async with connected(ckptcache) as stub:
        assert list((await stub.List(pb.ListRequest())).snapshots) == []


async def test_wrong_settings_end_it_with_one_clear_error(nats: NatsServer, tmp_path: Path) -> None:
    for more, words in (
        ({"RECMESH_STORAGE_URI": "nosuch://x"}, "nosuch://"),
        ({"RECMESH_CHECKPOINT_KEEP": "0"}, "RECMESH_CHECKPOINT_KEEP"),
    ):
        process = ServiceProcess("ckptcache", tmp_path, env=environment(nats, tmp_path, **more))
        with pytest.raises(RuntimeError, match="ended with 78"):
            process.start()
        assert words in process.log_path.read_text()


async def test_its_page_shows_snapshots(ckptcache: ServiceProcess, tmp_path: Path) -> None:
    async with connected(ckptcache) as stub:
        await stored(stub, tmp_path, 1)
        await commit(stub, 1)
    async with httpx.AsyncClient(base_url=ckptcache.address("ops")) as http:
        page = (await http.get("/")).text
        assert "committed" in page and "2 of 2" in page and "memory, storage" in page
        assert 'recmesh_ckptcache_snapshots_total{state="committed"} 1.0' in (await http.get("/metrics")).text


async def test_a_part_comes_from_the_peers_memory_when_its_node_and_the_storage_have_lost_it(
    nats: NatsServer, tmp_path: Path
) -> None:
    """Two nodes with a shared-memory folder each, and one storage; the first is killed and its memory wiped."""
    (tmp_path / "b-shm").mkdir()
    b_env = environment(nats, tmp_path, RECMESH_NODE="b", RECMESH_SHM_DIR=str(tmp_path / "b-shm"))
    with service("ckptcache", tmp_path / "b", env=b_env) as b:
        a_env = environment(nats, tmp_path, RECMESH_NODE="a", RECMESH_CHECKPOINT_PEERS=json.dumps([b.address()]))
        with service("ckptcache", tmp_path / "a", env=a_env) as a:
            async with connected(a) as stub:
                await stored(stub, tmp_path, 1)
                done = await commit(stub, 1)
                before = {uri: await part_bytes(stub, uri) for uri in done.parts}
                shelf = tmp_path / "b-shm/ckptcache-replicas"
                await asyncio.to_thread(until, lambda: len(list(shelf.glob("*.json"))) == 2)
                snapshot = await stub.Get(pb.GetRequest(job_id="job", snapshot=1))
                assert list(snapshot.tiers) == ["memory", "peer", "storage"]
            a.kill()
            shutil.rmtree(tmp_path / "shm/ckptcache")
            for path in (tmp_path / "storage").rglob("group-*"):
                path.unlink()
            await asyncio.to_thread(a.start)
            async with connected(a) as stub:
                for uri in done.parts:
                    assert (await stub.Locate(pb.LocateRequest(part_uri=uri))).tier == "peer"
                    assert await part_bytes(stub, uri) == before[uri]
            async with connected(b) as stub:  # the PS may come up there, too
                found = await stub.Locate(pb.LocateRequest(part_uri=done.parts[0]))
                assert found.tier == "memory" and Path(found.path).read_bytes() == before[done.parts[0]]  # noqa: ASYNC240
            async with connected(a) as stub:
                await stub.Delete(pb.DeleteRequest(job_id="job"))
            await asyncio.to_thread(until, lambda: not list(shelf.iterdir()))
