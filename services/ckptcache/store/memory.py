"""Copies of parts in shared memory. Files that a PS made are renamed, never copied."""

import os
import stat
import uuid
from collections.abc import Generator
from pathlib import Path

from recmesh.runtime.errors import InvalidArgument, NotFound, ResourceExhausted, Violation
from recmesh.runtime.shared_memory import remove_abandoned
from services.ckptcache.store.storage import CHUNK_BYTES, storage_errors

FOLDER = "ckptcache"
_INCOMING = "incoming-"


class MemoryTier:
    """The folder `ckptcache/` below the machine's shared-memory folder; the process owns what is in it."""

    def __init__(self, shm_dir: Path) -> None:
        self._outer = shm_dir
        self._own = shm_dir / FOLDER
        with storage_errors(f"creating {self._own}"):
            self._own.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._outer_real = self._outer.resolve(strict=True)

    def path(self, job_id: str, number: int, ps: int) -> Path:
        """Where the copy of a part lies, if there is one. Job ids hold no dot."""
        return self._own / f"{job_id}.{number:08d}.{ps:03d}"

    def take(self, path: str, *, job_id: str, number: int, ps: int, size_bytes: int) -> Path:
        """Rename a file that a PS made to our own name.

        Raises InvalidArgument unless it is a regular file of that size, directly or in a subfolder of
        the shared-memory folder, reached without a symbolic link.
        """
        given = Path(path)
        try:
            parent = given.parent.resolve(strict=True)
            inside = parent == self._outer_real or self._outer_real in parent.parents
            # The name as given must be the real one: a symbolic link on the way is refused.
            straight = parent == given.parent or parent == self._outer_real / given.parent.relative_to(self._outer)
            status = os.lstat(parent / given.name) if inside and straight and given.name else None
        except (OSError, ValueError):
            raise _refused(path, "there is no such file in the shared-memory folder") from None
        if status is None or self._own.resolve() in (parent, *parent.parents):
            raise _refused(path, f"is not a plain path below {self._outer}")
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise _refused(path, "is not a regular file with one name")
        if status.st_size != size_bytes:
            raise _refused(path, f"has {status.st_size} bytes, not {size_bytes}")
        own = self.path(job_id, number, ps)
        with storage_errors(f"taking over {path}"):
            os.rename(parent / given.name, own)
        after = os.lstat(own)
        if not stat.S_ISREG(after.st_mode) or after.st_ino != status.st_ino:
            own.unlink()
            raise _refused(path, "changed while it was taken over")
        return own

    def incoming(self) -> Path:
        """A name for bytes that arrive over the network."""
        return self._own / f"{_INCOMING}{uuid.uuid4().hex}"

    def accept(self, incoming: Path, *, job_id: str, number: int, ps: int) -> Path:
        """Give bytes that arrived the part's name."""
        own = self.path(job_id, number, ps)
        os.rename(incoming, own)
        return own

    def drop(self, job_id: str, number: int, ps: int) -> None:
        """Forget a copy. Who has it open keeps it until it is closed."""
        self.path(job_id, number, ps).unlink(missing_ok=True)

    def present(self) -> list[tuple[str, int, int, int]]:
        """(job, snapshot, ps, bytes) of every file under a part's name; anything else is removed."""
        found = []
        for entry in sorted(self._own.iterdir()):
            pieces = entry.name.split(".")
            if len(pieces) == 3 and pieces[1].isdigit() and pieces[2].isdigit() and entry.is_file():
                found.append((pieces[0], int(pieces[1]), int(pieces[2]), entry.stat().st_size))
            else:
                entry.unlink(missing_ok=True)
        return found

    def sweep(self, *, now: float) -> int:
        """Remove parts that a PS left behind when it died before it handed them over; returns how many."""
        return remove_abandoned(self._outer, now=now)


def append(path: Path, data: bytes) -> None:
    """Add bytes to an incoming file; ResourceExhausted when memory is full."""
    with storage_errors("receiving a part"), path.open("ab", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]


def read_range(path: Path, offset: int, size_bytes: int) -> Generator[bytes]:
    """`size_bytes` bytes from `offset`; NotFound when the copy was dropped."""
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        raise NotFound(f"{path.name} is not in memory any more") from None
    with file:
        end = offset + size_bytes
        while offset < end:
            chunk = os.pread(file.fileno(), min(CHUNK_BYTES, end - offset), offset)
            if not chunk:
                raise NotFound(f"{path.name} ends at byte {offset}, before {end}")
            offset += len(chunk)
            yield chunk


def room(path: Path, size_bytes: int, *, reserve_bytes: int = 64 << 20) -> None:
    """ResourceExhausted unless the memory's file system has room for `size_bytes` more."""
    usage = os.statvfs(path)
    free = usage.f_bavail * usage.f_frsize
    if size_bytes + reserve_bytes > free:
        raise ResourceExhausted(
            f"shared memory has {free} bytes left, and a part of {size_bytes} arrives", reason="MEMORY_FULL"
        )


def _refused(path: str, reason: str) -> InvalidArgument:
    return InvalidArgument(f"cannot take over {path!r}", violations=[Violation("shm_path", reason)])
