"""What every storage of checkpoints does, local or not."""

import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from recmesh.runtime.errors import DataLoss, InvalidArgument
from services.ckptcache.domain.snapshot import Snapshot, State, committed, with_stored
from services.ckptcache.store.files import Cancelled, SnapshotFiles
from services.ckptcache.store.local import LocalStorage
from services.ckptcache.store.remote import FsspecStorage, open_storage
from services.ckptcache.store.storage import Storage, path_of
from tests.support.ckpt import part


@pytest.fixture(params=["folder", "file_uri", "memory", "fsspec_folder"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    match request.param:
        case "folder":
            yield open_storage(str(tmp_path / "storage"))
        case "file_uri":
            yield open_storage(f"file://{tmp_path}/storage")
        case "memory":
            yield open_storage(f"memory://test-{uuid.uuid4().hex}/x")
        case _:
            yield FsspecStorage(f"local://{tmp_path}/storage")


def chunk_list(*chunks: bytes) -> Iterator[bytes]:
    yield from chunks


def test_what_is_written_is_read_back_and_replaced(storage: Storage) -> None:
    storage.write("a/b/file", chunk_list(b"one", b"two"))
    storage.write("a/b/file", [memoryview(b"three"), b""])
    storage.sync("a/b")
    assert storage.read("a/b/file") == b"three"
    assert b"".join(storage.chunks("a/b/file")) == b"three"
    storage.write("a/empty", [])
    assert storage.read("a/empty") == b""


def test_what_is_not_there_is_said_to_be_missing(storage: Storage) -> None:
    for read in (storage.read, lambda path: list(storage.chunks(path))):
        with pytest.raises(FileNotFoundError):
            read("no/such/file")
    assert storage.folders("no") == storage.files("no") == []
    storage.remove("no/such/file")
    storage.remove_tree("no")


def test_folders_and_files_are_told_apart_and_sorted(storage: Storage) -> None:
    for path in ("x/2/f", "x/1/f", "x/b", "x/a"):
        storage.write(path, [b"1"])
    assert storage.folders("x") == ["1", "2"]
    assert storage.files("x") == ["a", "b"]
    storage.remove("x/a")
    storage.remove_tree("x/1")
    assert (storage.folders("x"), storage.files("x")) == (["2"], ["b"])


def test_a_write_that_breaks_leaves_the_old_file(storage: Storage) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise Cancelled

    storage.write("x/file", [b"old"])
    with pytest.raises(Cancelled):
        storage.write("x/file", broken())
    if isinstance(storage, LocalStorage):
        assert storage.read("x/file") == b"old"
        assert storage.files("x") == ["file"]
    # elsewhere the name may hold the half, which counts for nothing without a receipt


def test_a_uri_leads_back_to_its_path_and_never_outside(storage: Storage) -> None:
    assert path_of(storage, f"{storage.uri}/checkpoints/j") == "checkpoints/j"
    if isinstance(storage, LocalStorage):
        assert path_of(storage, f"file://{storage.uri}/checkpoints/j") == "checkpoints/j"
    for uri in (storage.uri, f"{storage.uri}/../x", f"{storage.uri}//x", f"{storage.uri}x/y", "/etc/passwd", ""):
        assert path_of(storage, uri) is None


def stored(files: SnapshotFiles) -> Snapshot:
    snapshot = Snapshot("job", 7, gen=2, expected=(0,), created=5.0, label="manual", node="n")
    value, blob = part(0, {"a.arrow": b"x" * 1000, "b": b""})
    files.begin(snapshot)
    files.write_part(
        snapshot, value, lambda file: iter([blob[file.offset : file.offset + file.size_bytes]]), threading.Event()
    )
    return with_stored(snapshot, value)


def test_a_snapshots_files_tell_its_state_at_every_step(storage: Storage) -> None:
    files = SnapshotFiles(storage)
    assert files.load("job", 7) is None
    whole = stored(files)
    loaded = files.load("job", 7)
    assert loaded is not None and loaded.state is State.STORED
    assert (loaded.gen, loaded.label, loaded.node, loaded.size_bytes) == (2, "manual", "n", 1000)
    done = committed(whole, now=9.0, rows=3, samples=4)
    text = files.commit(done, {"committed": 9.0, "rows": 3, "samples": 4})
    loaded = files.load("job", 7)
    assert loaded is not None and loaded.state is State.COMMITTED
    assert (loaded.committed, loaded.rows, loaded.samples) == (9.0, 3, 4)
    assert files.manifest("job", 7) == text
    files.verify(loaded)
    assert files.jobs() == ["job"] and files.numbers("job") == [7]
    files.delete("job", 7)
    assert files.numbers("job") == []


def test_a_part_without_its_receipt_does_not_count(storage: Storage) -> None:
    files = SnapshotFiles(storage)
    stored(files)
    storage.remove("checkpoints/job/00000007/ps-000/receipt.json")
    loaded = files.load("job", 7)
    assert loaded is not None and loaded.state is State.COLLECTING


def test_a_snapshot_under_a_tombstone_is_none(storage: Storage) -> None:
    files = SnapshotFiles(storage)
    stored(files)
    storage.write("checkpoints/job/00000007/DELETED", [b""])
    assert files.load("job", 7) is None


def test_a_part_of_an_earlier_generation_does_not_count(storage: Storage) -> None:
    files = SnapshotFiles(storage)
    stored(files)
    begun = json.loads(storage.read("checkpoints/job/00000007/begin.json"))
    storage.write("checkpoints/job/00000007/begin.json", [json.dumps({**begun, "gen": 3}).encode()])
    loaded = files.load("job", 7)
    assert loaded is not None and loaded.state is State.COLLECTING


@pytest.mark.parametrize("victim", ["manifest.json", "COMMITTED", "ps-000/receipt.json", "begin.json"])
def test_a_committed_snapshot_with_a_damaged_document_is_damaged_and_not_gone(storage: Storage, victim: str) -> None:
    files = SnapshotFiles(storage)
    done = committed(stored(files), now=9.0, rows=0, samples=0)
    files.commit(done, {"committed": 9.0})
    storage.write(f"checkpoints/job/00000007/{victim}", [b'{"half'])
    loaded = files.load("job", 7)
    assert loaded is not None and loaded.state is State.DAMAGED
    if victim != "begin.json":
        with pytest.raises(DataLoss):
            files.verify(done) if victim != "ps-000/receipt.json" else files.part_document("job", 7, 0)


def test_a_storage_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="nosuch"):
        open_storage("nosuch://bucket/x")
