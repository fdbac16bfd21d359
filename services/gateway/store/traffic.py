"""Traffic rules in a key-value bucket: one key for each model name."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import orjson

from recmesh.runtime.errors import DataLoss, InvalidArgument
from services.gateway.domain import traffic as rules
from services.gateway.domain.traffic import Traffic
from services.gateway.store.registry import KeyValue

BUCKET = "recmesh-traffic"


class TrafficRules:
    """What was set for models by hand; a name without an entry has the default."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket

    async def all(self) -> dict[str, Traffic]:
        """Rules by model name."""
        return {name: await self.get(name) for name in await self._bucket.keys("")}

    async def get(self, name: str) -> Traffic:
        """One model's rules."""
        entry = await self._bucket.get(name)
        if entry is None:
            return Traffic()
        try:
            found = orjson.loads(entry.value)
            return rules.parse({name: found[name] for name in rules.FIELDS if name in found})   # a newer release's
        except (ValueError, InvalidArgument) as error:
            raise DataLoss(f"the traffic rules of {name!r} cannot be read: {error}", reason="BAD_RECORD") from None

    async def changes(self) -> AsyncGenerator[str, None]:
        """Names of models with rules, then each whose rules change, by whichever gateway."""
        async with aclosing(self._bucket.watch()) as entries:
            async for entry in entries:
                yield entry.key

    async def put(self, name: str, traffic: Traffic) -> None:
        """Write one model's rules; the last writer wins."""
        value = orjson.dumps(rules.as_document(traffic))
        entry = await self._bucket.get(name)
        if entry is None:
            await self._bucket.create(name, value)
        else:
            await self._bucket.update(name, value, entry.revision)

    async def delete(self, name: str) -> None:
        """Back to the default."""
        await self._bucket.delete(name)
