"""Storage in a folder of this machine: temporary name, fsync, rename, fsync of the folder."""

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from services.ckptcache.store.storage import TEMPORARY, ending, read_all, storage_errors


class LocalStorage:
    """A POSIX folder."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        with storage_errors(f"creating {self._root}"):
            self._root.mkdir(parents=True, exist_ok=True)

    @property
    def uri(self) -> str:
        """The root as a plain path."""
        return str(self._root)

    def local_path(self, path: str) -> Path | None:
        """Always on this machine."""
        return self._root / path

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """The file is there whole or not at all; its name is durable after `sync` of its folder."""
        target = self._root / path
        temporary = target.with_name(f"{TEMPORARY}{uuid.uuid4().hex[:8]}-{target.name}")
        with storage_errors(f"writing {target}"):
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with ending(chunks), temporary.open("xb", buffering=0) as file:
                    for chunk in chunks:
                        view = memoryview(chunk)
                        while view:
                            view = view[file.write(view) :]
                    os.fsync(file.fileno())
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def sync(self, folder: str) -> None:
        """fsync the folder and those above it, up to the root: a new folder's name lives in its parent."""
        path = self._root / folder
        with storage_errors(f"syncing {path}"):
            while True:
                handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
                if path == self._root:
                    return
                path = path.parent

    def read(self, path: str) -> bytes:
        """All bytes of a small file."""
        with storage_errors(f"reading {path}"):
            return (self._root / path).read_bytes()

    def chunks(self, path: str) -> Iterator[bytes]:
        """The file's bytes."""
        with storage_errors(f"reading {path}"), (self._root / path).open("rb", buffering=0) as file:
            yield from read_all(file)

    def folders(self, path: str) -> list[str]:
        """Folders in a folder."""
        return self._names(path, folders=True)

    def files(self, path: str) -> list[str]:
        """Files in a folder."""
        return self._names(path, folders=False)

    def _names(self, path: str, *, folders: bool) -> list[str]:
        with storage_errors(f"listing {path}"):
            try:
                with os.scandir(self._root / path) as entries:
                    return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) == folders)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def remove(self, path: str) -> None:
        """Remove a file."""
        with storage_errors(f"removing {path}"):
            (self._root / path).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        """Remove a folder."""
        with storage_errors(f"removing {path}"):
            try:
                shutil.rmtree(self._root / path)
            except FileNotFoundError:
                return

    def free_bytes(self) -> int | None:
        """What the file system has left."""
        with storage_errors("asking for free space"):
            return shutil.disk_usage(self._root).free
