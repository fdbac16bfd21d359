"""Durable files below one root: a folder of this machine, or any fsspec file system."""

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from recmesh.runtime.errors import DataLoss, MeshError, ResourceExhausted, Unavailable

CHUNK_BYTES = 4 << 20
TEMPORARY = ".tmp-"


class Storage(Protocol):
    """Paths are relative to the root, with `/`. A file appears whole or not at all where the medium can."""

    @property
    def uri(self) -> str:
        """The root, as it was configured, without a slash at its end."""

    def local_path(self, path: str) -> Path | None:
        """The path on this machine; None when the files are elsewhere."""

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Create or replace a file and sync its bytes. ResourceExhausted when the medium is full."""

    def sync(self, folder: str) -> None:
        """Make the names in the folder durable, and the folder's own."""

    def read(self, path: str) -> bytes:
        """All bytes of a small file; FileNotFoundError."""

    def chunks(self, path: str) -> Iterator[bytes]:
        """A file's bytes, `CHUNK_BYTES` at a time; FileNotFoundError, also for a folder that is not there."""

    def folders(self, path: str) -> list[str]:
        """Names of the folders in a folder, ascending; none when it does not exist."""

    def files(self, path: str) -> list[str]:
        """Names of the files in a folder, ascending; none when it does not exist."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def remove_tree(self, path: str) -> None:
        """Remove a folder with all that is in it, if it exists."""

    def free_bytes(self) -> int | None:
        """Room left; None when the medium does not tell."""


def path_of(storage: Storage, uri: str) -> str | None:
    """The path below the root that a URI names; None when it is not below the root."""
    root, given = storage.uri.removeprefix("file://"), uri.removeprefix("file://")
    if not given.startswith(root + "/"):
        return None
    path = given[len(root) + 1 :]
    return None if any(part in ("", ".", "..") for part in path.split("/")) else path


@contextmanager
def storage_errors(action: str) -> Iterator[None]:
    """What the operating system says, as an error that a caller can act on."""
    try:
        yield
    except (MeshError, FileNotFoundError):
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ResourceExhausted(f"{action}: storage is full ({error})", reason="STORAGE_FULL") from error
        if error.errno == errno.EIO:
            raise DataLoss(f"{action}: {error}") from error
        raise Unavailable(f"{action}: {error}", reason="STORAGE") from error


@contextmanager
def ending(chunks: Iterable[bytes | memoryview]) -> Iterator[None]:
    """Close a generator of chunks, and the files that it has open, also when it was not read to its end."""
    try:
        yield
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()


def read_all(file: BinaryIO) -> Iterator[bytes]:
    """The file's bytes, chunk by chunk."""
    while chunk := file.read(CHUNK_BYTES):
        yield chunk
