"""The index of committed snapshots, shared by all replicas: one KV entry each."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from services.ckptcache.domain.snapshot import Link, Snapshot, State


class Entry(Protocol):
    """What KV answers."""

    @property
    def value(self) -> bytes:
        """The stored bytes."""
        ...


class KeyValue(Protocol):
    """The part of the bus's KV that the catalogue needs."""

    async def get(self, key: str) -> Entry | None:
        """None when there is no such key."""
        ...

    async def put(self, key: str, value: bytes) -> int:
        """Insert or replace."""
        ...

    async def delete(self, key: str) -> None:
        """Remove, if it is there."""
        ...

    async def entries(self, prefix: str = "") -> Sequence[Entry]:
        """All live entries whose keys start with the prefix."""
        ...


class Catalogue:
    """Committed and damaged snapshots by job and number."""

    def __init__(self, kv: KeyValue) -> None:
        self._kv = kv

    async def put(self, snapshot: Snapshot) -> None:
        """Insert or replace."""
        value = json.dumps(_to_json(snapshot), sort_keys=True).encode()
        await self._kv.put(_key(snapshot.job_id, snapshot.number), value)

    async def get(self, job_id: str, number: int) -> Snapshot | None:
        """None when it is not committed."""
        entry = await self._kv.get(_key(job_id, number))
        return _from_json(json.loads(entry.value)) if entry else None

    async def delete(self, job_id: str, number: int) -> None:
        """Remove, if it is there."""
        await self._kv.delete(_key(job_id, number))

    async def of_job(self, job_id: str) -> list[Snapshot]:
        """A job's snapshots, ascending; all jobs' for an empty id."""
        entries = await self._kv.entries(f"{job_id}." if job_id else "")
        found = [_from_json(json.loads(entry.value)) for entry in entries]
        return sorted(found, key=lambda snapshot: (snapshot.job_id, snapshot.number))


def _key(job_id: str, number: int) -> str:
    return f"{job_id}.{number:08d}"


_PLAIN = (
    "job_id",
    "number",
    "gen",
    "created",
    "label",
    "node",
    "reason",
    "committed",
    "rows",
    "samples",
    "size_bytes",
)


def _to_json(snapshot: Snapshot) -> dict[str, Any]:
    plain = {name: getattr(snapshot, name) for name in _PLAIN}
    chain = [[link.number, list(link.ps)] for link in snapshot.chain]
    return {**plain, "expected": list(snapshot.expected), "state": str(snapshot.state), "chain": chain}


def _from_json(document: Mapping[str, Any]) -> Snapshot:
    plain = {name: document[name] for name in _PLAIN}
    chain = tuple(Link(number, tuple(ps)) for number, ps in document.get("chain", ()))
    return Snapshot(**plain, expected=tuple(document["expected"]), state=State(document["state"]), chain=chain)
