"""Model versions in a key-value bucket: one key `<name>.<version>` each, so that a version is taken once."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import asdict, fields
from typing import Protocol

import orjson

from recmesh.runtime.errors import Aborted, DataLoss, NotFound
from services.gateway.domain.models import ModelVersion, State

BUCKET = "recmesh-models"
ATTEMPTS = 8


class Entry(Protocol):
    """A value and the revision at which it was written."""

    @property
    def key(self) -> str:
        """Whose value it is."""
        ...

    @property
    def value(self) -> bytes:
        """The bytes."""
        ...

    @property
    def revision(self) -> int:
        """Grows with every change."""
        ...


class KeyValue(Protocol):
    """The part of the bus's key-value bucket that is used here."""

    async def get(self, key: str) -> Entry | None:
        """None when there is no such key."""
        ...

    async def create(self, key: str, value: bytes) -> int:
        """AlreadyExists when the key is there."""
        ...

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Aborted when the key has another revision."""
        ...

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Remove the key."""
        ...

    async def keys(self, prefix: str = "") -> Sequence[str]:
        """All keys that start with the prefix."""
        ...

    async def entries(self, prefix: str = "") -> Sequence[Entry]:
        """What is there of keys that start with the prefix, by one call; it may lack what was written a moment ago."""
        ...

    def watch(self, prefix: str = "") -> AsyncGenerator[Entry, None]:
        """What is there, then every change, also that a key was deleted."""
        ...


class Registry:
    """The records of all model versions."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    async def all(self) -> list[ModelVersion]:
        """Every version of every model, by name, then number."""
        return await self._read(await self._bucket.keys(""))

    async def glance(self) -> list[ModelVersion]:
        """As `all`, by one call however many there are; it may lack what was written a moment ago."""
        return _sorted(entry.value for entry in await self._bucket.entries())

    async def versions(self, name: str) -> list[ModelVersion]:
        """Every version of one model, by number."""
        return await self._read(await self._bucket.keys(f"{name}."))

    async def get(self, name: str, version: str) -> ModelVersion:
        """One version; NotFound when there is none."""
        entry = await self._bucket.get(_key(name, version))
        if entry is None:
            raise NotFound(f"model {name!r} has no version {version!r}", reason="UNKNOWN_VERSION")
        return _decode(entry.value)

    async def create(self, record: ModelVersion) -> None:
        """Write a new version; AlreadyExists when another took the number meanwhile."""
        await self._bucket.create(_key(record.name, record.version), _encode(record))

    async def change(
        self, name: str, version: str, rule: Callable[[ModelVersion], ModelVersion]
    ) -> ModelVersion:
        """Apply a rule to what is stored, by compare-and-set; what another replica wrote is never lost."""
        for _ in range(ATTEMPTS):
            entry = await self._bucket.get(_key(name, version))
            if entry is None:
                raise NotFound(f"model {name!r} has no version {version!r}", reason="UNKNOWN_VERSION")
            before = _decode(entry.value)
            after = rule(before)
            if after == before:
                return before
            try:
                await self._bucket.update(_key(name, version), _encode(after), entry.revision)
            except Aborted:
                continue
            return after
        raise Aborted(f"model {name}/{version} is changed by others all the time", reason="CONTENTION")

    async def delete(self, name: str, version: str) -> None:
        """Forget a version; the files stay."""
        await self._bucket.delete(_key(name, version))

    async def changes(self) -> AsyncGenerator[str, None]:
        """Names of models with records, then each whose records change, by whichever gateway."""
        async with aclosing(self._bucket.watch()) as entries:
            async for entry in entries:
                yield entry.key.rpartition(".")[0]

    async def _read(self, keys: Sequence[str]) -> list[ModelVersion]:
        entries = await asyncio.gather(*(self._bucket.get(key) for key in keys))
        return _sorted(entry.value for entry in entries if entry is not None)


def _sorted(values: Iterable[bytes]) -> list[ModelVersion]:
    return sorted(map(_decode, values), key=lambda item: (item.name, item.number))


def _key(name: str, version: str) -> str:
    return f"{name}.{version}"


def _encode(record: ModelVersion) -> bytes:
    return orjson.dumps({**asdict(record), "state": str(record.state), "format": 1})


def _decode(value: bytes) -> ModelVersion:
    try:
        found = orjson.loads(value)
        if "format" not in found:
            raise KeyError("format")
        known = {field.name for field in fields(ModelVersion)}     # a newer release may have added to it
        state = State(found["state"]) if found["state"] in set(State) else State.REGISTERED
        return ModelVersion(**{**{k: v for k, v in found.items() if k in known}, "state": state})
    except (ValueError, TypeError, KeyError) as error:
        raise DataLoss(f"a model record cannot be read: {error}", reason="BAD_RECORD") from None
