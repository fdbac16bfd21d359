"""Which gateways there are, and what each serves: one entry each, which ends soon after its gateway."""

from collections.abc import Collection, Mapping

import orjson

from recmesh.runtime.errors import Aborted, AlreadyExists, NotFound
from services.gateway.store.registry import KeyValue

_PREFIX = "serves."


class Presence:
    """In a bucket whose entries end by themselves."""

    def __init__(self, bucket: KeyValue, *, identity: str) -> None:
        self._bucket, self.key = bucket, _PREFIX + identity
        self._revision = 0

    async def tell(self, serves: Collection[str]) -> None:
        """What this gateway serves now (`name/version`); to be told again before the entry ends."""
        value = orjson.dumps(sorted(serves))
        try:
            if self._revision:
                self._revision = await self._bucket.update(self.key, value, self._revision)
            else:
                self._revision = await self._bucket.create(self.key, value)
        except (Aborted, AlreadyExists, NotFound):       # it ended meanwhile, or an answer was lost
            entry = await self._bucket.get(self.key)
            self._revision = entry.revision if entry is not None else 0

    async def all(self) -> Mapping[str, frozenset[str]]:
        """By gateway what it serves."""
        entries = await self._bucket.entries(_PREFIX)
        return {entry.key: frozenset(orjson.loads(entry.value)) for entry in entries}

    async def leave(self) -> None:
        """This gateway ends."""
        await self._bucket.delete(self.key)
