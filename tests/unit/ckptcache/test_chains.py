"""Snapshots that build on others: what is kept, what damage reaches, what stays in memory."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from recmesh.runtime.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
)
from services.ckptcache.domain.snapshot import State
from tests.support.ckpt import Node, part

pytestmark = pytest.mark.asyncio
A = part(0, {"x.arrow": b"x" * 100, "y.safetensors": b"y" * 50})


def folder(node: Node, number: int) -> Path:
    return node.folder / f"storage/checkpoints/job/{number:08d}"


async def chain(node: Node, job_id: str = "job", *, upto: int, whole: int = 1, keep: int = 9) -> None:
    """Snapshots 1..whole are whole, each later one builds on the one before."""
    links: list[dict[str, object]] = []
    for number in range(1, upto + 1):
        links = [{"snapshot": number - 1, "ps": [0]}, *links] if number > whole else []
        await node.stored(job_id, number, part(0, {"x.arrow": bytes([number]) * 100}))
        text = json.dumps({"chain": links})
        await node.app.commit(job_id, number, gen=1, manifest_json=text, keep=keep)
        await node.quiet()


async def test_jobs_with_the_same_numbers_never_collide(tmp_path: Path) -> None:
    node = Node(tmp_path)
    jobs = {job: part(0, {"x.arrow": job.encode() * 50}) for job in ("a", "a-1", "a_1", "b")}
    await asyncio.gather(*(node.committed(job, 1, what) for job, what in jobs.items()))
    await node.app.delete("a", 0)
    again = node.again()
    await again.recover()
    for job in ("a-1", "a_1", "b"):
        uri = f"{node.storage.uri}/checkpoints/{job}/00000001/ps-000"
        assert (await again.restore.locate(uri)).tier == "memory"
        _, data = await again.restore.fetch(uri, "x.arrow")
        assert b"".join([chunk async for chunk in data]) == job.encode() * 50
    with pytest.raises(NotFound):
        await again.restore.locate(f"{node.storage.uri}/checkpoints/a/00000001/ps-000")


async def test_retention_keeps_what_a_kept_snapshot_builds_on(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await chain(node, upto=4, whole=2, keep=1)
    assert [s.number for s in await node.app.snapshots("job")] == [2, 3, 4]
    with pytest.raises(FailedPrecondition, match="snapshot 3 of job job builds on snapshot 2"):
        await node.app.delete("job", 2)
    await node.committed("job", 5, A, keep=1)
    assert [s.number for s in await node.app.snapshots("job")] == [5]
    assert await node.app.delete("job", 0) == 1


@pytest.mark.parametrize("how", ["flip", "remove"])
async def test_damage_in_a_chain_makes_all_that_build_on_it_unusable(tmp_path: Path, how: str) -> None:
    node = Node(tmp_path)
    await chain(node, upto=5, whole=2)
    target = folder(node, 3) / "ps-000/x.arrow"
    if how == "flip":
        target.write_bytes(b"\0" + target.read_bytes()[1:])
    else:
        target.unlink()
    assert (await node.app.get("job", 0, verify=True))[0].number == 2
    assert sorted(node.told.damaged_numbers) == [3, 4, 5]
    with pytest.raises(DataLoss, match="builds on snapshot 3"):
        await node.restore.locate(f"{node.storage.uri}/checkpoints/job/00000005/ps-000")
    again = node.again()
    await again.recover()
    assert (await again.app.get("job", 0))[0].number == 2


async def test_what_is_committed_on_a_damaged_base_is_damaged_and_the_last_readable_one_stays(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await chain(node, upto=3, whole=2, keep=1)
    (folder(node, 3) / "ps-000/x.arrow").unlink()
    with pytest.raises(DataLoss):
        await node.app.get("job", 3, verify=True)
    text = json.dumps({"chain": [{"snapshot": 3, "ps": [0]}, {"snapshot": 2, "ps": [0]}]})
    for number in (4, 5):
        await node.stored("job", number, A)
        found, _ = await node.app.commit("job", number, gen=1, manifest_json=text, keep=1)
        await node.quiet()
        assert found.state is State.DAMAGED and "builds on snapshot 3" in found.reason
        assert (await node.app.commit("job", number, gen=1, manifest_json=text))[0] == found
    assert (await node.app.get("job", 0, verify=True))[0].number == 2
    assert node.told.damaged_numbers == [3, 4, 5]


async def test_a_base_that_is_gone_after_a_restart_damages_what_builds_on_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await chain(node, upto=4, whole=2)
    shutil.rmtree(folder(node, 3))
    again = node.again()
    await again.recover()
    states = {s.number: s.state for s in await again.app.snapshots("job")}
    assert states == {1: State.COMMITTED, 2: State.COMMITTED, 4: State.DAMAGED}
    assert again.told.damaged_numbers == [4]


async def test_memory_keeps_what_the_newest_snapshot_builds_on(tmp_path: Path) -> None:
    node = Node(tmp_path, memory_snapshots=1)
    for number in (1, 2, 3):
        value, blob = part(0, {"x.arrow": b"x" * 100})
        text = json.dumps({"ps": 0, "base": number - 1 if number > 2 else 0})
        await node.stored("job", number, (replace(value, document=text), blob))
    assert sorted(copy.number for copy in node.flusher.copies) == [2, 3]


@pytest.mark.parametrize(
    "text",
    [
        '{"chain": [{"snapshot": 1}]}',
        '{"chain": 7}',
        '{"chain": [{"snapshot": 0, "ps": []}]}',
        '{"chain": [{"snapshot": 1, "ps": []}, {"snapshot": 2, "ps": []}]}',
    ],
)
async def test_a_chain_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    node = Node(tmp_path)
    await node.stored("job", 3, A)
    with pytest.raises(InvalidArgument, match="chain"):
        await node.app.commit("job", 3, gen=1, manifest_json=text)


@pytest.mark.parametrize("file", ["part.json", "receipt.json"])
@pytest.mark.parametrize("how", ["flip", "remove"])
async def test_a_restore_without_a_good_copy_marks_the_snapshot_and_what_builds_on_it(
    tmp_path: Path, file: str, how: str
) -> None:
    node = Node(tmp_path, memory_snapshots=0)
    await chain(node, upto=5, whole=2)
    target = folder(node, 4) / "ps-000" / file
    if how == "flip":
        target.write_bytes(b"\0" + target.read_bytes()[1:])
    else:
        target.unlink()
    with pytest.raises(DataLoss):
        await node.restore.locate(f"{node.storage.uri}/checkpoints/job/00000004/ps-000")
    found = {s.number: s for s in await node.app.snapshots("job")}
    assert [found[n].state for n in (2, 3, 4, 5)] == [State.COMMITTED] * 2 + [State.DAMAGED] * 2
    assert f"00000004/ps-000/{file}" in found[4].reason
    assert found[5].reason == f"it builds on snapshot 4: {found[4].reason}"
    assert node.told.damaged_numbers == [4, 5]
    again = node.again()
    await again.recover()
    assert {s.number for s in await again.app.snapshots("job") if s.state is State.DAMAGED} == {4, 5}
