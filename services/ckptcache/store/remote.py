"""Storage on any fsspec file system. Objects appear when they are complete, so there is nothing to rename.

A cut-off upload may leave an object of its name on some file systems; that is harmless, as a part
counts only with its receipt, which is written last and names every checksum.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
from fsspec.spec import AbstractBufferedFile

from recmesh.runtime.errors import InvalidArgument, Violation
from services.ckptcache.store.local import LocalStorage
from services.ckptcache.store.storage import Storage, ending, read_all, storage_errors


class FsspecStorage:
    """A folder of a file system that fsspec knows."""

    def __init__(self, uri: str) -> None:
        self._uri = uri.rstrip("/")
        self._fs: Any
        self._fs, self._root = fsspec.core.url_to_fs(self._uri, skip_instance_cache=True, use_listings_cache=False)

    @property
    def uri(self) -> str:
        """The root as it was configured."""
        return self._uri

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    def local_path(self, path: str) -> Path | None:
        """Never on this machine."""
        del path
        return None

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Upload; on failure what was uploaded is removed where the file system lets us."""
        with storage_errors(f"writing {self._uri}/{path}"):
            self._fs.makedirs(self._path(path.rpartition("/")[0]), exist_ok=True)
            file = self._fs.open(self._path(path), "wb")
            try:
                with ending(chunks):
                    for chunk in chunks:
                        file.write(bytes(chunk))
            except BaseException:
                _give_up(file)
                raise
            file.close()

    def sync(self, folder: str) -> None:
        """Nothing to do: an upload that was acknowledged is durable."""
        del folder

    def read(self, path: str) -> bytes:
        """All bytes of a small object."""
        with storage_errors(f"reading {self._uri}/{path}"):
            return bytes(self._fs.cat_file(self._path(path)))

    def chunks(self, path: str) -> Iterator[bytes]:
        """The object's bytes."""
        with storage_errors(f"reading {self._uri}/{path}"), self._fs.open(self._path(path), "rb") as file:
            yield from read_all(file)

    def folders(self, path: str) -> list[str]:
        """Prefixes under a prefix."""
        return self._names(path, "directory")

    def files(self, path: str) -> list[str]:
        """Objects under a prefix."""
        return self._names(path, "file")

    def _names(self, path: str, kind: str) -> list[str]:
        with storage_errors(f"listing {self._uri}/{path}"):
            try:
                entries = self._fs.ls(self._path(path), detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
            return sorted(e["name"].rstrip("/").rpartition("/")[2] for e in entries if e["type"] == kind)

    def remove(self, path: str) -> None:
        """Remove an object."""
        with storage_errors(f"removing {self._uri}/{path}"):
            try:
                self._fs.rm_file(self._path(path))
            except FileNotFoundError:
                return

    def remove_tree(self, path: str) -> None:
        """Remove all objects under a prefix."""
        with storage_errors(f"removing {self._uri}/{path}"):
            try:
                self._fs.rm(self._path(path), recursive=True)
            except FileNotFoundError:
                return

    def free_bytes(self) -> int | None:
        """Object stores do not tell."""
        return None


def _give_up(file: Any) -> None:
    """End a cut-off upload without finishing it; what went wrong before is what the caller hears of."""
    with contextlib.suppress(Exception):
        if isinstance(file, AbstractBufferedFile):
            file.closed = True  # else closing, or the garbage collector, would upload the half
            file.discard()
        else:
            file.close()


def open_storage(uri: str) -> Storage:
    """A folder (`/x`, `file:///x`) or any fsspec URL (`s3://bucket/x`)."""
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        return LocalStorage(Path(uri.removeprefix("file://")))
    if parts.scheme not in fsspec.available_protocols():
        reason = f"{parts.scheme}:// is not a file system that fsspec knows"
        raise InvalidArgument(f"cannot use storage {uri!r}", violations=[Violation("storage_uri", reason)])
    try:
        return FsspecStorage(uri)
    except ImportError as error:
        raise InvalidArgument(f"storage {uri!r} needs a package: {error}") from None
