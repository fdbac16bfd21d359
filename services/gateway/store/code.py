"""Packed user code, `<storage>/code/<sha256>.tar.gz`: named by content, so storing twice is storing once."""

import asyncio
import gzip
import hashlib
import os
import tarfile
import uuid
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from recmesh.runtime.errors import InvalidArgument, ResourceExhausted, Violation
from services.gateway.domain.archive import ArchiveRules, Member

MEMBER_OVERHEAD_BYTES = 4096
"""Headers and padding of one member; for the bound on what is decompressed."""


@dataclass(frozen=True, slots=True)
class StoredCode:
    """An archive on storage."""

    sha256: str
    size_bytes: int
    created: bool


class CodeStore:
    """Takes uploads, checks them, keeps them by digest."""

    def __init__(self, root: Path, *, max_bytes: int, max_unpacked_bytes: int, max_members: int) -> None:
        self._folder = root / "code"
        self._max_bytes = max_bytes
        self._max_unpacked_bytes = max_unpacked_bytes
        self._max_members = max_members

    async def save(self, chunks: AsyncIterator[bytes], *, expected_sha256: str = "") -> StoredCode:
        """Store what arrives; nothing stays if it is too large, damaged, unsafe or not as announced."""
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
        arriving = self._folder / f".arriving-{uuid.uuid4().hex}"
        try:
            sha256, size_bytes = await self._write(arriving, chunks)
            if expected_sha256 and sha256 != expected_sha256:
                raise _wrong(f"its SHA-256 is {sha256}, not {expected_sha256}", "DIGEST_MISMATCH")
            await asyncio.to_thread(self._verify, arriving)
            final = self._folder / f"{sha256}.tar.gz"
            created = await asyncio.to_thread(_publish, arriving, final)
            return StoredCode(sha256, size_bytes, created)
        finally:
            await asyncio.to_thread(arriving.unlink, missing_ok=True)

    async def _write(self, path: Path, chunks: AsyncIterator[bytes]) -> tuple[str, int]:
        digest = hashlib.sha256()
        size_bytes = 0
        with await asyncio.to_thread(path.open, "xb") as file:
            async for chunk in chunks:
                size_bytes += len(chunk)
                if size_bytes > self._max_bytes:
                    raise ResourceExhausted(
                        f"the archive has more than {self._max_bytes} bytes", reason="TOO_LARGE"
                    )
                digest.update(chunk)
                await asyncio.to_thread(file.write, chunk)
            await asyncio.to_thread(_sync, file)
        return digest.hexdigest(), size_bytes

    def _verify(self, path: Path) -> None:
        """InvalidArgument unless it is a gzipped tar archive whose members all stay inside."""
        rules = ArchiveRules(self._max_members, self._max_unpacked_bytes)
        bound = self._max_unpacked_bytes + self._max_members * MEMBER_OVERHEAD_BYTES
        try:
            with path.open("rb") as file, gzip.GzipFile(fileobj=file) as unzipped:
                reader = _Bounded(unzipped, bound)
                with tarfile.open(fileobj=reader, mode="r|") as archive:  # type: ignore[call-overload]  # it only reads
                    for item in archive:
                        rules.check(_member(item))
                while reader.read(1 << 20):  # the checksum is at the end
                    pass
        except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
            raise _wrong(f"it is no readable tar.gz: {error}", "BAD_ARCHIVE") from None
        if not rules.members:
            raise _wrong("it is empty", "BAD_ARCHIVE")


class _Bounded:
    """A stream that fails when more comes out of it than is allowed: kilobytes may unpack to terabytes."""

    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self._stream = stream
        self._left = limit

    def read(self, size: int) -> bytes:
        """As a file's."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise InvalidArgument("the archive unpacks to more than is allowed", reason="UNSAFE_ARCHIVE")
        return data


def _member(item: tarfile.TarInfo) -> Member:
    if item.isreg():
        return Member(item.name, "file", item.size)
    if item.isdir():
        return Member(item.name, "folder", 0)
    if item.issym() or item.islnk():
        return Member(item.name, "link", 0, item.linkname, hard=item.islnk())
    return Member(item.name, "other", item.size)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _publish(arriving: Path, final: Path) -> bool:
    """Give it its name; False when it was there."""
    if final.exists():
        return False
    arriving.replace(final)
    folder = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


def _wrong(why: str, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"the code archive is not taken: {why}", reason=reason, violations=[Violation("body", why)]
    )
