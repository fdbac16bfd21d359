"""Notes in a folder of any file system that jobmaster and YARN's containers share (fsspec).

    FOLDER/SERVICE/APPLICATION/INSTANCE.order   what the container of this instance is to run
                               INSTANCE.begun   it runs: container, node
                               INSTANCE.stop    it is not wanted any more
                               INSTANCE.end     how it ended

YARN starts anonymous containers of a component, and tells no exit code of one that has ended some seconds ago: who is
who, and how it ended, is noted here. One writer for each note but the end, which the container writes, or jobmaster
where it could not. Calls block.
"""

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import fsspec
import orjson
from fsspec.implementations.local import LocalFileSystem

Kind = Literal["order", "begun", "stop", "end"]
KINDS: tuple[Kind, ...] = ("order", "begun", "stop", "end")


class Board:
    """OSError (or an error of the file system's own) when the folder cannot be reached. Orders hold secrets: the
    folder is made for its owner alone where it is one of this machine."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._fs: Any
        self._fs, self._root = fsspec.core.url_to_fs(self.uri, skip_instance_cache=True, use_listings_cache=False)
        self._is_local = isinstance(self._fs, LocalFileSystem)

    def services(self) -> dict[str, list[str]]:
        """Applications by service."""
        return {name: self._names(name, "directory") for name in self._names("", "directory")}

    def notes(self, service: str, application: str) -> dict[str, set[Kind]]:
        """Which notes there are, by instance."""
        found: dict[str, set[Kind]] = {}
        for name in self._names(f"{service}/{application}", "file"):
            instance, _, kind = name.rpartition(".")
            if instance and kind in KINDS:
                found.setdefault(instance, set()).add(kind)
        return found

    def has(self, service: str, application: str, instance: str, kind: Kind) -> bool:
        """Whether there is such a note."""
        return bool(self._fs.exists(self._path(service, application, instance, kind)))

    def read(self, service: str, application: str, instance: str, kind: Kind) -> dict[str, Any] | None:
        """None where there is none, or it is none that can be read."""
        try:
            found = orjson.loads(self._fs.cat_file(self._path(service, application, instance, kind)))
        except (FileNotFoundError, orjson.JSONDecodeError):
            return None
        return found if isinstance(found, dict) else None

    def write(self, service: str, application: str, instance: str, kind: Kind, note: Mapping[str, Any]) -> None:
        """Whole or not at all."""
        path, data = self._path(service, application, instance, kind), orjson.dumps(note)
        if not self._is_local:
            self._fs.pipe_file(path, data)
            return
        folder = path.rpartition("/")[0]
        os.makedirs(folder, mode=0o700, exist_ok=True)
        part = f"{path}.{uuid.uuid4().hex}.part"
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        os.replace(part, path)

    def remove(self, service: str) -> None:
        """All notes of a service."""
        with suppress(FileNotFoundError):
            self._fs.rm(f"{self._root}/{service}", recursive=True)

    def _path(self, service: str, application: str, instance: str, kind: Kind) -> str:
        return f"{self._root}/{service}/{application}/{instance}.{kind}"

    def _names(self, folder: str, kind: str) -> list[str]:
        try:
            entries = self._fs.ls(f"{self._root}/{folder}".rstrip("/"), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(entry["name"].rstrip("/").rpartition("/")[2] for entry in entries if entry["type"] == kind)
