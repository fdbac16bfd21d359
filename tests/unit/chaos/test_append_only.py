"""A file is cut back to what it was, and only as long as it is the one that is written."""

from pathlib import Path

from recmesh.chaos.append_only import cut, marks


def test_the_newest_writes_are_lost(tmp_path: Path) -> None:
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    file = folder / "appendonly.aof.1.incr.aof"
    file.write_bytes(b"first")
    (folder / "appendonly.aof.1.base.rdb").write_bytes(b"base")
    then = marks(tmp_path)
    file.write_bytes(b"first and second")
    assert cut(then) == len(b" and second")
    assert file.read_bytes() == b"first" and marks(tmp_path) == then


def test_of_files_that_were_rewritten_nothing_is_cut(tmp_path: Path) -> None:
    folder = tmp_path / "appendonlydir"
    folder.mkdir()
    file = folder / "appendonly.aof.1.incr.aof"
    file.write_bytes(b"first")
    then = marks(tmp_path)
    file.rename(folder / "appendonly.aof.2.incr.aof")
    assert cut(then) == 0
    assert (folder / "appendonly.aof.2.incr.aof").read_bytes() == b"first"
