"""Uploads of code: what is stored, and what is refused without a trace."""

import gzip
import hashlib
import io
import os
import posixpath
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recmesh.runtime.errors import InvalidArgument, MeshError, ResourceExhausted
from services.gateway.domain.archive import ArchiveRules, Member
from services.gateway.store.code import CodeStore

pytestmark = pytest.mark.asyncio


def store(root: Path, *, max_bytes: int = 1 << 20, max_unpacked_bytes: int = 1 << 20) -> CodeStore:
    return CodeStore(root, max_bytes=max_bytes, max_unpacked_bytes=max_unpacked_bytes, max_members=50)


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as packed:
        for info, content in members:
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def file(name: str, content: bytes = b"pass\n") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


async def chunks(content: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for at in range(0, len(content), size):
        yield content[at : at + size]


async def test_code_is_kept_under_its_digest_and_twice_is_once(tmp_path: Path) -> None:
    content = archive(
        file("main.py"), file("lib/tool.py"), special("lib/alias.py", tarfile.SYMTYPE, "tool.py")
    )
    digest = hashlib.sha256(content).hexdigest()
    first = await store(tmp_path).save(chunks(content))
    second = await store(tmp_path).save(chunks(content), expected_sha256=digest)
    assert (first.sha256, first.created, second.created) == (digest, True, False)
    assert [path.name for path in (tmp_path / "code").iterdir()] == [f"{digest}.tar.gz"]
    assert (tmp_path / "code" / f"{digest}.tar.gz").read_bytes() == content


BOMB = gzip.compress(b"\0" * (64 << 20))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: archive(file("/etc/passwd")), "outside"),
        (lambda: archive(file("../up.py")), "outside"),
        (lambda: archive(file("a/../../up.py")), "outside"),
        (lambda: archive(special("a", tarfile.SYMTYPE, "/etc/passwd")), "links to"),
        (lambda: archive(special("a/b", tarfile.SYMTYPE, "../../x")), "links to"),
        (lambda: archive(special("a", tarfile.LNKTYPE, "../x")), "links to"),
        (lambda: archive(special("null", tarfile.CHRTYPE)), "neither a file"),
        (lambda: archive(special("pipe", tarfile.FIFOTYPE)), "neither a file"),
        (lambda: archive(*(file(f"f{n}.py") for n in range(51))), "more than 50"),
        (lambda: archive(file("zeros", b"\0" * (2 << 20))), "unpacked size"),
        (lambda: archive(), "empty"),
        (lambda: b"no archive at all", "no readable"),
        (lambda: archive(file("main.py", os.urandom(5000)))[:-2000], "no readable"),
        (lambda: BOMB, "archive"),
    ],
)
async def test_an_unsafe_or_damaged_archive_leaves_nothing(
    tmp_path: Path, make: Callable[[], bytes], why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        await store(tmp_path).save(chunks(make()))
    assert list((tmp_path / "code").iterdir()) == []


async def test_a_too_large_upload_is_stopped_and_leaves_nothing(tmp_path: Path) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1000
            yield b"x" * 1000

    with pytest.raises(ResourceExhausted, match="more than 5000"):
        await store(tmp_path, max_bytes=5000).save(endless())
    assert taken == 6000
    assert list((tmp_path / "code").iterdir()) == []


async def test_an_upload_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await store(tmp_path).save(broken())
    assert list((tmp_path / "code").iterdir()) == []


async def test_content_other_than_announced_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="SHA-256"):
        await store(tmp_path).save(chunks(archive(file("main.py"))), expected_sha256="0" * 64)


@given(
    st.lists(st.sampled_from(["a", "..", ".", "b", ""]), max_size=6),
    st.lists(st.sampled_from(["a", "..", "b"]), max_size=5),
)
async def test_a_link_that_is_taken_never_leaves_the_folder(name: list[str], target: list[str]) -> None:
    rules = ArchiveRules(10, 10)
    member = Member("/".join(name), "link", 0, "/".join(target) or ".")
    try:
        rules.check(member)
    except MeshError:
        return
    end = posixpath.normpath(posixpath.join("/root/box", posixpath.dirname(member.name), member.target))
    assert (end + "/").startswith("/root/box/")
