"""Copies of other nodes' parts in this node's shared memory: two files each, the bytes and what they are."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.ckptcache.domain.parts import Part, PartFile
from services.ckptcache.domain.retention import Copy
from services.ckptcache.store.storage import storage_errors

FOLDER = "ckptcache-replicas"
_HEADER = ".json"
_INCOMING = "incoming-"
Key = tuple[str, int, int]
"""(job, snapshot, ps)"""


@dataclass(frozen=True, slots=True)
class Held:
    """A part whose files lie one behind the other in `path`."""

    part: Part
    path: Path
    since: float


class ReplicaShelf:
    """The folder `ckptcache-replicas/` below the machine's shared memory; the process owns what is in it."""

    def __init__(self, shm_dir: Path) -> None:
        self._own = shm_dir / FOLDER
        with storage_errors(f"creating {self._own}"):
            self._own.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._held: dict[Key, Held] = {}

    @property
    def copies(self) -> tuple[Copy, ...]:
        """What is held, for the rules of eviction: any of it may go."""
        return tuple(Copy(job, number, ps, held.part.size_bytes, True, held.part.base)
                     for (job, number, ps), held in self._held.items())

    def get(self, key: Key) -> Held | None:
        """A copy that is whole; None when there is none."""
        return self._held.get(key)

    def incoming(self, key: Key, sender: str) -> Path:
        """Where a sender's bytes arrive; they are nothing until `put`."""
        return self._own / f"{_INCOMING}{sender}.{_name(key)}"

    def put(self, key: Key, part: Part, incoming: Path, *, now: float) -> None:
        """Bytes that arrived and were checked become the copy. The header, written last, makes it whole."""
        path = self._own / _name(key)
        with storage_errors(f"keeping {path}"):
            incoming.rename(path)
            header = path.with_name(path.name + _HEADER)
            header.write_text(json.dumps(_to_json(part, now)))
        self._held[key] = Held(part, path, now)

    def drop(self, key: Key) -> None:
        """Forget a copy. Who has it open keeps it until it is closed."""
        self._held.pop(key, None)
        path = self._own / _name(key)
        path.with_name(path.name + _HEADER).unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def keys(self, job_id: str, number: int = 0) -> list[Key]:
        """Of a job's copies, or of one snapshot's."""
        return [key for key in self._held if key[0] == job_id and number in (0, key[1])]

    def older_than(self, moment: float) -> list[Key]:
        """Copies that came before; who sent them has forgotten them, or is gone."""
        return [key for key, held in self._held.items() if held.since < moment]

    def recover(self) -> int:
        """After a start: take up what is whole, remove the rest; returns how many there are."""
        for path in sorted(self._own.iterdir()):
            if path.name.startswith(_INCOMING):
                path.unlink(missing_ok=True)
            elif path.suffix != _HEADER:
                self._recover(path)
        for header in self._own.glob(f"*{_HEADER}"):
            if not header.with_suffix("").exists():
                header.unlink(missing_ok=True)
        return len(self._held)

    def _recover(self, path: Path) -> None:
        try:
            job, number, ps = path.name.split(".")
            key = (job, int(number), int(ps))
            part, since = _from_json(json.loads(path.with_name(path.name + _HEADER).read_text()))
            if path.stat().st_size == part.size_bytes:
                self._held[key] = Held(part, path, since)
                return
        except (OSError, ValueError, KeyError, TypeError):
            pass                                  # not whole, so it goes
        path.with_name(path.name + _HEADER).unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def _name(key: Key) -> str:
    return f"{key[0]}.{key[1]:08d}.{key[2]:03d}"


def _to_json(part: Part, now: float) -> dict[str, Any]:
    files = [[f.name, f.offset, f.size_bytes, f.sha256] for f in part.files]
    return {"ps": part.ps, "files": files, "document": part.document, "since": now}


def _from_json(value: dict[str, Any]) -> tuple[Part, float]:
    files = tuple(PartFile(str(name), int(offset), int(size), str(digest))
                  for name, offset, size, digest in value["files"])
    return Part(int(value["ps"]), files, str(value["document"])), float(value["since"])
