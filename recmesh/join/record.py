"""The positions of a join in a bucket: one process at a time may write them."""

import contextlib

from recmesh.runtime.bus import KeyValue, Link
from recmesh.runtime.errors import Aborted, AlreadyExists, FailedPrecondition

BUCKET = "recmesh_joins"
_ATTEMPTS = 50


class Record:
    """One join's entry, changed by compare-and-set: whoever writes after another process has begun learns it."""

    def __init__(self, link: Link, name: str) -> None:
        self._bucket, self._name = KeyValue(link, BUCKET), name
        self._revision = 0

    async def take(self) -> bytes | None:
        """What was written last, None when nothing was; from here on, who wrote it cannot write any more.

        FailedPrecondition when another process writes faster than this one can.
        """
        for _ in range(_ATTEMPTS):
            entry = await self._bucket.get(self._name)
            self._revision = entry.revision if entry else 0
            if entry is None:
                return None
            with contextlib.suppress(Aborted):        # written since: it may be more than was read
                self._revision = await self._bucket.update(self._name, entry.value, self._revision)
                return entry.value
        raise self._taken()

    async def write(self, value: bytes) -> None:
        """FailedPrecondition when another process has written since this one read or wrote."""
        try:
            if self._revision:
                self._revision = await self._bucket.update(self._name, value, self._revision)
            else:
                self._revision = await self._bucket.create(self._name, value)
        except (Aborted, AlreadyExists):
            raise self._taken() from None

    def _taken(self) -> FailedPrecondition:
        return FailedPrecondition(
            f"another process runs the join {self._name}; this one ends", reason="TAKEN_OVER"
        )
