"""The positions of a join in a bucket: one process at a time may write them."""

from recmesh.runtime.bus import KeyValue, Link
from recmesh.runtime.errors import Aborted, AlreadyExists, FailedPrecondition

BUCKET = "recmesh_joins"


class Record:
    """One join's entry, changed by compare-and-set: whoever writes after another process has begun learns it."""

    def __init__(self, link: Link, name: str) -> None:
        self._bucket, self._name = KeyValue(link, BUCKET), name
        self._revision = 0

    async def read(self) -> bytes | None:
        """What was written last; None: nothing was."""
        entry = await self._bucket.get(self._name)
        self._revision = entry.revision if entry else 0
        return entry.value if entry else None

    async def write(self, value: bytes) -> None:
        """FailedPrecondition when another process has written since this one read or wrote."""
        try:
            if self._revision:
                self._revision = await self._bucket.update(self._name, value, self._revision)
            else:
                self._revision = await self._bucket.create(self._name, value)
        except (Aborted, AlreadyExists):
            raise FailedPrecondition(
                f"another process runs the join {self._name}; this one ends", reason="TAKEN_OVER"
            ) from None
