"""The use cases, on a real folder."""

import asyncio
import errno
import json
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from recmesh.formats.snapshot.writing import Container
from recmesh.runtime.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from services.ckptcache.domain.snapshot import State
from services.ckptcache.store.storage import storage_errors
from tests.support.ckpt import GatedStorage, Node, part

pytestmark = pytest.mark.asyncio
A, B = part(0, {"x.arrow": b"x" * 100, "y.safetensors": b"y" * 50}), part(1, {"x.arrow": b"z" * 70})


def folder(node: Node, number: int) -> Path:
    return node.folder / f"storage/checkpoints/job/{number:08d}"


async def chunks(data: bytes, size: int = 7) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def test_a_snapshot_goes_from_shared_memory_to_storage_and_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    stored = await node.stored("job", 1, A, B)
    assert stored.state is State.STORED
    snapshot, text = await node.app.commit(
        "job", 1, gen=1, manifest_json=json.dumps({"rows": 7, "samples": 9})
    )
    assert (snapshot.rows, snapshot.samples, snapshot.size_bytes) == (7, 9, 220)
    assert json.loads(text)["parts"][1]["files"][0]["name"] == "x.arrow"
    assert (folder(node, 1) / "ps-000/y.safetensors").read_bytes() == b"y" * 50
    assert (folder(node, 1) / "ps-000/part.json").read_text() == '{"ps": 0}'
    assert node.told.stored_numbers == [1]
    assert await node.app.get("job", 0, verify=True) == (snapshot, text)


async def test_the_file_of_the_ps_is_gone_and_its_bytes_are_not_copied(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.app.begin("job", 1, gen=1, ps=[0])
    value, blob = A
    path = node.put_in_shm(blob)
    inode = os.stat(path).st_ino
    await node.app.store_part("job", 1, gen=1, part=value, shm_path=path, size_bytes=len(blob))
    assert not [entry for entry in os.scandir(node.shm) if entry.is_file()]
    assert node.memory.path("job", 1, 0).stat().st_ino == inode


async def test_a_repeated_hand_over_waits_for_the_one_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    await node.app.begin("job", 1, gen=1, ps=[0])
    value, blob = A
    path, gate, take = node.put_in_shm(blob), threading.Event(), node.memory.take
    attempts: list[str] = []

    def slow_then_failing(*args: Any, **kwargs: Any) -> Path:
        attempts.append("")
        if len(attempts) == 1:
            gate.wait(10)
            raise ResourceExhausted("no memory")
        return take(*args, **kwargs)

    monkeypatch.setattr(node.memory, "take", slow_then_failing)

    async def store() -> None:
        await node.app.store_part("job", 1, gen=1, part=value, shm_path=path, size_bytes=len(blob))

    first, second, third = (asyncio.create_task(store()) for _ in range(3))
    done, _ = await asyncio.wait({second, third}, timeout=0.1)
    assert not done
    gate.set()
    with pytest.raises(ResourceExhausted):
        await first
    await asyncio.gather(second, third)
    assert len(attempts) == 2 and node.memory.path("job", 1, 0).exists()


@pytest.mark.parametrize(
    "where", ["outside", "link", "link_folder", "own", "missing", "folder", "hard_link", "dots"]
)
async def test_only_a_plain_file_below_the_shared_memory_folder_is_taken_over(
    tmp_path: Path, where: str
) -> None:
    node = Node(tmp_path)
    await node.app.begin("job", 1, gen=1, ps=[0])
    value, blob = A
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(blob)
    (node.shm / "link").symlink_to(outside / "secret")
    (node.shm / "link_folder").symlink_to(outside)
    (node.shm / "ckptcache/theirs").write_bytes(blob)
    (node.shm / "folder").mkdir()
    os.link(outside / "secret", node.shm / "hard_link")
    path = {
        "outside": outside / "secret",
        "link": node.shm / "link",
        "link_folder": node.shm / "link_folder/secret",
        "own": node.shm / "ckptcache/theirs",
        "missing": node.shm / "missing",
        "folder": node.shm / "folder",
        "hard_link": node.shm / "hard_link",
        "dots": node.shm / "../outside/secret",
    }[where]
    with pytest.raises(InvalidArgument) as caught:
        await node.app.store_part("job", 1, gen=1, part=value, shm_path=str(path), size_bytes=len(blob))
    assert caught.value.violations[0].path == "shm_path"
    assert (outside / "secret").read_bytes() == blob
    assert (await node.app.wait("job", 1, wait_s=0)).missing == (0,)  # type: ignore[union-attr]  # it is known


async def test_a_part_whose_bytes_differ_from_its_checksum_fails_the_snapshot_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    before = await node.committed("job", 1, A, B)
    value, blob = A
    await node.app.begin("job", 2, gen=1, ps=[0])
    path = node.put_in_shm(blob[:-1] + b"!")
    await node.app.store_part("job", 2, gen=1, part=value, shm_path=path, size_bytes=len(blob))
    found = await node.app.wait("job", 2, wait_s=30)
    assert found is not None and found.state is State.FAILED
    assert "y.safetensors does not have the checksum" in found.reason
    await node.quiet()
    assert not folder(node, 2).exists()
    assert not node.memory.path("job", 2, 0).exists()
    assert (await node.app.get("job", 0, verify=True))[0] == before


async def test_a_full_disk_fails_the_snapshot_clearly_and_the_one_before_stays_whole(tmp_path: Path) -> None:
    def full() -> None:
        with storage_errors("writing"):
            raise OSError(errno.ENOSPC, "No space left on device")

    node = Node(tmp_path)
    before = await node.committed("job", 1, A, B)
    node.files.storage = GatedStorage(tmp_path / "storage", word="00000002/ps-001", before=full)
    found = await node.stored("job", 2, A, B)
    assert found.state is State.FAILED
    assert "storage is full" in found.reason
    await node.quiet()
    assert not folder(node, 2).exists()
    assert (await node.app.get("job", 0, verify=True))[0] == before
    with pytest.raises(FailedPrecondition, match="failed"):
        await node.app.commit("job", 2, gen=1, manifest_json="{}")


async def test_a_snapshot_can_be_deleted_where_there_is_no_room_for_a_tombstone(tmp_path: Path) -> None:
    def full() -> None:
        raise ResourceExhausted("storage is full")

    node = Node(tmp_path)
    await node.committed("job", 1, A)
    node.files.storage = GatedStorage(tmp_path / "storage", word="DELETED", before=full)
    node.files.delete("job", 1)
    assert not folder(node, 1).exists()


async def test_the_operating_systems_word_for_a_full_disk_becomes_ours(tmp_path: Path) -> None:
    node = Node(tmp_path)

    def full() -> object:
        raise OSError(errno.ENOSPC, "No space left on device")
        yield b""

    with pytest.raises(ResourceExhausted, match="storage is full") as caught:
        node.storage.write("checkpoints/x", full())  # type: ignore[arg-type]  # breaks before it yields
    assert caught.value.reason == "STORAGE_FULL"
    assert list((tmp_path / "storage/checkpoints").iterdir()) == []


async def test_other_calls_are_answered_while_a_part_is_being_written(tmp_path: Path) -> None:
    gate, reached = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert gate.wait(30)

    node = Node(tmp_path, storage=GatedStorage(tmp_path / "storage", word="ps-000/x.arrow", before=hold))
    await node.app.begin("job", 1, gen=1, ps=[0])
    await node.store("job", 1, A)
    await asyncio.to_thread(reached.wait, 30)
    found = await node.app.wait("job", 1, wait_s=0)
    assert found is not None and found.state is State.COLLECTING
    with pytest.raises(FailedPrecondition):
        await node.app.commit("job", 1, gen=1, manifest_json="{}")
    gate.set()
    found = await node.app.wait("job", 1, wait_s=30)
    assert found is not None and found.state is State.STORED


async def test_an_abort_while_a_part_is_being_written_leaves_nothing(tmp_path: Path) -> None:
    gate, reached = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert gate.wait(30)

    node = Node(tmp_path, storage=GatedStorage(tmp_path / "storage", word="ps-000/x.arrow", before=hold))
    await node.app.begin("job", 1, gen=1, ps=[0])
    await node.store("job", 1, A)
    await asyncio.to_thread(reached.wait, 30)
    aborting = asyncio.create_task(node.app.abort("job", 1, reason="a PS died"))
    found = await node.app.wait("job", 1, wait_s=30)
    assert found is not None and found.state is State.FAILED
    gate.set()
    await aborting
    assert not folder(node, 1).exists()
    assert node.flusher.copies == ()
    await node.app.begin("job", 1, gen=1, ps=[0])
    await node.store("job", 1, A)
    found = await node.app.wait("job", 1, wait_s=30)
    assert found is not None and found.state is State.STORED


async def test_repeated_calls_change_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.stored("job", 1, A)
    await node.app.begin("job", 1, gen=1, ps=[0])
    await node.app.store_part("job", 1, gen=1, part=A[0], shm_path="/gone", size_bytes=len(A[1]))
    first = await node.app.commit("job", 1, gen=1, manifest_json='{"samples": 5}')
    assert await node.app.commit("job", 1, gen=1, manifest_json='{"samples": 6}') == first
    with pytest.raises(AlreadyExists):
        await node.app.begin("job", 1, gen=1, ps=[0])


async def test_another_part_of_the_same_ps_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.app.begin("job", 1, gen=1, ps=[0, 1])
    await node.store("job", 1, A)
    with pytest.raises(AlreadyExists):
        await node.store("job", 1, part(0, {"x.arrow": b"other"}))
    with pytest.raises(FailedPrecondition, match="expects no part of ps 7"):
        await node.store("job", 1, part(7, {"x.arrow": b"other"}))


async def test_messages_of_an_older_or_newer_generation_have_no_effect(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.stored("job", 1, A, gen=3)
    for gen in (2, 4):
        with pytest.raises(FailedPrecondition, match="generation 3"):
            await node.app.commit("job", 1, gen=gen, manifest_json="{}")
    await node.app.begin("job", 2, gen=3, ps=[0])
    with pytest.raises(FailedPrecondition, match="generation 3"):
        await node.store("job", 2, A, gen=2)
    with pytest.raises(FailedPrecondition, match="generation 3"):
        await node.app.begin("job", 2, gen=2, ps=[0])
    await node.app.begin("job", 2, gen=4, ps=[0, 1])
    assert (await node.app.wait("job", 2, wait_s=0)).gen == 4  # type: ignore[union-attr]  # it is known


async def test_a_stream_is_stored_like_shared_memory(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.app.begin("job", 1, gen=1, ps=[0])
    value, blob = A
    await node.app.receive_part("job", 1, gen=1, part=value, size_bytes=len(blob), data=chunks(blob))
    found = await node.app.wait("job", 1, wait_s=30)
    assert found is not None and found.state is State.STORED
    assert (folder(node, 1) / "ps-000/x.arrow").read_bytes() == b"x" * 100


@pytest.mark.parametrize("data", [b"", A[1][:-1], A[1] + b"!"])
async def test_a_stream_of_another_length_is_refused_and_may_come_again(tmp_path: Path, data: bytes) -> None:
    node = Node(tmp_path)
    await node.app.begin("job", 1, gen=1, ps=[0])
    value, blob = A
    with pytest.raises(InvalidArgument, match="not whole"):
        await node.app.receive_part("job", 1, gen=1, part=value, size_bytes=len(blob), data=chunks(data))
    assert list((node.shm / "ckptcache").iterdir()) == []
    await node.app.receive_part("job", 1, gen=1, part=value, size_bytes=len(blob), data=chunks(blob))
    assert (await node.app.wait("job", 1, wait_s=30)).state is State.STORED  # type: ignore[union-attr]  # it is known


async def test_a_restart_fails_what_was_being_collected_and_keeps_what_was_stored(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.committed("job", 1, A, B)
    await node.stored("job", 2, A, B)
    await node.app.begin("job", 3, gen=1, ps=[0, 1])
    await node.store("job", 3, A)
    entry = node.entries.get("job", 3)
    assert entry is not None
    while entry.snapshot.missing != (1,):
        await entry.change(30)
    (folder(node, 2) / "ps-000/.tmp-1234-x").write_bytes(b"half")
    (node.shm / "ckptcache/incoming-1234").write_bytes(b"half")

    again = node.again()
    found = await again.recover()
    assert (found.snapshots, found.unfinished) == (2, 1)
    assert [s.state for s in await again.app.snapshots("job")] == [
        State.COMMITTED,
        State.STORED,
        State.FAILED,
    ]
    assert "restarted" in (await again.app.wait("job", 3, wait_s=0)).reason  # type: ignore[union-attr]  # it is known
    assert not folder(node, 3).exists()
    assert not (folder(node, 2) / "ps-000/.tmp-1234-x").exists()
    assert sorted(path.name for path in (node.shm / "ckptcache").iterdir()) == [
        "job.00000002.000",
        "job.00000002.001",
    ]
    snapshot, _ = await again.app.commit("job", 2, gen=1, manifest_json="{}")
    assert snapshot.state is State.COMMITTED
    assert (
        await again.restore.locate(f"{again.storage.uri}/checkpoints/job/00000002/ps-001")
    ).tier == "memory"


async def test_the_catalogue_is_rebuilt_from_storage(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.committed("job", 1, A)
    good = dict(node.kv.held)
    node.kv.held.clear()
    node.kv.held["ghost.00000001"] = good["job.00000001"].replace(b'"job"', b'"ghost"')
    await node.again().recover()
    assert node.kv.held == good


async def test_a_deletion_cut_off_half_way_is_finished_at_the_next_start(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.committed("job", 1, A)
    await node.committed("job", 2, A)
    (folder(node, 1) / "DELETED").write_text("{}")
    again = node.again()
    assert (await again.recover()).removed == 1
    assert not folder(node, 1).exists()
    assert [s.number for s in await again.app.snapshots("job")] == [2]


@pytest.mark.parametrize("victim", ["ps-000/x.arrow", "manifest.json", "COMMITTED", "ps-001/part.json"])
@pytest.mark.parametrize("how", ["flip", "remove"])
async def test_a_damaged_snapshot_is_never_used_and_the_one_before_it_is(
    tmp_path: Path, victim: str, how: str
) -> None:
    node = Node(tmp_path)
    await node.committed("job", 1, A, B)
    await node.committed("job", 2, A, B)
    target = folder(node, 2) / victim
    if how == "flip":
        data = bytearray(target.read_bytes())
        data[len(data) // 2] ^= 1
        target.write_bytes(data)
    else:
        target.unlink()
    with pytest.raises(DataLoss):
        await node.app.get("job", 2, verify=True)
    assert (await node.app.get("job", 0))[0].number == 1
    assert node.told.damaged_numbers == [2]
    with pytest.raises(DataLoss):
        await node.restore.locate(f"{node.storage.uri}/checkpoints/job/00000002/ps-000")
    again = node.again()
    await again.recover()
    assert (await again.app.get("job", 0))[0].number == 1


async def test_a_fetched_part_arrives_whole_from_memory_and_from_storage(tmp_path: Path) -> None:
    for snapshots in (2, 0):
        place = tmp_path / str(snapshots)
        place.mkdir()
        node = Node(place, memory_snapshots=snapshots)
        await node.committed("job", 1, A)
        layout, data = await node.restore.fetch(f"{node.storage.uri}/checkpoints/job/00000001/ps-000")
        blob = b"".join([chunk async for chunk in data])
        assert [blob[f.offset : f.offset + f.size_bytes] for f in layout.files] == [b"x" * 100, b"y" * 50]
        assert layout.document == '{"ps": 0}'
        with pytest.raises(NotFound):
            await node.restore.fetch(f"{node.storage.uri}/checkpoints/job/00000001/ps-000", "nothing")


async def test_a_damaged_copy_in_memory_is_passed_over_for_storage(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.committed("job", 1, A)
    node.memory.path("job", 1, 0).write_bytes(b"\x00" * len(A[1]))
    _, data = await node.restore.fetch(f"{node.storage.uri}/checkpoints/job/00000001/ps-000", "x.arrow")
    assert b"".join([chunk async for chunk in data]) == b"x" * 100


async def test_damage_found_while_fetching_is_told_and_remembered(tmp_path: Path) -> None:
    node = Node(tmp_path, memory_snapshots=0)
    await node.committed("job", 1, A)
    (folder(node, 1) / "ps-000/x.arrow").write_bytes(b"?" * 100)
    _, data = await node.restore.fetch(f"{node.storage.uri}/checkpoints/job/00000001/ps-000")
    with pytest.raises(DataLoss):
        async for _chunk in data:
            pass
    assert node.told.damaged_numbers == [1]


async def test_a_good_copy_in_memory_is_handed_out_and_nothing_is_marked(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.committed("job", 1, A)
    (folder(node, 1) / "ps-000/part.json").write_bytes(b"?")
    uri = f"{node.storage.uri}/checkpoints/job/00000001/ps-000"
    assert (await node.restore.locate(uri)).tier == "memory"
    layout, data = await node.restore.fetch(uri, "x.arrow")
    assert layout.document == '{"ps": 0}' and b"".join([chunk async for chunk in data]) == b"x" * 100
    assert node.told.damaged_numbers == []


async def test_what_another_replica_found_damaged_is_shown_so(tmp_path: Path) -> None:
    node = Node(tmp_path, memory_snapshots=0)
    await node.committed("job", 1, A)
    other = Node(tmp_path, kv=node.kv, memory_snapshots=0, name="other")
    (folder(node, 1) / "ps-000/part.json").unlink()
    with pytest.raises(DataLoss):
        await other.restore.locate(f"{node.storage.uri}/checkpoints/job/00000001/ps-000")
    (shown,) = await node.app.snapshots("job")
    assert shown.state is State.DAMAGED and "part.json is gone" in shown.reason
    with pytest.raises(DataLoss):
        await node.restore.locate(f"{node.storage.uri}/checkpoints/job/00000001/ps-000")


async def test_memory_keeps_the_newest_snapshots_within_its_budget(tmp_path: Path) -> None:
    node = Node(tmp_path, memory_snapshots=2)
    for number in (1, 2, 3):
        await node.committed("job", number, A)
    assert sorted(copy.number for copy in node.flusher.copies) == [2, 3]
    small = Node(tmp_path, memory_budget_bytes=len(A[1]) + len(B[1]) - 1, storage=node.storage)
    await small.stored("other", 1, A, B)
    assert len(small.flusher.copies) == 1
    assert small.told.memory_bytes == small.flusher.copies[0].size_bytes
    uris = [f"{small.storage.uri}/checkpoints/other/00000001/ps-00{ps}" for ps in (0, 1)]
    found = [await small.restore.locate(uri) for uri in uris]
    assert sorted(each.tier for each in found) == ["memory", "storage"]
    assert next(each.path for each in found if each.tier == "storage") in uris


async def test_retention_keeps_as_many_as_the_job_says(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for number in (1, 2, 3, 4):
        await node.committed("job", number, A, keep=2)
    assert [s.number for s in await node.app.snapshots("job")] == [3, 4]
    assert sorted(path.name for path in folder(node, 1).parent.iterdir()) == ["00000003", "00000004"]
    assert sorted(node.kv.held) == ["job.00000003", "job.00000004"]


async def test_the_newest_committed_snapshot_goes_only_with_all_others(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.committed("job", 1, A)
    await node.committed("job", 2, A)
    with pytest.raises(FailedPrecondition, match="newest committed"):
        await node.app.delete("job", 2)
    assert await node.app.delete("job", 1) == 1
    assert await node.app.delete("job", 0) == 1
    assert not folder(node, 1).parent.exists()
    with pytest.raises(NotFound):
        await node.app.get("job", 0)


async def test_a_replica_sees_what_another_committed_and_can_serve_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    other = Node(other_folder, storage=node.storage, kv=node.kv, name="other")
    await node.committed("job", 1, A)
    await node.app.begin("job", 2, gen=1, ps=[0])
    assert [s.number for s in await other.app.snapshots("job")] == [1]
    assert (await other.app.get("job", 0, verify=True))[0].number == 1
    assert (
        await other.restore.locate(f"{node.storage.uri}/checkpoints/job/00000001/ps-000")
    ).tier == "storage"
    assert (await other.again().recover()).unfinished == 0
    assert folder(node, 2).exists()


async def test_a_part_is_removed_once_its_writer_has_ended_and_not_before(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for name in ("recmesh-part.job.0.old", "another-program"):
        (node.shm / name).write_bytes(b"x")
    with Container(node.shm / "recmesh-part.other.0.mine") as alive:
        for path in node.shm.iterdir():
            os.utime(path, (1000, 1000))
        assert node.memory.sweep(now=1001.0) == 0  # it may just have been created
        assert node.memory.sweep(now=9000.0) == 1
        assert sorted(path.name for path in node.shm.iterdir() if path.is_file()) == [
            "another-program",
            "recmesh-part.other.0.mine",
        ]
        alive.keep()
    os.utime(alive.path, (1000, 1000))
    assert node.memory.sweep(now=9000.0) == 1


async def test_uris_outside_the_storage_are_refused(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for uri in (
        "/etc/passwd",
        f"{node.storage.uri}/../x",
        f"{node.storage.uri}/checkpoints/job/../../x/ps-000",
        "",
    ):
        with pytest.raises(InvalidArgument):
            await node.restore.locate(uri)
