"""Copies of parts in a peer's memory, between two nodes of one storage."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recmesh.runtime.errors import FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from services.ckptcache.domain.parts import Part, packed
from services.ckptcache.peers import GrpcPeers
from services.ckptcache.store.local import LocalStorage
from services.ckptcache.store.replicas import ReplicaShelf
from tests.support.ckpt import Node, part
from tests.support.job_fakes import LoopClock

pytestmark = pytest.mark.asyncio
A = part(0, {"x.arrow": b"x" * 100_000, "y.safetensors": b"y" * 50})


class Direct:
    """A peer without a wire between."""

    def __init__(self, node: Node, sender: str) -> None:
        self.address, self._node, self._sender = f"{node.policy.node}:1", node, sender
        self.away = self.silent = False

    async def hold(
        self, job_id: str, number: int, gen: int, part: Part, data: AsyncIterator[bytes], *, timeout_s: float
    ) -> None:
        self._check()
        await self._node.replicas.hold(
            job_id, number, part, node=self._sender, size_bytes=part.size_bytes, data=data
        )

    async def locate(self, part_uri: str, *, timeout_s: float) -> Part:
        self._check()
        if self.silent:
            await asyncio.sleep(60)
        return self._node.replicas.find(self._node.restore.parsed(part_uri)).part

    async def fetch(self, part_uri: str, file: str) -> AsyncIterator[bytes]:
        held = self._node.replicas.find(self._node.restore.parsed(part_uri))
        found = held.part.file(file)
        assert found is not None
        yield held.path.read_bytes()[found.offset : found.offset + found.size_bytes]

    async def drop(self, job_id: str, number: int) -> None:
        self._node.replicas.drop(job_id, number)

    def _check(self) -> None:
        if self.away:
            raise Unavailable("away")


class Known:
    configured = ("others",)

    def __init__(self, *peers: Direct) -> None:
        self._peers = peers

    async def all(self) -> Sequence[Direct]:
        return self._peers

    async def close(self) -> None:
        """Nothing is open."""


def node(folder: Path, name: str, *peers: Direct, budget: int = 1 << 30) -> Node:
    (folder / name).mkdir(exist_ok=True)
    return Node(folder / name, storage=LocalStorage(folder / "storage"), name=name,
                peers=Known(*peers) if peers else None, replica_budget_bytes=budget)


async def copied(sender: Node) -> None:
    while sender.replicator._sending and not sender.replicator._sending.done():
        await asyncio.wait({sender.replicator._sending})


async def test_a_part_is_copied_to_one_peer_and_found_there_when_memory_and_storage_are_lost(tmp_path: Path) -> None:
    b, c = node(tmp_path, "b"), node(tmp_path, "c")
    peers = Direct(b, "a"), Direct(c, "a")
    a = node(tmp_path, "a", *peers)
    await a.committed("job", 1, A)
    await copied(a)
    held = [each for each in (b, c) if each.shelf.copies]
    assert len(held) == 1 and a.told.bytes_replicated == A[0].size_bytes
    assert len(a.replicator.holders("job", 1)) == 1
    uri = f"{a.storage.uri}/checkpoints/job/00000001/ps-000"
    assert (await a.restore.locate(uri)).tier == "memory"
    a.memory.drop("job", 1, 0)
    for path in (tmp_path / "storage/checkpoints/job/00000001/ps-000").iterdir():
        path.unlink()
    again = Node(a.folder, storage=a.storage, kv=a.kv, name="a", peers=a.peers)  # its memory and entries are gone
    found = await again.restore.locate(uri)
    assert (found.tier, found.path, found.part.document) == ("peer", "", A[0].document)
    layout, data = await again.restore.fetch(uri, "x.arrow")
    assert b"".join([chunk async for chunk in data]) == b"x" * 100_000
    assert [file.name for file in layout.files] == ["x.arrow"]


async def test_a_peer_that_is_away_or_silent_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.ckptcache.app.replicate.ASK_S", 0.2)
    b, c = node(tmp_path, "b"), node(tmp_path, "c")
    first, second = Direct(b, "a"), Direct(c, "a")
    a = node(tmp_path, "a", first, second)
    first.away = True
    await a.committed("job", 1, A)
    await copied(a)
    assert [copy.number for copy in c.shelf.copies] == [1] and not b.shelf.copies
    a.flusher.forget(lambda copy: True)
    second.silent = True
    uri = f"{a.storage.uri}/checkpoints/job/00000001/ps-000"
    assert (await a.restore.locate(uri)).tier == "storage"
    second.away = True
    await a.committed("job", 2, A)
    await copied(a)
    assert [copy.number for copy in c.shelf.copies] == [1]
    assert (await a.app.get("job", 2))[0].usable                  # nothing waits for a copy


async def test_copies_go_with_their_snapshot(tmp_path: Path) -> None:
    b = node(tmp_path, "b")
    a = node(tmp_path, "a", Direct(b, "a"))
    for number in (1, 2, 3):
        await a.committed("job", number, A, keep=2)
        await copied(a)
    while a.replicator._dropping:
        await asyncio.wait(set(a.replicator._dropping))
    assert [copy.number for copy in b.shelf.copies] == [2, 3]
    a.replicator.forget("job", 0)
    while a.replicator._dropping:
        await asyncio.wait(set(a.replicator._dropping))
    assert not b.shelf.copies and not list((b.shm / "ckptcache-replicas").iterdir())


@pytest.mark.parametrize("number", [1, 0])
async def test_a_copy_whose_snapshot_is_forgotten_while_it_is_sent_is_dropped(tmp_path: Path, number: int) -> None:
    b = node(tmp_path, "b")
    peer, held, go_on = Direct(b, "a"), asyncio.Event(), asyncio.Event()
    a, hold = node(tmp_path, "a", peer), peer.hold

    async def slowly(*args: Any, timeout_s: float) -> None:
        await hold(*args, timeout_s=timeout_s)
        held.set()
        await go_on.wait()

    peer.hold = slowly  # type: ignore[assignment, method-assign]  # the answer is late
    await a.committed("job", 1, A)
    await held.wait()
    assert b.shelf.copies
    a.replicator.forget("job", number)
    go_on.set()
    await copied(a)
    assert not b.shelf.copies and not a.replicator.holders("job", 1) and not a.told.bytes_replicated


async def test_channels_of_peers_that_are_gone_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Line:
        def __init__(self) -> None:
            self.closed = False

        async def close(self, grace: float | None) -> None:
            self.closed = True

        def __getattr__(self, name: str) -> Any:
            return lambda *args, **options: None             # whatever a stub asks a channel for

    class Time(LoopClock):
        ahead_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.ahead_s

    lines: dict[str, Line] = {}

    def connect(address: str) -> Any:
        lines[address] = Line()
        return lines[address]

    there, clock = ["10.0.0.1", "10.0.0.2"], Time()

    async def resolved(host: str, port: int, **options: Any) -> list[Any]:
        return [(0, 0, 0, "", (ip, port)) for ip in there]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    peers = GrpcPeers(["others:7"], connect, node="a", clock=clock)
    first = [peer.address for peer in await peers.all()]
    assert first == ["10.0.0.1:7", "10.0.0.2:7"]
    there[:] = ["10.0.0.2", "10.0.0.3"]
    await peers.all()
    assert not any(line.closed for line in lines.values()), "a call to it may be under way"
    clock.ahead_s = 3 * 3600.0
    assert [peer.address for peer in await peers.all()] == ["10.0.0.2:7", "10.0.0.3:7"]
    assert [address for address, line in lines.items() if line.closed] == ["10.0.0.1:7"]
    await peers.close()
    assert all(line.closed for line in lines.values())


async def test_a_copy_that_is_damaged_on_the_way_or_not_whole_is_refused(tmp_path: Path) -> None:
    b = node(tmp_path, "b", budget=200_000)
    value, blob = packed(A[0]), b"x" * 100_000 + b"y" * 50

    async def data(what: bytes) -> AsyncIterator[bytes]:
        yield what

    with pytest.raises(InvalidArgument, match="not whole"):
        await b.replicas.hold("job", 1, value, node="a", size_bytes=len(blob), data=data(blob[:-1]))
    with pytest.raises(Exception, match="checksum"):
        await b.replicas.hold("job", 1, value, node="a", size_bytes=len(blob), data=data(b"z" + blob[1:]))
    with pytest.raises(InvalidArgument, match="refused"):
        await b.replicas.hold("job", 1, A[0], node="a", size_bytes=len(A[1]), data=data(A[1]))
    with pytest.raises(FailedPrecondition) as refused:
        await b.replicas.hold("job", 1, value, node="b", size_bytes=len(blob), data=data(blob))
    assert refused.value.reason == "SAME_NODE"
    assert not list((b.shm / "ckptcache-replicas").iterdir())
    for number in (1, 2, 3):
        await b.replicas.hold("job", number, value, node="a", size_bytes=len(blob), data=data(blob))
    assert [copy.number for copy in b.shelf.copies] == [3]        # two do not fit
    small = node(tmp_path, "small", budget=10)
    with pytest.raises(ResourceExhausted):
        await small.replicas.hold("job", 1, value, node="a", size_bytes=len(blob), data=data(blob))


async def test_copies_on_their_way_count_against_the_budget(tmp_path: Path) -> None:
    b = node(tmp_path, "b", budget=250_000)
    value, blob = packed(A[0]), b"x" * 100_000 + b"y" * 50
    go_on = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield blob[:1000]
        await go_on.wait()
        yield blob[1000:]

    async def at_once() -> AsyncIterator[bytes]:
        yield blob

    await b.replicas.hold("job", 1, value, node="a", size_bytes=len(blob), data=at_once())
    under_way = [
        asyncio.create_task(b.replicas.hold("job", number, value, node="a", size_bytes=len(blob), data=slowly()))
        for number in (2, 3)
    ]
    await asyncio.sleep(0.05)
    assert not b.shelf.copies, "two on their way leave no room for the old one"
    with pytest.raises(ResourceExhausted) as refused:
        await b.replicas.hold("job", 4, value, node="a", size_bytes=len(blob), data=at_once())
    assert refused.value.reason == "MEMORY_FULL"
    go_on.set()
    await asyncio.gather(*under_way)
    assert b.replicas.size_bytes <= 250_000
    await b.replicas.hold("job", 5, value, node="a", size_bytes=len(blob), data=at_once())


async def test_a_restarted_peer_keeps_what_is_whole_and_removes_the_rest(tmp_path: Path) -> None:
    b = node(tmp_path, "b")
    value, blob = packed(A[0]), b"x" * 100_000 + b"y" * 50

    async def data() -> AsyncIterator[bytes]:
        yield blob

    for number in (1, 2, 3):
        await b.replicas.hold("job", number, value, node="a", size_bytes=len(blob), data=data())
    shelf = b.shm / "ckptcache-replicas"
    (shelf / "job.00000002.000.json").unlink()                    # killed before the header
    (shelf / "job.00000003.000").write_bytes(b"torn")
    (shelf / "incoming-1.job.00000009.000").write_bytes(b"half")
    (shelf / "job.00000007.000.json").write_text("{}")
    again = ReplicaShelf(b.shm)
    assert again.recover() == 0                                   # 1 was evicted for 2 and 3
    assert list(shelf.iterdir()) == []
    await b.replicas.hold("job", 4, replace(value), node="a", size_bytes=len(blob), data=data())
    assert ReplicaShelf(b.shm).recover() == 1


async def test_copies_of_a_sender_that_is_gone_go_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = node(tmp_path, "b")
    value, blob = packed(A[0]), b"x" * 100_000 + b"y" * 50

    async def data() -> AsyncIterator[bytes]:
        yield blob

    await b.replicas.hold("job", 1, value, node="a", size_bytes=len(blob), data=data())
    b.replicas.sweep()
    assert b.replicas.find(("job", 1, 0)).part == value
    now = b.clock.now()
    monkeypatch.setattr(type(b.clock), "now", lambda self: now + 90_000)
    b.replicas.sweep()
    with pytest.raises(NotFound):
        b.replicas.find(("job", 1, 0))
