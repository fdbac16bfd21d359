"""Packing user code: the same bytes for the same content, and nothing that does not belong."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from recmesh.client.packing import pack
from recmesh.runtime.errors import InvalidArgument, ResourceExhausted


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getnames()


def folder(tmp_path: Path, name: str = "code", **files: str) -> Path:
    root = tmp_path / name
    for path, text in {"main.py": "def main(job): ...", **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_times_owners_and_umask_do_not_change_the_bytes(tmp_path: Path) -> None:
    first = folder(tmp_path, "a", **{"pkg/x.py": "x = 1"})
    second = folder(tmp_path, "b", **{"pkg/x.py": "x = 1"})
    os.utime(second / "main.py", (1, 1))
    (second / "main.py").chmod(0o600)
    assert pack(first) == pack(second)
    assert names(pack(first)) == ["main.py", "pkg/x.py"]


def test_other_content_gives_other_bytes(tmp_path: Path) -> None:
    assert pack(folder(tmp_path, "a")) != pack(folder(tmp_path, "b", **{"main.py": "changed"}))


def test_caches_and_repositories_are_left_out(tmp_path: Path) -> None:
    root = folder(
        tmp_path, **{".git/config": "", "__pycache__/x.pyc": "", ".venv/lib.py": "", "pkg/y.pyc": ""}
    )
    assert names(pack(root)) == ["main.py"]


def test_the_ignore_file_leaves_out_by_name_and_by_path(tmp_path: Path) -> None:
    ignore = "# not code\n*.csv\ndata/\nsub/notes.txt\n"
    files = {"x.csv": "", "data/big.py": "", "sub/notes.txt": "", "other/notes.txt": "", "sub/data.py": ""}
    root = folder(tmp_path, **{".recmeshignore": ignore, **files})
    assert names(pack(root)) == [".recmeshignore", "main.py", "other/notes.txt", "sub/data.py"]


def test_a_link_within_the_folder_stays_a_link(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "alias.py").symlink_to("main.py")
    with tarfile.open(fileobj=io.BytesIO(pack(root))) as tar:
        assert tar.getmember("alias.py").linkname == "main.py"


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "secrets").symlink_to(tmp_path)
    with pytest.raises(InvalidArgument) as caught:
        pack(root)
    assert caught.value.violations[0].path == "model.code"


def test_too_much_is_refused_with_the_largest_file(tmp_path: Path) -> None:
    root = folder(tmp_path, **{"data/rows.txt": "x" * 2000})
    with pytest.raises(ResourceExhausted, match=r"data/rows.txt"):
        pack(root, max_bytes=1000)


@pytest.mark.parametrize("case", ["missing", "empty"])
def test_nothing_to_pack_is_refused(tmp_path: Path, case: str) -> None:
    root = tmp_path / "code"
    if case == "empty":
        root.mkdir()
    with pytest.raises(InvalidArgument):
        pack(root)
